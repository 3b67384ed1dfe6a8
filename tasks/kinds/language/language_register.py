"""Steps: a language model's evidence in its run, and its chosen form in the registry."""

import math
from typing import TYPE_CHECKING

from millrace.models.common.errors import WorkError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.snapshots import Snapshot
from millrace.models.language.base_checkpoint import CHECKPOINT_TAG, checkpoint_digest
from millrace.models.registry.gates import Promotion
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.tracking import TrackedRun
from millrace.models.registry.version_files import ModelVersion
from millrace.tasks.kinds.language.fetch_base import base_tags
from millrace.tasks.kinds.language.language_report import (
    baselines_table,
    forms_table,
    pictures_of,
    samples,
)
from millrace.tasks.progress import log
from millrace.tasks.promote import promote
from millrace.tasks.retry import step

if TYPE_CHECKING:
    from millrace.tasks.kinds.language.language_export import ExportedForms
    from millrace.tasks.kinds.language.language_train import TrainedDecoder


@step(timeout_seconds=300)
def log_forms(trained: "TrainedDecoder", exported: "ExportedForms", run: TrackedRun) -> None:
    """Log certificate, forms, curve and samples to the run."""
    certificate = exported.certificate
    run.log_text(certificate.to_json(), "certificate.json")
    run.log_text(exported.golden.to_json(), "golden.json")
    for candidate in exported.candidates:
        stage, speed = candidate.stage, candidate.speed
        if stage is None or speed is None:
            continue
        values = {
            "perplexity": stage.perplexity,
            "mean_kl": stage.mean_kl,
            "top1_agreement": stage.top1_agreement,
            "size_bytes": candidate.size_bytes,
            "time_to_first_token_ms": speed.time_to_first_token_ms,
            "ms_per_token": speed.ms_per_token,
            **{f"tokens_per_second_{n}": rate for n, rate in speed.tokens_per_second.items()},
        }
        run.log_metrics({f"test.{candidate.name}.{k}": float(v) for k, v in values.items()})
    simpler = trained.baselines
    run.log_metrics({"test.unigram": simpler.unigram, "test.trigram": simpler.trigram})
    if simpler.base is not None:
        run.log_metrics({"test.base": simpler.base})
    run.log_text(forms_table(exported.candidates, certificate), "export/forms.md")
    run.log_text(samples(exported), "samples.md")
    for caption, figure in pictures_of(trained, exported).items():
        run.log_figure(figure, f"plots/{caption.lower().replace(' ', '_')}.png")
    for path in exported.reproduction:
        run.log_file(path, f"export/{path.name}" if path.is_dir() else "export")


@step(timeout_seconds=900)
def register_form(
    pipeline: Pipeline,
    places: Installation,
    snapshot: Snapshot,
    trained: "TrainedDecoder",
    exported: "ExportedForms",
    run: TrackedRun,
) -> ModelVersion:
    """Register the chosen form with its evidence."""
    certificate, chosen = exported.certificate, exported.chosen
    if chosen.stage is None:
        raise WorkError(f"{chosen.name} was chosen, but was not measured", seen=chosen.reason)
    tags = {
        "millrace.candidate": chosen.name,
        "millrace.certificate": "passed" if certificate.passed else f"failed: {chosen.reason}",
        "millrace.perplexity": f"{chosen.stage.perplexity:.4f}",
        "millrace.perplexity_increase": f"{chosen.stage.perplexity_increase:.4%}",
        "millrace.dataset": f"{snapshot.name} version {snapshot.version}",
        "millrace.dataset_digest": snapshot.digest,
        "millrace.tokenizer_digest": trained.tokens.tokenizer_digest,
        CHECKPOINT_TAG: checkpoint_digest(trained.checkpoint),
        **base_tags(pipeline.model),
    }
    if (draft := pipeline.serving.generation.draft) is not None:
        tags["millrace.draft"] = draft
    registry = registry_of(places)
    version = registry.register_form(
        *(run, pipeline.name, exported.form.engine, exported.form.files, exported.files, tags)
    )
    told = (
        baselines_table(trained.baselines, certificate),
        forms_table(exported.candidates, certificate),
    )
    registry.describe(version, "\n\n".join(told))
    run.rename(f"{version.model} version {version.version}")
    log.info("registered %s version %s (%s)", version.model, version.version, chosen.name)
    return version


@step(timeout_seconds=3600)
def promote_form(
    pipeline: Pipeline, places: Installation, exported: "ExportedForms", version: ModelVersion
) -> Promotion:
    """Set the aliases that the gates and `promotion.mode` allow, and say why on the version.

    A champion is compared by its perplexity on the same text.
    """
    stage = exported.chosen.stage
    return promote(
        pipeline,
        places,
        version,
        exported.chosen.reason,
        stage.perplexity if stage else math.nan,
        smaller_is_better=True,
    )
