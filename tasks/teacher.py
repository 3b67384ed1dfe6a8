"""Finding the version that a training learns from."""

from typing import TYPE_CHECKING

from models.errors import InputError
from models.features import Encoding
from models.package import ModelVersion
from models.places import Places
from models.registry import CHAMPION, Registry, registry_of
from models.specs.compression import DistillationSpec

if TYPE_CHECKING:
    from models.distillation import Teacher


def teacher_of(spec: DistillationSpec, places: Places, encoding: Encoding) -> "Teacher":
    """Return the registered version that `spec` names, its digest checked.

    Raises:
        InputError: there is no such version, or it takes other columns or has other classes.
        TransientError: MLflow cannot be reached.
    """
    from models.distillation import Teacher

    registry = registry_of(places)
    package = registry.fetch(_version(spec.teacher, registry))
    found = package.version
    name = f"{found.model} version {found.version}"
    if _meaning(package.encoding) != _meaning(encoding):
        raise InputError(
            f"{name} cannot teach this model",
            seen=_in_words(package.encoding),
            valid=_in_words(encoding),
            hint="name a teacher that was trained on the same columns and classes",
        )
    return Teacher(name, package.model.read_bytes(), spec.temperature, spec.weight)


def _version(teacher: str, registry: Registry) -> ModelVersion:
    model, slash, number = teacher.partition("/")
    if slash:
        return registry.version(model, int(number))
    model, _, alias = teacher.partition("@")
    found = registry.by_alias(model, alias or CHAMPION)
    if found is None:
        raise InputError(
            f"there is no teacher {teacher!r}",
            valid="a registered model: NAME, NAME@ALIAS or NAME/VERSION",
            hint="see the registered models in the MLflow UI",
        )
    return found


def _meaning(encoding: Encoding) -> tuple[object, ...]:
    """Return what a row and an answer are, whatever the scales that belong to the graph."""
    columns = [(f.name, f.kind, f.width, f.categories) for f in encoding.features]
    return (columns, encoding.labels)


def _in_words(encoding: Encoding) -> str:
    columns = ", ".join(f"{each.name} ({each.kind})" for each in encoding.features)
    answers = f"{len(encoding.labels)} classes" if encoding.labels else "a number"
    return f"{columns}; {answers}"
