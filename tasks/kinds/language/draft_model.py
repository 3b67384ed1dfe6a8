"""The draft model for speculative decoding: checked early, pinned by a run, and fetched."""

from hashlib import sha256

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.language_spec import GenerationSpec
from millrace.models.config.model_uri import is_model_uri
from millrace.models.config.pipeline import Pipeline
from millrace.models.language.base_version import pinned_base
from millrace.models.registry.mlflow_registry import Registry, registry_of
from millrace.models.registry.named_version import in_words, version_named
from millrace.models.registry.version_files import ModelVersion
from millrace.serving.triton.language.draft_files import Tokens, require_fit
from millrace.serving.triton.version_folder import Draft


def names_base_or_draft(pipeline: Pipeline) -> bool:
    """Return whether a pipeline names a registered version as its base or as its draft model."""
    draft = pipeline.serving.generation.draft
    return draft is not None or is_model_uri(pipeline.model.pretrained)


def pin_base_and_draft(pipeline: Pipeline, installation: Installation) -> Pipeline:
    """Pin the registered versions of the base and of the draft model.

    Raises:
        InputError: a version does not exist, or is not a language model.
        TransientError: MLflow cannot be reached.
    """
    if is_model_uri(pipeline.model.pretrained):
        pipeline = pipeline.with_model(pinned_base(pipeline.model, registry_of(installation)))
    if pipeline.serving.generation.draft is not None:
        pipeline = with_pinned_draft(pipeline, registry_of(installation))
    return pipeline


def with_pinned_draft(pipeline: Pipeline, registry: Registry) -> Pipeline:
    """Return the pipeline with its draft model pinned to one version, as NAME/VERSION.

    Raises:
        InputError: there is no such version, or it is not a language model.
        TransientError: MLflow cannot be reached.
    """
    generation = pipeline.serving.generation
    if generation.draft is None:
        return pipeline
    found = _version(generation.draft, registry)
    return pipeline.with_generation(
        generation.model_copy(update={"draft": f"{found.model}/{found.version}"})
    )


def require_draft(pipeline: Pipeline, registry: Registry, tokenizer: bytes) -> None:
    """Check before the training that the draft model fits the model to train.

    The draft model must have the same tokenizer and enough context. The context is not checked if
    the model to train is pretrained, because its context is not known yet.

    Args:
        pipeline: the pipeline of the model to train.
        registry: the registry of the draft model.
        tokenizer: the content of the model's `tokenizer.json`.

    Raises:
        InputError: the draft model does not exist, has other files than were registered, or does
            not fit.
        TransientError: MLflow cannot be reached.
    """
    draft = draft_of(pipeline.serving.generation, registry)
    if draft is not None:
        model = pipeline.model
        context = None if model.pretrained else model.tokenizer.max_tokens
        require_fit(Tokens(sha256(tokenizer).hexdigest(), context=context), draft)


def draft_of(generation: GenerationSpec, registry: Registry) -> Draft | None:
    """Fetch the draft model and check its digests; return None if no draft model is set.

    Raises:
        InputError: the draft model does not exist, is not a language model, or has other files
            than were registered.
        TransientError: MLflow cannot be reached.
    """
    if generation.draft is None:
        return None
    found = _version(generation.draft, registry)
    return Draft(f"{found.model}/{found.version}", registry.fetch(found).files, found.digest)


def _version(name: str, registry: Registry) -> ModelVersion:
    found = version_named(name, registry)
    if found.kind.name != "language":
        raise InputError(
            f"{in_words(found)} is not a language model",
            seen=f"serving.generation.draft: {name}",
            valid="a registered version of the family causal_lm",
            hint="name another draft model, or leave serving.generation.draft out",
        )
    return found
