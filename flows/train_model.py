"""Flow: from a dataset to a registered model."""

import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from prefect import flow

from millrace.export.candidate import Candidate
from millrace.export.certificate import Certificate
from millrace.flows import environment, settings
from millrace.flows.deployments.left_flow_runs import noted_flow_run
from millrace.flows.services.starting import once_started
from millrace.flows.train_language import LanguageOutcome, train_language
from millrace.models.common.installation import Installation
from millrace.models.common.ray_cluster import connect_to_ray
from millrace.models.config.family_keys import CAUSAL_LM
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.pipeline_file import load_pipeline, resolved_yaml
from millrace.models.data.snapshots import Snapshot
from millrace.models.families.pretrained import pin_revision
from millrace.models.registry.gates import Promotion
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.tracking import TrackedRun, check_reachable, tracked_run
from millrace.models.registry.version_files import ModelVersion
from millrace.tasks.export import export_candidates
from millrace.tasks.ingest import ingest_dataset
from millrace.tasks.promote import promote_version
from millrace.tasks.reference_version import names_versions, pinned_versions
from millrace.tasks.register import log_evidence, register_version
from millrace.tasks.reports.run_report import publish_training
from millrace.tasks.run_names import code_version, name_run
from millrace.tasks.tracking_outage import await_mlflow, weights_named
from millrace.tasks.train import train_workers


@dataclass(frozen=True)
class TrainOutcome:
    """What a run of the flow came to.

    Attributes:
        snapshot: what was learnt from.
        candidates: the forms that were measured.
        certificate: evidence of the chosen one.
        version: the registered version.
        promotion: its aliases, and why.
        run: the MLflow run.
        recoveries: the epochs that were done at each recovery from a failure of workers.
    """

    snapshot: Snapshot
    candidates: tuple[Candidate, ...]
    certificate: Certificate
    version: ModelVersion
    promotion: Promotion
    run: TrackedRun
    recoveries: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        """Return what `--json` prints: no column statistics, and no paths that are gone by then."""
        facts = ("name", "uri", "version", "digest", "rows", "created", "quarantined", "reasons")
        return {
            "snapshot": {name: getattr(self.snapshot, name) for name in facts},
            "candidates": [replace(candidate, path=None) for candidate in self.candidates],
            "certificate": self.certificate,
            "version": self.version,
            "promotion": self.promotion,
            "run": self.run,
            "recoveries": self.recoveries,
        }


@flow(name="train_model", retries=0, persist_result=False, validate_parameters=False)
def train_model(
    pipeline_file: str, overrides: list[str] | None = None
) -> TrainOutcome | LanguageOutcome:
    """Ingest, train, export, certify, register and decide on the aliases.

    Args:
        pipeline_file: path of the YAML file.
        overrides: `key=value` for single keys of it.
    """
    pipeline = load_pipeline(Path(pipeline_file), overrides or ())
    places = environment.apply(settings.load()).places()
    uri = places.tracking_uri
    once_started(places.run, uri, partial(check_reachable, uri))
    name_run(f"train {pipeline.name}", pipeline.name)
    if names_versions(pipeline):
        pipeline = pinned_versions(pipeline, registry_of(places))
    snapshot = ingest_dataset(pipeline, places)
    with (
        noted_flow_run(places.run),
        tracked_run(places, pipeline.name, code_version(pipeline.folder)) as run,
        connect_to_ray(places.ray_address, pipeline.training.num_workers),
        weights_named(places, run),
    ):
        pipeline = pipeline.with_model(pin_revision(pipeline.model, pipeline.folder))
        run.log_params(pipeline.model_dump(mode="json"))
        run.log_text(resolved_yaml(pipeline), "pipeline.yaml")
        run.log_dataset(snapshot.name, snapshot.uri, snapshot.version, snapshot.digest)
        if pipeline.model.family == CAUSAL_LM:
            return train_language(pipeline, places, snapshot, run)
        outcome = _train_and_register(pipeline, places, snapshot, run)
    name_run(f"train {pipeline.name} {outcome.version.version}", pipeline.name)
    publish_training(
        pipeline,
        places,
        snapshot=outcome.snapshot,
        candidates=outcome.candidates,
        certificate=outcome.certificate,
        version=outcome.version,
        promotion=outcome.promotion,
        run=outcome.run,
    )
    return outcome


def _train_and_register(
    pipeline: Pipeline, places: Installation, snapshot: Snapshot, run: TrackedRun
) -> TrainOutcome:
    trained = train_workers(pipeline, places, snapshot, run)
    with tempfile.TemporaryDirectory(dir=places.staging) as folder:
        exported = export_candidates(
            pipeline, snapshot, trained, Path(folder), places.timing_caches
        )
        await_mlflow(places.tracking_uri)
        log_evidence(pipeline, trained, exported, run)
        await_mlflow(places.tracking_uri)
        version = register_version(pipeline, places, snapshot, exported, run)
        await_mlflow(places.tracking_uri)
        promotion = promote_version(pipeline, places, exported, version)
    return TrainOutcome(
        snapshot,
        exported.candidates,
        exported.certificate,
        version,
        promotion,
        run,
        trained.recoveries,
    )
