"""Step: from trained weights to measured candidates and a certificate."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from export.candidate import Candidate, choose, fallback
from export.certificate import Certificate, Stage
from models import snapshots
from models.arrays import Array
from models.errors import WorkError
from models.features import TEXT, Encoding
from models.gpu import this_gpu
from models.machine import this_machine
from models.package import Package
from models.pieces import answered
from models.pipeline import Pipeline
from models.pipeline_file import resolved_yaml
from models.tensorrt_options import provider_options
from tasks.compared import first_rows, split_rows
from tasks.progress import bar, log
from tasks.reference import in_words
from tasks.retry import step
from tasks.train import Trained

if TYPE_CHECKING:
    from export.exporter import Exporter
    from export.measure import Evidence
    from models.objective import Objective


@dataclass(frozen=True)
class Exported:
    """What the export left.

    Attributes:
        candidates: every form that was asked for, measured or with the reason why not.
        chosen: the one to register.
        certificate: its evidence.
        files: the files that go beside the model, by name.
        answers: the chosen form's answers to the test split, `[rows, outputs]`.
        target: the test split's target.
        reproduction: what makes the chosen form again: programs, their commands and what they read.
    """

    candidates: tuple[Candidate, ...]
    chosen: Candidate
    certificate: Certificate
    files: dict[str, Path]
    answers: Array
    target: Array
    reproduction: tuple[Path, ...] = ()


@step(timeout_seconds=24 * 3600, retries=0)
def export_candidates(
    pipeline: Pipeline,
    snapshot: snapshots.Snapshot,
    trained: Trained,
    folder: Path,
    timing_caches: Path | None = None,
) -> Exported:
    """Export, measure, choose and certify.

    Args:
        pipeline: what to export.
        snapshot: gives the calibration rows and the test split.
        trained: weights and encoding.
        folder: an empty folder for the files, kept until the version is registered.
        timing_caches: folder, kept, of what speeds up the next build of an engine.

    Raises:
        WorkError: no form could be made that gives finite answers.
        InputError: the test split has no rows.
    """
    from export.measure import gather_evidence
    from models.objective import objective_of

    objective = objective_of(trained.encoding)
    test, target = split_rows(pipeline, snapshot, trained.encoding)
    first = first_rows(pipeline, snapshot, pipeline.export.golden_rows)
    exporter = _exporter(pipeline, snapshot, trained, objective, folder)
    exporter = replace(exporter, timing_caches=timing_caches, tensorrt=_tensorrt(pipeline))
    rows, full = pipeline.export.golden_rows, pipeline.serving.max_batch_size
    evidence = gather_evidence(
        *(exporter.served, objective, exporter.read, test, target),
        golden_rows=rows,
        batch_rows=full,
    )
    candidates: list[Candidate] = []
    with bar("export", len(pipeline.export.candidates), "candidates") as shown:
        slo = pipeline.serving.latency_slo_ms
        for candidate in exporter.candidates(evidence, slo):
            candidates.append(candidate)
            shown.update(len(candidates), candidate.name)
            for note in candidate.notes:
                log.info("%s: %s", candidate.name, note)
            if candidate.reason:
                log.warning("%s is refused: %s", candidate.name, candidate.reason)
    chosen = choose(tuple(candidates), pipeline.export) or fallback(tuple(candidates))
    if chosen is None or chosen.path is None:
        reasons = "; ".join(f"{c.name}: {c.reason}" for c in candidates)
        raise WorkError("no form of the model can be used", seen=reasons)
    _warn_if_useless(objective, evidence)
    certificate = replace(
        _certificate(pipeline, snapshot, objective, evidence, candidates, chosen),
        reference=_reference(trained.reference, exporter, evidence),
    )
    files = _write_files(folder, pipeline, trained.encoding, certificate)
    files["golden.npz"] = _write_golden(folder, trained.encoding, evidence, first)
    answers = _answers(chosen.path, evidence)
    return Exported(
        tuple(candidates), chosen, certificate, files, answers, target, exporter.reproduction()
    )


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


def _warn_if_useless(objective: "Objective", evidence: "Evidence") -> None:
    """Say so where the model is no better than an answer that never looks at the row."""
    if objective.metric == "accuracy":
        baseline = float(np.bincount(evidence.target).max() / len(evidence.target))
    else:
        baseline = 0.0
    if evidence.metric <= baseline:
        log.warning(
            "the model is no better than always giving the same answer: %s %.4f against %.4f; "
            "try more epochs or another learning rate",
            objective.metric,
            evidence.metric,
            baseline,
        )


def _exporter(
    pipeline: Pipeline,
    snapshot: snapshots.Snapshot,
    trained: Trained,
    objective: "Objective",
    folder: Path,
) -> "Exporter":
    from export.engine import axes_of
    from export.exporter import Exporter
    from export.measure import gather_evidence
    from models.checkpoint import load_weights
    from models.compression import remove_pruned
    from models.families import build_network
    from models.network import Served

    encoding = trained.encoding
    network = build_network(pipeline.model, pipeline.folder, encoding, objective)
    load_weights(trained.checkpoint, network)
    remove_pruned(pipeline.training, network)

    def calibration() -> Iterator[Array]:
        left, columns = pipeline.export.calibration_rows, snapshot.schema.features
        shares = pipeline.dataset.split
        for batch in snapshots.scan(snapshot, "train", shares, columns=columns):
            rows = encoding.encode(batch)[:left]
            left -= len(rows)
            trimmed = encoding.input.trimmed
            yield from (trimmed(rows[start : start + 64]) for start in range(0, len(rows), 64))
            if left <= 0:
                return

    served = Served(network, objective)

    def validation() -> "Evidence":
        rows, target = split_rows(pipeline, snapshot, encoding, "validation")
        golden, full = pipeline.export.golden_rows, pipeline.serving.max_batch_size
        return gather_evidence(
            *(served, objective, encoding.input, rows, target), golden_rows=golden, batch_rows=full
        )

    return Exporter(
        served=served,
        objective=objective,
        read=encoding.input,
        calibration=calibration,
        validation=validation,
        folder=folder,
        threads=pipeline.serving.intra_op_thread_count,
        spec=pipeline.export,
        axes=axes_of(encoding.input, pipeline.serving.max_batch_size, pipeline.export.golden_rows),
    )


def _certificate(
    pipeline: Pipeline,
    snapshot: snapshots.Snapshot,
    objective: "Objective",
    evidence: "Evidence",
    candidates: list[Candidate],
    chosen: Candidate,
) -> Certificate:
    machine = this_machine()
    return Certificate(
        model=pipeline.name,
        candidate=chosen.name,
        digest=chosen.digest,
        dataset=snapshot.name,
        dataset_version=snapshot.version,
        dataset_digest=snapshot.digest,
        test_rows=len(evidence.target),
        golden_rows=len(evidence.golden),
        metric_name=objective.metric,
        max_metric_loss=pipeline.export.max_metric_loss,
        stages=(evidence.stage, *(s for c in candidates if (s := _sized(c)))),
        passed=chosen.passed,
        machine=str(machine),
        machine_kind=machine.kind,
    )


def _sized(candidate: Candidate) -> Stage | None:
    return candidate.stage and replace(candidate.stage, size_bytes=candidate.size_bytes)


def _reference(package: Package | None, exporter: "Exporter", evidence: "Evidence") -> Stage | None:
    """Measure the version that the model is shown beside, as its forms are; None without one."""
    if package is None:
        return None
    form = package.version.tags.get("millrace.candidate", "onnx")
    file = exporter.folder / "reference.onnx"
    shutil.copyfile(package.model, file)
    try:
        name = f"{in_words(package.version)}, {form}"
        return _sized(exporter.measured(name, file, evidence))
    except WorkError as error:  # no fault of the model that was trained
        log.warning("%s could not be measured: %s", in_words(package.version), error.what)
        return None
    finally:
        file.unlink()


def _write_files(
    folder: Path, pipeline: Pipeline, encoding: Encoding, certificate: Certificate
) -> dict[str, Path]:
    texts = {
        "encoding.json": encoding.to_json(),
        "certificate.json": certificate.to_json(),
        "pipeline.yaml": resolved_yaml(pipeline),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    return {name: folder / name for name in texts}


def _write_golden(folder: Path, encoding: Encoding, evidence: "Evidence", first: pa.Table) -> Path:
    """Write the golden batch as the graph reads it, of a text also as a client sends it."""
    arrays = {evidence.read.name: evidence.golden, "answers": evidence.golden_answers}
    if encoding.tokenizer is not None:
        sent = encoding.request(first)[TEXT].ravel().tolist()
        # as JSON: NumPy's own text loses a NUL at the end
        arrays[TEXT] = np.array(json.dumps(sent))
    path = folder / "golden.npz"
    np.savez(path, **arrays)
    return path


def _answers(path: Path, evidence: "Evidence") -> Array:
    from models.onnx_session import OnnxSession

    session = OnnxSession(path, threads=this_machine().cores)
    return answered(session.answer, evidence.test, evidence.read)
