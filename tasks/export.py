"""Step: export a trained model, measure its candidates, certify one; certify the live model."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from millrace.export.candidate import AnyCandidate
from millrace.export.certificate import Header, certify_candidates
from millrace.export.select import choose, ties_with
from millrace.models.common.errors import InputError, WorkError
from millrace.models.common.hardware import measure_other_load, this_machine
from millrace.models.common.installation import Installation
from millrace.models.config.model_kind import ModelKind
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.pipeline_file import resolved_yaml
from millrace.models.data.snapshots import Snapshot
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.tracking import TrackedRun
from millrace.models.registry.version_files import Package
from millrace.serving.triton.client import TritonClient
from millrace.tasks.kinds.certified import certified_snapshot
from millrace.tasks.kinds.steps import Export, Exported, LiveCertificate, Trained, steps_of
from millrace.tasks.plan_record import record_certified
from millrace.tasks.progress import bar, log
from millrace.tasks.reports.drawing import Drawing
from millrace.tasks.retry import step

BUSY = 0.3
"""Share of the cores that other programs may use without a warning.

A measurement needs all cores.
"""


@step(timeout_seconds=24 * 3600, retries=0)
def export_candidates(
    kind: ModelKind,
    pipeline: Pipeline,
    installation: Installation,
    snapshot: Snapshot,
    trained: Trained[Any],
    folder: Path,
    drawing: Drawing,
) -> Exported:
    """Export a trained model as candidates, measure them, and certify the one to register.

    Args:
        kind: the kind of the model.
        pipeline: says what to export.
        installation: paths and addresses of the installation.
        snapshot: gives the calibration rows and the test split.
        trained: the trained model.
        folder: an empty folder for the files, kept until the version is registered.
        drawing: draws the pictures of the candidates, while the chosen one is certified.

    Raises:
        WorkError: no variant could be made that gives finite answers.
        InputError: the test split has no rows, or no text, to measure the candidates on.
    """
    with ThreadPoolExecutor(1) as thread:
        load = thread.submit(measure_other_load)  # in which this command does not count
        export = steps_of(kind).export(pipeline, installation, snapshot, trained, folder)
    candidates = _measure(pipeline, export, load.result())
    chosen = choose(candidates, pipeline.export.objective, export.gates)
    if chosen is None:
        reasons = "; ".join(f"{each.name}: {each.reason}" for each in candidates)
        raise WorkError("no variant of the model can be used", seen=reasons)
    if not chosen.passed:
        log.warning(
            "no variant passes its gates; %s is the closest to the limits: %s",
            chosen.name,
            chosen.reason,
        )
    if others := ties_with(chosen, candidates, pipeline.export.objective, export.gates):
        log.info(
            "%s is the first of export.candidates that is best within the noise of %s, as %s is",
            chosen.name,
            pipeline.export.objective,
            ", ".join(others),
        )
    drawing.add(steps_of(kind).draw_export(export, candidates, chosen))
    header = _header(pipeline, snapshot, chosen)
    certificate = replace(
        export.certificate(header, candidates, chosen), forms=certify_candidates(candidates)
    )
    evidence = {
        **export.evidence(chosen, certificate),
        "certificate.json": certificate.to_json(),
        "pipeline.yaml": resolved_yaml(pipeline),
    }
    files = export.model_files(chosen)
    return Exported(
        export, candidates, chosen, certificate, files, _write_evidence(folder, evidence)
    )


def _measure(pipeline: Pipeline, export: Export, other_load: float) -> tuple[AnyCandidate, ...]:
    """Make and measure every candidate, and report each as it is done."""
    if other_load > BUSY:
        log.warning(
            "other programs use %.0f%% of this machine's cores: measured speeds, and the choice "
            "that depends on them, are less certain than on an idle machine",
            100 * other_load,
        )
    candidates: list[AnyCandidate] = []
    count = len(pipeline.export.candidates)
    with bar("export", count, "candidates") as shown:
        for candidate in export.candidates():
            candidates.append(candidate)
            # the export may add a candidate that is not in the count
            shown.update(min(len(candidates), count), candidate.name)
            for note in candidate.notes:
                log.info("%s: %s", candidate.name, note)
            if candidate.reason:
                log.warning("%s is refused: %s", candidate.name, candidate.reason)
    return tuple(candidates)


def _header(pipeline: Pipeline, snapshot: Snapshot, chosen: AnyCandidate) -> Header:
    machine = this_machine()
    return Header(
        model=pipeline.name,
        candidate=chosen.name,
        digest=chosen.digest,
        dataset=snapshot.name,
        dataset_version=snapshot.version,
        dataset_digest=snapshot.digest,
        passed=chosen.passed,
        machine=str(machine),
        machine_kind=machine.kind,
    )


def _write_evidence(folder: Path, evidence: Mapping[str, str | Path]) -> dict[str, Path]:
    """Write the texts, and return all files by name."""
    files = {}
    for name, content in evidence.items():
        files[name] = content if isinstance(content, Path) else folder / name
        if isinstance(content, str):
            files[name].write_text(content)
    return files


LIVE_FILE = "certificate-live.json"
"""File of the certificate with its live stage; not `certificate.json`, which releases overwrite."""


def certify_live(installation: Installation, model: str) -> LiveCertificate:
    """Compare the live version's answers with the certified ones, and measure its files again.

    The certificate with the live stage, and the measured speed beside its estimate, are logged to
    the run that made the version.

    Raises:
        InputError: the model is not served, its files differ from the registered files, or the
            snapshot has changed.
        TransientError: Triton or MLflow does not answer.
        WorkError: the model does not answer.
    """
    with TritonClient(installation.triton[0], checks=True) as client:
        package = _live_package(installation, client, model)
        found = steps_of(package.version.kind).certify(installation, client, package)
    run = TrackedRun(installation.tracking_uri, "", package.version.run_id)
    snapshot = certified_snapshot(installation, found.certificate)
    planned = record_certified(package, installation, snapshot)
    run.log_report({LIVE_FILE: found.certificate.to_json(), **planned}, {})
    return found


def _live_package(installation: Installation, client: TritonClient, model: str) -> Package:
    """Return the registered files of the version that is live."""
    number = client.live_version(model)
    if number is None:
        raise InputError(
            f"Triton does not serve {model!r}",
            hint="give a version the alias champion in the MLflow UI, then run `millrace release`, "
            "which says why if it refuses that version",
        )
    registry = registry_of(installation)
    return registry.fetch(registry.version(model, number))
