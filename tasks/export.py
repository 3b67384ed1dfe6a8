"""Step: from trained weights to measured candidates and a certificate."""

import math
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from millrace.export.baseline import Baseline, baseline_of
from millrace.export.candidate import Candidate, choose, fallback
from millrace.export.certificate import Certificate, Stage
from millrace.models.common.arrays import Array
from millrace.models.common.errors import WorkError
from millrace.models.common.hardware import measure_other_load, this_machine
from millrace.models.config.pipeline import Pipeline
from millrace.models.data import snapshots
from millrace.models.inference.answers import answers_of
from millrace.models.inference.features import Encoding
from millrace.models.inference.row_batches import answer_rows
from millrace.models.registry.named_version import in_words
from millrace.models.registry.version_files import GraphPackage
from millrace.tasks.compare import first_rows, split_rows
from millrace.tasks.kinds.graph.graph_export import (
    evidence_of,
    exporter_of,
    write_files,
    write_golden,
)
from millrace.tasks.progress import bar, log
from millrace.tasks.retry import step
from millrace.tasks.train import Trained

if TYPE_CHECKING:
    from millrace.export.measure import Evidence
    from millrace.export.onnx.onnx_exporter import Exporter
    from millrace.models.families.objective import Objective


BUSY = 0.3
"""Share of the cores above which others are told of: a measurement takes one or all of them."""


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
    test, target = split_rows(pipeline, snapshot, trained.encoding)
    first = first_rows(pipeline, snapshot, pipeline.export.golden_rows)
    exporter = exporter_of(pipeline, snapshot, trained, folder, timing_caches)
    evidence = evidence_of(pipeline, exporter, test, target)
    baseline = _baseline(pipeline, snapshot, trained.encoding, target)
    candidates = _measured(pipeline, exporter, evidence, baseline)
    chosen = choose(candidates, pipeline.export) or fallback(candidates, pipeline.export)
    if chosen is None or chosen.path is None:
        reasons = "; ".join(f"{c.name}: {c.reason}" for c in candidates)
        raise WorkError("no form of the model can be used", seen=reasons)
    objective = exporter.objective
    if not chosen.passed:
        log.warning("no form holds its limits; %s is the nearest: %s", chosen.name, chosen.reason)
    certificate = replace(
        _certificate(pipeline, snapshot, objective, evidence, candidates, chosen),
        reference=_reference(trained.reference, exporter, evidence),
        constant=baseline.metric,
    )
    files = write_files(folder, pipeline, trained.encoding, certificate)
    files["golden.npz"] = write_golden(folder, trained.encoding, evidence, first)
    answers = _answers(chosen.path, evidence)
    return Exported(
        candidates, chosen, certificate, files, answers, target, exporter.reproduction()
    )


def _baseline(
    pipeline: Pipeline, snapshot: snapshots.Snapshot, encoding: Encoding, target: Array
) -> Baseline:
    """Return the constant answer that the model has to beat on the test split."""
    shares, name = pipeline.dataset.split, snapshot.schema.target
    train = snapshots.scan(snapshot, "train", shares, columns=(name,))
    targets = np.concatenate([encoding.encode_target(batch) for batch in train])
    return baseline_of(answers_of(encoding), targets, target)


def _beside_constant(
    candidate: Candidate, evidence: "Evidence", objective: "Objective", baseline: Baseline
) -> Candidate:
    """Return a form that held its gates with the reason why not, if it beats no constant."""
    stage, path = candidate.stage, candidate.path
    if not candidate.passed or candidate.is_engine or stage is None or path is None:
        return candidate

    def balanced() -> float:
        return objective.balanced(_answers(path, evidence), evidence.target)

    metric = math.nan if stage.metric is None else stage.metric
    return replace(candidate, reason=baseline.refusal(metric, balanced))


def _measured(
    pipeline: Pipeline, exporter: "Exporter", evidence: "Evidence", baseline: Baseline
) -> tuple[Candidate, ...]:
    """Make and measure every form, and tell of each as it is done."""
    if not baseline.is_telling:
        log.warning("the test split has one answer only, and tells little of any model")
    candidates: list[Candidate] = []
    if (used := measure_other_load()) > BUSY:
        log.warning(
            "others are using this machine (%.0f%% of its cores): speeds, and the choice by them, "
            "are less certain than on a quiet one",
            100 * used,
        )
    with bar("export", len(pipeline.export.candidates), "candidates") as shown:
        for made in exporter.candidates(evidence, pipeline.serving.latency_slo_ms):
            candidate = _beside_constant(made, evidence, exporter.objective, baseline)
            candidates.append(candidate)
            # a rescue that was not asked for is beyond the count
            shown.update(min(len(candidates), len(pipeline.export.candidates)), candidate.name)
            for note in candidate.notes:
                log.info("%s: %s", candidate.name, note)
            if candidate.reason:
                log.warning("%s is refused: %s", candidate.name, candidate.reason)
    return tuple(candidates)


def _certificate(
    pipeline: Pipeline,
    snapshot: snapshots.Snapshot,
    objective: "Objective",
    evidence: "Evidence",
    candidates: tuple[Candidate, ...],
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
        batch_sizes=evidence.batch_sizes,
    )


def _sized(candidate: Candidate) -> Stage | None:
    return candidate.stage and replace(candidate.stage, size_bytes=candidate.size_bytes)


def _reference(
    package: GraphPackage | None, exporter: "Exporter", evidence: "Evidence"
) -> Stage | None:
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


def _answers(path: Path, evidence: "Evidence") -> Array:
    from millrace.models.inference.onnx_session import OnnxSession

    session = OnnxSession(path, threads=this_machine().cores)
    return answer_rows(session.answer, evidence.test, evidence.read)
