"""What exports a graph: its network, rows to calibrate and measure with, the files beside it."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.models.common.arrays import Array
from millrace.models.common.hardware import this_gpu
from millrace.models.config.pipeline import Pipeline
from millrace.models.data import snapshots
from millrace.models.inference.features import Encoding
from millrace.models.inference.onnx_session import provider_options
from millrace.tasks.compare import split_rows
from millrace.tasks.progress import log
from millrace.tasks.train import Trained

if TYPE_CHECKING:
    from millrace.export.measure import Evidence
    from millrace.export.onnx.onnx_exporter import Exporter
import json
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millrace.export.certificate import Certificate
from millrace.models.config.pipeline_file import resolved_yaml
from millrace.models.inference.features import TEXT

if TYPE_CHECKING:
    from millrace.export.measure import Evidence


def exporter_of(
    pipeline: Pipeline,
    snapshot: snapshots.Snapshot,
    trained: Trained,
    folder: Path,
    timing_caches: Path | None = None,
) -> "Exporter":
    """Return what makes and measures the forms of trained weights.

    Args:
        pipeline: what to export.
        snapshot: gives the rows for calibration and validation.
        trained: weights and encoding.
        folder: an empty folder for the files.
        timing_caches: folder, kept, of what speeds up the next build of an engine.
    """
    from millrace.export.onnx.onnx_exporter import Exporter
    from millrace.export.tensorrt.engine_file import axes_of
    from millrace.models.families.family import build_network
    from millrace.models.families.network import Served
    from millrace.models.families.objective import objective_of
    from millrace.models.training.checkpoint import load_weights
    from millrace.models.training.compression.compression import remove_pruned

    encoding = trained.encoding
    objective = objective_of(encoding)
    network = build_network(pipeline.model, pipeline.folder, encoding, objective)
    load_weights(trained.checkpoint, network)
    remove_pruned(pipeline.training, network)

    def validation() -> "Evidence":
        rows, target = split_rows(pipeline, snapshot, encoding, "validation")
        return evidence_of(pipeline, exporter, rows, target)

    exporter = Exporter(
        served=Served(network, objective),
        objective=objective,
        read=encoding.input,
        calibration=partial(_calibration, pipeline, snapshot, encoding),
        validation=validation,
        folder=folder,
        threads=pipeline.serving.intra_op_thread_count,
        spec=pipeline.export,
        axes=axes_of(encoding.input, pipeline.serving.max_batch_size, pipeline.export.golden_rows),
        timing_caches=timing_caches,
        tensorrt=_tensorrt(pipeline),
    )
    return exporter


def evidence_of(pipeline: Pipeline, exporter: "Exporter", rows: Array, target: Array) -> "Evidence":
    """Answer rows with the network, as the measure of every form."""
    from millrace.export.measure import gather_evidence

    return gather_evidence(
        *(exporter.served, exporter.objective, exporter.read, rows, target),
        golden_rows=pipeline.export.golden_rows,
        batch_rows=pipeline.serving.max_batch_size,
    )


def _calibration(
    pipeline: Pipeline, snapshot: snapshots.Snapshot, encoding: Encoding
) -> Iterator[Array]:
    """Yield training rows, 64 at a time."""
    left, columns = pipeline.export.calibration_rows, snapshot.schema.features
    for batch in snapshots.scan(snapshot, "train", pipeline.dataset.split, columns=columns):
        rows = encoding.encode(batch)[:left]
        left -= len(rows)
        for start in range(0, len(rows), 64):
            yield encoding.input.trimmed(rows[start : start + 64])
        if left <= 0:
            return


def _tensorrt(pipeline: Pipeline) -> dict[str, str] | None:
    """Return the options of TensorRT where serving accelerates with it, if it can be had here."""
    accelerator = pipeline.serving.accelerator
    if accelerator is None:
        return None
    if this_gpu() is None:
        log.warning(
            "there is no NVIDIA GPU here: the forms are measured without serving.accelerator, and "
            "a release may refuse answers that differ from those"
        )
        return None
    return provider_options(accelerator)


def write_files(
    folder: Path, pipeline: Pipeline, encoding: Encoding, certificate: Certificate
) -> dict[str, Path]:
    """Write what goes beside the model; return the files by name."""
    texts = {
        "encoding.json": encoding.to_json(),
        "certificate.json": certificate.to_json(),
        "pipeline.yaml": resolved_yaml(pipeline),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    return {name: folder / name for name in texts}


def write_golden(folder: Path, encoding: Encoding, evidence: "Evidence", first: pa.Table) -> Path:
    """Write the golden batch as the graph reads it, of a text also as a client sends it."""
    arrays = {evidence.read.name: evidence.golden, "answers": evidence.golden_answers}
    if encoding.tokenizer is not None:
        sent = encoding.request(first)[TEXT].ravel().tolist()
        # as JSON: NumPy's own text loses a NUL at the end
        arrays[TEXT] = np.array(json.dumps(sent))
    path = folder / "golden.npz"
    np.savez(path, **arrays)
    return path
