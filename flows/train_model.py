"""Flow: from a dataset to a registered model."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from prefect import flow

from millrace.export.candidate import AnyCandidate
from millrace.flows import settings, tool_variables
from millrace.flows.deployments.left_flow_runs import record_flow_run
from millrace.flows.heartbeats import leave_out_heartbeats
from millrace.flows.run_state import wait_for_start
from millrace.flows.training_start import connect_for_training
from millrace.models.common.installation import Installation
from millrace.models.common.slow_step import report_while
from millrace.models.config.model_kind import ModelKind, kind_of_family
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.pipeline_file import load_pipeline
from millrace.models.data.snapshot_use import hold_ingested
from millrace.models.data.snapshots import DATASETS, Snapshot
from millrace.models.families.pretrained import pin_revision
from millrace.models.registry.gates import Promotion
from millrace.models.registry.mlflow_registry import prepare_registration
from millrace.models.registry.tracking import TrackedRun, check_reachable, tracked_run
from millrace.models.registry.version_files import ModelVersion
from millrace.tasks.alerts import alert_failure
from millrace.tasks.export import export_candidates
from millrace.tasks.kinds.steps import KindReport, steps_of
from millrace.tasks.plan_record import record_run
from millrace.tasks.plan_run import planned_beside, work_of_run
from millrace.tasks.progress import recovery
from millrace.tasks.register import promote_version, register_version
from millrace.tasks.reports.drawing import Drawing, drawing_process
from millrace.tasks.reports.run_report import publish_training
from millrace.tasks.run_inputs import inputs_of_failed, log_inputs_beside
from millrace.tasks.run_names import code_version, name_run
from millrace.tasks.tracking_outage import await_mlflow, weights_named
from millrace.tasks.train import ingest_dataset, prepare_training, train_on_ray


@dataclass(frozen=True)
class TrainOutcome:
    """The result of a run of the flow.

    Attributes:
        snapshot: the snapshot of the dataset that the model was trained on.
        candidates: the exported variants that were measured.
        certificate: the measured evidence for the chosen variant.
        version: the registered version.
        promotion: the version's aliases, and why it got them.
        run: the MLflow run.
        recoveries: for each recovery from a failure of workers, the epochs or steps done by then.
        failures: the recoveries, described in words.
        report: the report of the model's kind on the run.
        gates: the keys of the pipeline file that may refuse a candidate.
    """

    snapshot: Snapshot
    candidates: tuple[AnyCandidate, ...]
    certificate: Any
    version: ModelVersion
    promotion: Promotion
    run: TrackedRun
    recoveries: tuple[int, ...]
    failures: Sequence[str]
    report: KindReport
    gates: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        """Return what `--json` prints: no column statistics, and no paths of temporary files."""
        facts = (
            *("name", "uri", "version", "digest", "rows", "created", "files_read"),
            *("quarantined", "reasons", "repeated_keys"),
        )
        return {
            "snapshot": {name: getattr(self.snapshot, name) for name in facts},
            **self.report.json,
            "candidates": [
                # version 0.2 replaced `is_engine` by its opposite, `is_served`
                {**vars(replace(each, path=None)), "is_engine": not each.is_served}
                for each in self.candidates
            ],
            "certificate": self.certificate,
            "version": self.version,
            "promotion": self.promotion,
            "run": self.run,
            "recoveries": self.recoveries,
        }


@flow(
    name="train_model",
    retries=0,
    persist_result=False,
    validate_parameters=False,
    on_running=[leave_out_heartbeats],
    on_failure=[alert_failure],
    on_crashed=[alert_failure],
)
def train_model(pipeline_file: str, overrides: list[str] | None = None) -> TrainOutcome:
    """Ingest, train, export, certify, register and decide on the aliases.

    Args:
        pipeline_file: path of the YAML file.
        overrides: `key=value` for single keys of the file.
    """
    pipeline = load_pipeline(Path(pipeline_file), overrides or ())
    kind = kind_of_family(pipeline.model.family)
    chosen = tool_variables.apply(settings.load())
    installation = chosen.installation()
    uri = installation.tracking_uri
    wait_for_start(installation.run, uri, partial(check_reachable, uri))
    warm = chosen.warm_ray()
    if warm is not None:
        warm.prepare(pipeline.training.workers)
    name_run(f"train {pipeline.name}", pipeline.name)
    pipeline = steps_of(kind).pin_versions(pipeline, installation)
    with (
        connect_for_training(chosen, pipeline),
        hold_ingested(
            installation.table(DATASETS, pipeline.name),
            partial(ingest_dataset, pipeline, installation),
        ) as snapshot,
        record_flow_run(installation.run),
        tracked_run(installation, pipeline.name, code_version(pipeline.folder)) as run,
        weights_named(installation, run),
        drawing_process() as drawing,
    ):
        pipeline = pipeline.with_model(pin_revision(pipeline.model, pipeline.folder))
        outcome = _train_and_register(kind, pipeline, installation, snapshot, run, drawing)
        name_run(f"train {pipeline.name} {outcome.version.version}", pipeline.name)
        publish_training(
            pipeline.name,
            installation,
            snapshot=snapshot,
            report=outcome.report,
            version=outcome.version,
            promotion=outcome.promotion,
            run=run,
            drawing=drawing,
        )
    return outcome


def _train_and_register(
    kind: ModelKind,
    pipeline: Pipeline,
    installation: Installation,
    snapshot: Snapshot,
    run: TrackedRun,
    drawing: Drawing,
) -> TrainOutcome:
    uri = installation.tracking_uri
    with inputs_of_failed(pipeline, snapshot, run):
        prepared = prepare_training(kind, pipeline, installation, snapshot, run)
    prepare_registration()
    asked = work_of_run(kind, pipeline, installation, snapshot, prepared)
    with (
        planned_beside(asked, installation) as planned,
        log_inputs_beside(pipeline, snapshot, run),
    ):
        trained = train_on_ray(kind, installation, prepared, run)
    drawing.begin(steps_of(kind).draw_training(trained))
    with tempfile.TemporaryDirectory(dir=installation.staging) as folder:
        exported = export_candidates(
            kind, pipeline, installation, snapshot, trained, Path(folder), drawing
        )
        report = steps_of(kind).report(pipeline, snapshot, trained, exported)
        report = record_run(planned, kind, installation, trained, exported, report, run)
        with report_while("registering the model"):
            await_mlflow(uri)
            version = register_version(
                kind, pipeline, installation, snapshot, exported, report, run
            )
            await_mlflow(uri)
            promotion = promote_version(pipeline, installation, exported, version)
    return TrainOutcome(
        snapshot=snapshot,
        candidates=exported.candidates,
        certificate=exported.certificate,
        version=version,
        promotion=promotion,
        run=run,
        recoveries=trained.recoveries,
        failures=[recovery(done, prepared.job.unit) for done in trained.recoveries],
        report=report,
        gates=kind.gates,
    )
