"""Registered versions that a training refers to: whom to learn from, what to be shown beside."""

from typing import TYPE_CHECKING

from millrace.models.common.errors import InputError
from millrace.models.config.compression_spec import DistillationSpec
from millrace.models.config.model_uri import is_model_uri
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.training_spec import TrainingSpec
from millrace.models.inference.features import Encoding
from millrace.models.language.base_version import pinned_base
from millrace.models.registry.mlflow_registry import Registry
from millrace.models.registry.named_version import in_words, version_named
from millrace.models.registry.version_files import GraphPackage
from millrace.tasks.kinds.language.draft_model import with_pinned_draft
from millrace.tasks.progress import log

if TYPE_CHECKING:
    from millrace.models.training.compression.distillation import Teacher


def reference_of(spec: TrainingSpec, registry: Registry, encoding: Encoding) -> GraphPackage | None:
    """Return the version that the model is shown beside: `compare`, else its teacher, else None.

    Raises:
        InputError: there is no such version to compare with, or none to learn from that takes the
            same columns and has the same classes.
        TransientError: MLflow cannot be reached.
    """
    if spec.compare is not None:
        package = registry.fetch(version_named(spec.compare, registry)).graph
        if (difference := _difference(package, encoding)) is None:
            return package
        log.warning("nothing to compare with: %s", difference)  # the data may just have grown
        return None
    if spec.distillation is not None:
        return registered(spec.distillation.teacher, registry, encoding)
    return None


def pinned_versions(pipeline: Pipeline, registry: Registry) -> Pipeline:
    """Look for the versions that a pipeline names, before time is spent on anything else.

    Returns:
        The pipeline, with the version that training starts from and the one that drafts pinned,
        where it names them.

    Raises:
        InputError: one is not there, or cannot be what it is named as.
        TransientError: MLflow cannot be reached.
    """
    for name in _beside(pipeline.training):
        version_named(name, registry)
    based = pipeline.with_model(pinned_base(pipeline.model, registry))
    return with_pinned_draft(based, registry)


def names_versions(pipeline: Pipeline) -> bool:
    """Return whether a pipeline names a registered version."""
    named = (*_beside(pipeline.training), pipeline.serving.generation.draft)
    return any(named) or is_model_uri(pipeline.model.pretrained)


def _beside(spec: TrainingSpec) -> tuple[str, ...]:
    """Return the registered versions of a training, as its pipeline names them."""
    teacher = spec.distillation.teacher if spec.distillation is not None else None
    return tuple(name for name in (teacher, spec.compare) if name is not None)


def teacher_of(spec: DistillationSpec, registry: Registry, encoding: Encoding) -> "Teacher":
    """Return the registered version to learn from.

    Raises:
        InputError: there is no such version, or it takes other columns or has other classes.
        TransientError: MLflow cannot be reached.
    """
    from millrace.models.training.compression.distillation import Teacher

    package = registered(spec.teacher, registry, encoding)
    model = package.model.read_bytes()
    return Teacher(in_words(package.version), model, spec.temperature, spec.weight)


def registered(name: str, registry: Registry, encoding: Encoding) -> GraphPackage:
    """Return the version of that name, its digests checked.

    Args:
        name: NAME for the champion, NAME@ALIAS or NAME/VERSION.
        registry: where it is.
        encoding: what rows and answers mean here.

    Raises:
        InputError: there is no such version, or it takes other columns or has other classes.
        TransientError: MLflow cannot be reached.
    """
    package = registry.fetch(version_named(name, registry)).graph
    if (difference := _difference(package, encoding)) is not None:
        raise InputError(
            difference,
            seen=_encoding_in_words(package.encoding),
            valid=_encoding_in_words(encoding),
            hint="name a version that was trained on the same columns and classes, and of a text "
            "with the same tokenizer: model.tokenizer",
        )
    return package


def _difference(package: GraphPackage, encoding: Encoding) -> str | None:
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
