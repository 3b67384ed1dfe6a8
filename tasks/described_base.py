"""The base model of a plan, where it is not registered yet: as its own pipeline file describes it.

`docstrings_lora` starts from the champion of `code_lm`. What it needs and takes follows from the
sizes of `code_lm`, which are in that pipeline's file from the beginning.
"""

from pathlib import Path

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.model_uri import is_model_uri, model_of, version_name
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.pipeline_file import load_pipeline
from millrace.models.config.training_spec import ModelSpec
from millrace.tasks.kinds.steps import KindSteps
from millrace.tasks.progress import log

SQLITE = "sqlite:///"


def pinned_for_plan(steps: KindSteps, pipeline: Pipeline, installation: Installation) -> Pipeline:
    """Return the pipeline with its versions pinned, or with the sizes of a base to be trained.

    Raises:
        InputError: a version does not exist, and no pipeline file beside this one describes it.
        TransientError: MLflow cannot be reached.
    """
    if not steps.names_versions(pipeline):
        return pipeline
    base = _described(pipeline)
    if base is not None and not _has_registry(installation):
        return _with_sizes(pipeline, base)
    try:
        return steps.pin_versions(pipeline, installation)
    except InputError:
        if base is None:
            raise
    described = _with_sizes(pipeline, base)
    # what else the pipeline names must exist
    return steps.pin_versions(described, installation)


def _described(pipeline: Pipeline) -> Pipeline | None:
    """Return the pipeline that trains the base from scratch; None if there is no such file."""
    uri = pipeline.model.pretrained
    name = version_name(str(uri)) if is_model_uri(uri) else None
    if name is None:
        return None
    for ending in (".yaml", ".yml"):
        file = pipeline.folder / f"{Path(model_of(name)).name}{ending}"
        try:
            found = load_pipeline(file)
        except InputError:
            continue
        if found.name == model_of(name) and found.model.pretrained is None:
            return found
    return None


def _has_registry(installation: Installation) -> bool:
    """Return whether there may be registered versions: an embedded database may not exist yet."""
    uri = installation.tracking_uri
    return not uri.startswith(SQLITE) or Path(uri.removeprefix(SQLITE)).exists()


def _with_sizes(pipeline: Pipeline, base: Pipeline) -> Pipeline:
    """Return the pipeline with the sizes of its base, and its own adapters and context."""
    log.info("%s is not registered yet; its sizes are those of its pipeline file", base.name)
    tokenizer = pipeline.model.tokenizer.model_copy(
        update={"vocab_size": base.model.tokenizer.vocab_size}
    )
    sizes = {"pretrained": None, "params": base.model.params, "tokenizer": tokenizer}
    model: ModelSpec = pipeline.model.model_copy(update=sizes)
    return pipeline.with_model(model)
