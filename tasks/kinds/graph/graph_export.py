"""The export of a `graph` model: its network, calibration and test rows, and certificate."""

import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millrace.export.certificate import Header
from millrace.export.onnx.answer_split import answers_file, read_answers
from millrace.export.onnx.graph_certificate import (
    Baseline,
    GraphCandidate,
    GraphCertificate,
    GraphStage,
    baseline_of,
)
from millrace.export.select import Gates
from millrace.models.common.arrays import Array
from millrace.models.common.digest import ONNX_FILE
from millrace.models.common.errors import WorkError
from millrace.models.common.hardware import this_gpu
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data import snapshots
from millrace.models.inference.answers import Answers, answers_of
from millrace.models.inference.features import TEXT, Encoding
from millrace.models.inference.onnx_session import provider_options
from millrace.models.registry.named_version import in_words
from millrace.models.registry.version_files import CANDIDATE_TAG
from millrace.tasks.kinds.graph.graph_files import ENCODING, GOLDEN, GraphFiles
from millrace.tasks.kinds.graph.graph_rows import first_rows, split_rows
from millrace.tasks.kinds.graph.graph_train import GraphTraining
from millrace.tasks.kinds.steps import Trained
from millrace.tasks.progress import log

if TYPE_CHECKING:
    from millrace.export.onnx.measure_graph import Evidence
    from millrace.export.onnx.onnx_exporter import Exporter


@dataclass(frozen=True)
class GraphExport:
    """The export of one model of the kind `graph`; an `Export`.

    Attributes:
        pipeline: the pipeline of the model.
        exporter: the exporter that makes and measures variants.
        measured_on: the golden batch and the test split, with PyTorch's answers.
        baseline: the constant answer that a model has to beat.
        encoding: the encoding of rows as tensors.
        golden: the rows of the golden batch as they are in the snapshot.
        reference: the registered version that the certificate compares this model with.
    """

    pipeline: Pipeline
    exporter: "Exporter"
    measured_on: "Evidence"
    baseline: Baseline
    encoding: Encoding
    golden: pa.Table
    reference: GraphFiles | None

    @property
    def gates(self) -> Gates:
        """The limits that a candidate must stay within."""
        return self.exporter.gates

    def candidates(self) -> Iterator[GraphCandidate]:
        """Make and measure every variant, and refuse variants no better than a constant answer."""
        if not self.baseline.is_telling:
            log.warning(
                "the test split has only one distinct target value, so metrics say little about "
                "a model"
            )
        latency_slo_ms = self.pipeline.serving.latency_slo_ms
        for each in self.exporter.candidates(self.measured_on, latency_slo_ms):
            yield beside_constant(
                each, self.exporter.objective, self.measured_on.target, self.baseline
            )

    def certificate(
        self, header: Header, candidates: Sequence[GraphCandidate], chosen: GraphCandidate
    ) -> GraphCertificate:
        """Return the certificate: stages of PyTorch, every candidate and the reference version."""
        evidence = self.measured_on
        stages = (evidence.stage, *(s for each in candidates if (s := _with_size(each))))
        return GraphCertificate(
            **asdict(header),
            stages=stages,
            test_rows=len(evidence.target),
            golden_rows=len(evidence.golden),
            metric_name=self.exporter.objective.metric,
            max_metric_loss=self.pipeline.export.max_metric_loss,
            reference=self._reference(),
            batch_sizes=evidence.batch_sizes,
            constant=self.baseline.metric,
        )

    def model_files(self, chosen: GraphCandidate) -> Mapping[str, Path]:
        """Return the ONNX file of the chosen candidate, by its name in the version."""
        if chosen.path is None:
            raise WorkError(
                f"the variant {chosen.name} was chosen, but was not made", seen=chosen.reason
            )
        return {ONNX_FILE: chosen.path}

    def evidence(
        self, chosen: GraphCandidate, certificate: GraphCertificate
    ) -> Mapping[str, str | Path]:
        """Return the encoding and the golden batch, by file name."""
        golden = write_golden(self.exporter.folder, self.encoding, self.measured_on, self.golden)
        return {ENCODING: self.encoding.to_json(), GOLDEN: golden}

    def answers(self, chosen: GraphCandidate) -> Array:
        """Return the chosen candidate's answers to the test split, `[test rows, outputs]`."""
        return read_answers(self.model_files(chosen)[ONNX_FILE])

    def reproduction(self) -> tuple[Path, ...]:
        """Return the files that reproduce the variants."""
        return self.exporter.programs.reproduction()

    def _reference(self) -> GraphStage | None:
        """Measure the registered version that the model is compared with, like a candidate.

        Return None if there is no such version, or if it cannot be measured.
        """
        files = self.reference
        if files is None:
            return None
        variant = files.version.tags.get(CANDIDATE_TAG, "onnx")
        file = self.exporter.folder / "reference.onnx"
        shutil.copyfile(files.model, file)
        try:
            name = f"{in_words(files.version)}, {variant}"
            return _with_size(self.exporter.measure(name, file, self.measured_on))
        except WorkError as error:  # not a fault of the trained model
            log.warning(
                "%s, the version to compare with, could not be measured: %s",
                in_words(files.version),
                error.what,
            )
            return None
        finally:
            file.unlink()
            answers_file(file).unlink(missing_ok=True)


