"""What a language model answers at each step of the line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from millrace.models.common.errors import InputError
from millrace.models.config.model_uri import is_model_uri
from millrace.tasks.kinds.steps import KindSteps

if TYPE_CHECKING:
    from pathlib import Path

    from millrace.models.common.installation import Installation
    from millrace.models.config.pipeline import Pipeline
    from millrace.models.data.schema import Column
    from millrace.models.data.snapshots import Snapshot
    from millrace.models.registry.tracking import TrackedRun
    from millrace.models.registry.version_files import Package
    from millrace.serving.batch.monitoring.live_model import LivePrompts
    from millrace.serving.batch.prompts.openvino_job import PromptJob
    from millrace.serving.batch.prompts.prompt_rows import Prompts
    from millrace.serving.batch.prompts.vllm_job import VllmJob
    from millrace.serving.triton.client import TritonClient
    from millrace.tasks.kinds.language.language_certify import LiveLanguage
    from millrace.tasks.kinds.language.language_evidence import LanguageEvidence
    from millrace.tasks.kinds.language.language_export import LanguageExport
    from millrace.tasks.kinds.language.language_predict import LiveText
    from millrace.tasks.kinds.language.language_train import DecoderTraining
    from millrace.tasks.kinds.steps import (
        Exported,
        KindReport,
        LiveSample,
        Prepared,
        Question,
        Trained,
    )


class LanguageSteps(KindSteps):
    """The steps of a language model; each is imported when it is taken."""

    def pin_versions(self, pipeline: Pipeline, places: Installation) -> Pipeline:
        """Pin the version that training starts from, and the one that drafts."""
        from millrace.models.language.base_version import pinned_base
        from millrace.models.registry.mlflow_registry import registry_of
        from millrace.tasks.kinds.language.draft_model import with_pinned_draft

        if is_model_uri(pipeline.model.pretrained):
            pipeline = pipeline.with_model(pinned_base(pipeline.model, registry_of(places)))
        if pipeline.serving.generation.draft is not None:
            pipeline = with_pinned_draft(pipeline, registry_of(places))
        return pipeline

    def prepare(
        self, pipeline: Pipeline, places: Installation, snapshot: Snapshot, run: TrackedRun
    ) -> Prepared[DecoderTraining]:
        """Fetch the base, make the tokens, and measure what the decoder has to beat."""
        from millrace.tasks.kinds.language.language_train import prepare_decoder

        return prepare_decoder(pipeline, places, snapshot, run)

    def describe_progress(self, metrics: Mapping[str, Any]) -> str:
        """Return loss, validation perplexity and throughput."""
        from millrace.tasks.kinds.language.language_train import describe_steps

        return describe_steps(metrics)

    def export(
        self,
        pipeline: Pipeline,
        places: Installation,
        snapshot: Snapshot,
        trained: Trained[DecoderTraining],
        folder: Path,
    ) -> LanguageExport:
        """Export for OpenVINO GenAI or vLLM."""
        from millrace.tasks.kinds.language.language_export import export_of

        return export_of(pipeline, places, trained, folder)

    def log_model(
        self, run: TrackedRun, files: Mapping[str, Path], evidence: Mapping[str, Path]
    ) -> Any:
        """Log the model's files to a run."""
        from millrace.tasks.kinds.language.language_files import log_language_model

        return log_language_model(run, files, evidence)

    def report(
        self,
        pipeline: Pipeline,
        snapshot: Snapshot,
        trained: Trained[DecoderTraining],
        exported: Exported,
    ) -> KindReport:
        """Return tables, pictures and samples of a run."""
        from millrace.tasks.kinds.language.language_report import report_language

        return report_language(pipeline, trained, exported)

    def evidence(self, package: Package, places: Installation) -> LanguageEvidence:
        """Return a version's files as a release needs them."""
        from millrace.tasks.kinds.language.language_evidence import LanguageEvidence
        from millrace.tasks.kinds.language.language_files import language_files

        return LanguageEvidence(language_files(package), places)

    def certify(self, places: Installation, client: TritonClient, package: Package) -> LiveLanguage:
        """Ask the live version its golden prompts, and measure its files on held-out text."""
        from millrace.tasks.kinds.language.language_certify import certify_language
        from millrace.tasks.kinds.language.language_files import language_files

        return certify_language(places, client, language_files(package))

    def predict(self, client: TritonClient, package: Package, question: Question) -> LiveText:
        """Let the live version continue a text."""
        from millrace.tasks.kinds.language.language_files import language_files
        from millrace.tasks.kinds.language.language_predict import predict_text

        return predict_text(client, language_files(package), question)

    def load_request(self, package: Package) -> Mapping[str, Any]:
        """Refuse: it answers in streams."""
        raise InputError(
            f"{package.version.model} answers in streams",
            valid="a model that takes rows and gives a class or a number",
        )

    def batch_job(
        self, pipeline: Pipeline, package: Package, places: Installation, held: tuple[Column, ...]
    ) -> PromptJob | VllmJob:
        """Return what continues prompts."""
        from millrace.tasks.kinds.language.language_batch import prompt_job
        from millrace.tasks.kinds.language.language_files import language_files

        return prompt_job(pipeline, language_files(package), places, held)

    def with_bins(self, job: Any, snapshot: Snapshot) -> Prompts:
        """Return the job with the bins of lengths."""
        from millrace.tasks.kinds.language.language_batch import with_prompt_bins

        return with_prompt_bins(job, snapshot)

    def live_sample(self, job: Any) -> LiveSample:
        """Return how many prompts are asked of the live model."""
        from millrace.tasks.kinds.language.language_batch import sample_of

        return sample_of(job)

    def live_model(
        self, job: Any, package: Package, places: Installation, client: TritonClient
    ) -> tuple[LivePrompts, float]:
        """Return the live model."""
        from millrace.tasks.kinds.language.language_batch import live_prompts
        from millrace.tasks.kinds.language.language_files import language_files

        return live_prompts(job, language_files(package), places, client)
