"""Run a model on batches and time it: `python -m …onnx.graph_probe MODEL REQUESTS ANSWERS TEST …`.

The program runs in its own process, so that a crash ends nothing else, and the measured memory is
that of the variant. REQUESTS is an npz file: a full batch, and then the golden requests, whose
answers are written to the npz file ANSWERS. TEST is an npy file with the test split, whose answers
are written to the npy file TEST_ANSWERS. The program prints the measured speed, and the number of
test rows that were answered in batches of serving's size, as one line of JSON. Without ANSWERS it
measures only the speed.
"""

import json
import sys
import time
from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np

from millrace.export.onnx.answer_split import SplitRows, answer_split
from millrace.export.onnx.conversions import batch_file
from millrace.export.onnx.graph_certificate import GraphSpeed
from millrace.export.tensorrt.engine import SUFFIX, EngineSession
from millrace.models.common.arrays import Array
from millrace.models.common.hardware import this_machine
from millrace.models.common.other_programs import measure_quietly
from millrace.models.common.subprocess_runner import peak_memory
from millrace.models.inference.model_input import ModelInput
from millrace.models.inference.onnx_session import OnnxSession

Session = OnnxSession | EngineSession

WARM_UP = 20
REQUESTS = 300
SECONDS = 2.0
"""Time limit for the requests of one row, and again for the full batches. At least `LEAST` requests
of each are always timed."""
LEAST = 10


def speed_of(session: Session, row: batch_file.Batch, batch: batch_file.Batch) -> GraphSpeed:
    """Return the latency of one row, the throughput of full batches and the peak memory.

    Args:
        session: session of the loaded model.
        row: a batch of one row.
        batch: a batch of the largest size in serving.
    """
    rows = _rows(batch)

    def time_both() -> tuple[list[float], list[float]]:
        return _seconds(session, row), _seconds(session, batch)

    (single, full), others = measure_quietly(time_both, this_machine().cores)
    p50, p99 = (float(np.quantile(single, share)) * 1000 for share in (0.5, 0.99))
    return GraphSpeed(p50, p99, rows / float(np.median(full)), peak_memory(), others)


def _seconds(session: Session, inputs: batch_file.Batch) -> list[float]:
    times: list[float] = []
    until = time.perf_counter() + SECONDS
    while len(times) < LEAST + WARM_UP or (
        len(times) < REQUESTS + WARM_UP and time.perf_counter() < until
    ):
        began = time.perf_counter()
        session.run(inputs)
        times.append(time.perf_counter() - began)
    return times[WARM_UP:]


def main() -> None:
    """Time one row and a full batch; answer the golden requests and the test split."""
    parser = ArgumentParser(description=__doc__)
    for name in ("model", "requests"):
        parser.add_argument(name, type=Path)
    for name in ("answers", "test", "test_answers"):
        parser.add_argument(name, type=Path, nargs="?")
    parser.add_argument("--batch-rows", type=int, help="rows of a full batch")
    parser.add_argument("--padding", type=int, help="id of the token that pads texts")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--tensorrt", type=json.loads, help="options of onnxruntime's TensorRT provider, as JSON"
    )
    parser.add_argument("--gpu", action="store_true", help="run on a GPU, if there is one")
    given = parser.parse_args()
    full, *requests = batch_file.read(given.requests)
    row = next(request for request in requests if _rows(request) == 1)
    session = _open_session(given.model, given.threads, given.tensorrt, given.gpu)
    speed = speed_of(session, row, full)
    if given.answers is None:
        sys.stdout.write(json.dumps({"speed": asdict(speed)}) + "\n")
        return
    if this_machine().cores > given.threads:  # the outputs are not timed, so all cores are used
        session = _open_session(given.model, this_machine().cores, given.tensorrt, given.gpu)
    answers = [{"answers": session.run(request)} for request in requests]
    batch_file.write(given.answers, answers)
    ((name, rows),) = full.items()

    def answer(rows: Array) -> Array:
        return session.run({name: rows})

    split = SplitRows(given.test, ModelInput(name, rows.shape[1], given.padding), given.batch_rows)
    # A TensorRT engine is built for the sizes of serving's batches.
    is_fixed = given.model.suffix == SUFFIX or given.tensorrt is not None
    serving_rows = answer_split(split, answer, given.test_answers, only_serving=is_fixed)
    sys.stdout.write(json.dumps({"speed": asdict(speed), "serving_rows": serving_rows}) + "\n")


def _open_session(
    model: Path, threads: int, tensorrt: Mapping[str, str] | None, gpu: bool
) -> Session:
    if model.suffix == SUFFIX:
        return EngineSession(model)
    if tensorrt is not None:
        # Batch scoring and release trials run without TensorRT, so the model must load without it.
        OnnxSession(model)
    return OnnxSession(model, threads, tensorrt, gpu=gpu)


def _rows(batch: batch_file.Batch) -> int:
    return len(next(iter(batch.values())))


if __name__ == "__main__":
    main()
