"""Registered versions that a training refers to: whom to learn from, what to be shown beside."""

from typing import TYPE_CHECKING

from models.errors import InputError
from models.features import Encoding
from models.package import ModelVersion, Package
from models.registry import CHAMPION, Registry
from models.specs.compression import DistillationSpec
from models.specs.training import TrainingSpec
from tasks.progress import log

if TYPE_CHECKING:
    from models.distillation import Teacher


def reference_of(spec: TrainingSpec, registry: Registry, encoding: Encoding) -> Package | None:
    """Return the version that the model is shown beside: `compare`, else its teacher, else None.

    Raises:
        InputError: there is no such version to compare with, or none to learn from that takes the
            same columns and has the same classes.
        TransientError: MLflow cannot be reached.
    """
    if spec.compare is not None:
        package = registry.fetch(_version(spec.compare, registry))
        if (difference := _difference(package, encoding)) is None:
            return package
        log.warning("nothing to compare with: %s", difference)  # the data may just have grown
        return None
    if spec.distillation is not None:
        return registered(spec.distillation.teacher, registry, encoding)
    return None


def teacher_of(spec: DistillationSpec, registry: Registry, encoding: Encoding) -> "Teacher":
    """Return the registered version to learn from.

    Raises:
        InputError: there is no such version, or it takes other columns or has other classes.
        TransientError: MLflow cannot be reached.
    """
    from models.distillation import Teacher

    package = registered(spec.teacher, registry, encoding)
    model = package.model.read_bytes()
    return Teacher(in_words(package.version), model, spec.temperature, spec.weight)


def registered(name: str, registry: Registry, encoding: Encoding) -> Package:
    """Return the version of that name, its digests checked.

    Args:
        name: NAME for the champion, NAME@ALIAS or NAME/VERSION.
        registry: where it is.
        encoding: what rows and answers mean here.

    Raises:
        InputError: there is no such version, or it takes other columns or has other classes.
        TransientError: MLflow cannot be reached.
    """
    package = registry.fetch(_version(name, registry))
    if (difference := _difference(package, encoding)) is not None:
        raise InputError(
            difference,
            seen=_encoding_in_words(package.encoding),
            valid=_encoding_in_words(encoding),
            hint="name a version that was trained on the same columns and classes, and of a text "
            "with the same tokenizer: model.tokenizer",
        )
    return package


def in_words(version: ModelVersion) -> str:
    """Return which version it is, for people."""
    return f"{version.model} version {version.version}"


def _version(name: str, registry: Registry) -> ModelVersion:
    model, slash, number = name.partition("/")
    if slash:
        return registry.version(model, int(number))
    model, _, alias = name.partition("@")
    found = registry.by_alias(model, alias or CHAMPION)
    if found is None:
        raise InputError(
            f"there is no registered version {name!r}",
            valid="a registered model: NAME for its champion, NAME@ALIAS or NAME/VERSION",
            hint="see the registered models in the MLflow UI",
        )
    return found


def _difference(package: Package, encoding: Encoding) -> str | None:
    """Return that a version means something else by a row or an answer, in words, or None."""
    if _meaning(package.encoding) == _meaning(encoding):
        return None
    return f"{in_words(package.version)} answers another question than this model"


def _meaning(encoding: Encoding) -> tuple[object, ...]:
    """Return what a row and an answer are, whatever the scales that belong to the graph."""
    columns = [(f.name, f.kind, f.width, f.categories) for f in encoding.features]
    return (columns, encoding.target, encoding.labels, encoding.tokenizer)


def _encoding_in_words(encoding: Encoding) -> str:
    columns = ", ".join(f"{each.name} ({each.kind})" for each in encoding.features)
    answers = f"{len(encoding.labels)} classes" if encoding.labels else "a number"
    return f"{encoding.target} from {columns}; {answers}"
