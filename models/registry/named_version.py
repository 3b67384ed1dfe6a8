"""Finds a registered version by its name in a pipeline file, such as `NAME@ALIAS`."""

from millrace.models.common.errors import MAX_NAMED, InputError, nearest
from millrace.models.registry.mlflow_registry import Registry
from millrace.models.registry.version_files import CHAMPION, ModelVersion

VALID = "NAME (the model's champion), NAME@ALIAS or NAME/VERSION"


def version_named(name: str, registry: Registry, *, valid: str = VALID) -> ModelVersion:
    """Return a registered version.

    Args:
        name: NAME for the champion, NAME@ALIAS or NAME/VERSION.
        registry: the registry to search.
        valid: the form of the name in the pipeline file, for the error.

    Raises:
        InputError: the version does not exist.
        TransientError: MLflow cannot be reached.
    """
    model, slash, number = name.partition("/")
    if slash:
        return registry.version(model, int(number))
    model, _, alias = name.partition("@")
    found = registry.by_alias(model, alias or CHAMPION)
    if found is None:
        champions = list(registry.champions())
        here = ", ".join(champions[:MAX_NAMED]) or "none"
        raise InputError(
            f"there is no registered version {name!r}",
            valid=f"{valid}; models with a champion: {here}",
            hint=nearest(model, champions)
            or "run the pipeline of that model first, or see the models in the MLflow UI",
        )
    return found


def in_words(version: ModelVersion) -> str:
    """Return the name and number of a version, for people."""
    return f"{version.model} version {version.version}"