def export_graph(
    pipeline: Pipeline,
    installation: Installation,
    snapshot: snapshots.Snapshot,
    trained: Trained[GraphTraining],
    folder: Path,
) -> GraphExport:
    """Return the export of trained weights.

    Raises:
        InputError: the test split has no rows.
    """
    encoding = trained.details.encoding
    test, target = split_rows(pipeline, snapshot, encoding, folder)
    exporter = exporter_of(
        pipeline, snapshot, encoding, trained.checkpoint, folder, installation.timing_caches
    )
    return GraphExport(
        pipeline,
        exporter,
        evidence_of(pipeline, exporter, test, target),
        baseline_on(pipeline, snapshot, encoding, target),
        encoding,
        first_rows(pipeline, snapshot, pipeline.export.golden_rows),
        trained.details.reference,
    )


def baseline_on(
    pipeline: Pipeline, snapshot: snapshots.Snapshot, encoding: Encoding, target: Array
) -> Baseline:
    """Return the constant answer that the model must beat on the test split."""
    shares, name = pipeline.dataset.split, snapshot.schema.target
    train = snapshots.scan(snapshot, "train", shares, columns=(name,))
    targets = np.concatenate([encoding.encode_target(batch) for batch in train])
    return baseline_of(answers_of(encoding), targets, target)


def beside_constant(
    candidate: GraphCandidate, meaning: Answers, target: Array, baseline: Baseline
) -> GraphCandidate:
    """Return the candidate, refused with a reason if it is no better than a constant answer.

    Args:
        candidate: a measured candidate.
        meaning: interprets its answers.
        target: the test split's target.
        baseline: the constant answer.
    """
    stage, path = candidate.stage, candidate.path
    if not candidate.passed or not candidate.is_served or stage is None or path is None:
        return candidate

    def balanced() -> float:
        return meaning.balanced(read_answers(path), target)

    metric = math.nan if stage.metric is None else stage.metric
    return replace(candidate, reason=baseline.refusal(metric, balanced))


def _with_size(candidate: GraphCandidate) -> GraphStage | None:
    return candidate.stage and replace(candidate.stage, size_bytes=candidate.size_bytes)


def exporter_of(
    pipeline: Pipeline,
    snapshot: snapshots.Snapshot,
    encoding: Encoding,
    checkpoint: Path,
    folder: Path,
    timing_caches: Path | None = None,
) -> "Exporter":
    """Return the exporter that makes and measures the variants of trained weights.

    Args:
        pipeline: the pipeline of the model.
        snapshot: the snapshot with the rows for calibration and validation.
        encoding: the encoding of rows as tensors.
        checkpoint: the folder with the weights.
        folder: an empty folder for the variants' files.
        timing_caches: the permanent folder of TensorRT's timing caches, which speed up the next
            build of an engine.
    """
    from millrace.export.onnx.onnx_exporter import Exporter
    from millrace.export.tensorrt.engine import axes_of
    from millrace.models.families.family import build_network
    from millrace.models.families.network import Served
    from millrace.models.families.objective import objective_of
    from millrace.models.training.checkpoint import load_weights
    from millrace.models.training.compression.compression import remove_pruned

    objective = objective_of(encoding)
    network = build_network(pipeline.model, pipeline.folder, encoding, objective)
    load_weights(checkpoint, network)
    remove_pruned(pipeline.training, network)

    def validation() -> "Evidence":
        rows, target = split_rows(pipeline, snapshot, encoding, folder, "validation")
        return evidence_of(pipeline, exporter, rows, target)

    exporter = Exporter(
        served=Served(network, objective),
        objective=objective,
        read=encoding.input,
        calibration=partial(_calibration, pipeline, snapshot, encoding),
        validation=validation,
        folder=folder,
        threads=pipeline.serving.intra_op_thread_count,
        gpu=pipeline.serving.on_gpu,
        spec=pipeline.export,
        axes=axes_of(encoding.input, pipeline.serving.max_batch_size, pipeline.export.golden_rows),
        timing_caches=timing_caches,
        tensorrt=_tensorrt(pipeline),
    )
    return exporter


def evidence_of(pipeline: Pipeline, exporter: "Exporter", rows: Array, target: Array) -> "Evidence":
    """Return the network's answers to rows, with which every variant is compared."""
    from millrace.export.onnx.measure_graph import gather_evidence

    return gather_evidence(
        *(exporter.served, exporter.objective, exporter.read, rows, target),
        golden_rows=pipeline.export.golden_rows,
        batch_rows=pipeline.serving.max_batch_size,
        trained_as=exporter.trained_as,
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
    """Return TensorRT's options.

    Return None if serving does not use TensorRT, or if this machine has no GPU.
    """
    accelerator = pipeline.serving.accelerator
    if accelerator is None:
        return None
    if this_gpu() is None:
        log.warning(
            "this machine has no NVIDIA GPU, so the variants are measured without "
            "serving.accelerator; a release may refuse answers that differ from the measured ones"
        )
        return None
    return provider_options(accelerator)


def write_golden(folder: Path, encoding: Encoding, evidence: "Evidence", first: pa.Table) -> Path:
    """Write the golden batch as the ONNX model's input, and return the path of the file.

    If the model reads a text, the file also has the texts of the batch, as a client sends them.
    """
    arrays = {evidence.read.name: evidence.golden, "answers": evidence.golden_answers}
    if encoding.tokenizer is not None:
        sent = encoding.request(first)[TEXT].ravel().tolist()
        # as JSON, because NumPy's string type loses a NUL at the end
        arrays[TEXT] = np.array(json.dumps(sent))
    path = folder / "golden.npz"
    np.savez(path, **arrays)
    return path
