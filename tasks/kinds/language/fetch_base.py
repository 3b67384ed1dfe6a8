"""Step: what a language model's training starts from."""

from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.training_spec import ModelSpec
from millrace.models.language.base_version import fetched_base
from millrace.models.registry.mlflow_registry import registry_of
from millrace.tasks.progress import log
from millrace.tasks.retry import step

BASE_TAG = "millrace.base"
BASE_REVISION_TAG = "millrace.base_revision"


@step(timeout_seconds=3600)
def fetch_base(pipeline: Pipeline, places: Installation) -> Pipeline:
    """Return the pipeline with its base as a folder, where that is a registered version.

    Args:
        pipeline: its model pinned.
        places: where the registry is.

    Raises:
        InputError: the version's run keeps no checkpoint any more, or another one.
        TransientError: MLflow or its artifact store does not answer.
    """
    found = fetched_base(pipeline.model, registry_of(places))
    if found == pipeline.model:
        return pipeline
    revision = str(pipeline.model.revision)
    log.info("base: %s, sha256 %s…", pipeline.model.pretrained, revision[:16])
    return pipeline.with_model(found)


def base_tags(model: ModelSpec) -> dict[str, str]:
    """Return the tags that tell what a model was trained from; none if from scratch.

    Args:
        model: pinned: of the hub its revision is a commit, of a registered version the digest of
            its checkpoint.
    """
    tags = {BASE_TAG: model.pretrained, BASE_REVISION_TAG: model.revision}
    return {name: value for name, value in tags.items() if value is not None}
