"""Registered versions that a training refers to: its teacher, and what it is compared with."""

from typing import TYPE_CHECKING

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.compression_spec import DistillationSpec
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.training_spec import TrainingSpec
from millrace.models.inference.features import Encoding
from millrace.models.registry.mlflow_registry import Registry, registry_of
from millrace.models.registry.named_version import in_words, version_named
from millrace.tasks.kinds.graph.graph_files import GraphFiles, graph_files
from millrace.tasks.progress import log

if TYPE_CHECKING:
    from millrace.models.training.compression.distillation import Teacher


def reference_of(spec: TrainingSpec, registry: Registry, encoding: Encoding) -> GraphFiles | None:
    """Return the version that the model is shown beside: `compare`, else its teacher, else None.

    Raises:
        InputError: there is no such version to compare with, or none to learn from that takes the
            same columns and has the same classes.
        TransientError: MLflow cannot be reached.
    """
    if spec.compare is not None:
        files = graph_files(registry.fetch(version_named(spec.compare, registry)))
        if (difference := _difference(files, encoding)) is None:
            return files
        log.warning("nothing to compare with: %s", difference)  # the data may just have grown
        return None
    if spec.distillation is not None:
        return registered(spec.distillation.teacher, registry, encoding)
    return None


def names_references(pipeline: Pipeline) -> bool:
    """Return whether a pipeline names a teacher, or a version to compare with."""
    return pipeline.training.distillation is not None or pipeline.training.compare is not None


def pin_references(pipeline: Pipeline, installation: Installation) -> Pipeline:
    """Look for the versions that a training names, before time is spent on anything else.

    Raises:
        InputError: one is not there.
        TransientError: MLflow cannot be reached.
    """
    spec = pipeline.training
    teacher = spec.distillation.teacher if spec.distillation is not None else None
    for name in (teacher, spec.compare):
        if name is not None:
            version_named(name, registry_of(installation))
    return pipeline


def teacher_of(spec: DistillationSpec, registry: Registry, encoding: Encoding) -> "Teacher":
    """Return the registered version to learn from.

    Raises:
        InputError: there is no such version, or it takes other columns or has other classes.
        TransientError: MLflow cannot be reached.
    """
    from millrace.models.training.compression.distillation import Teacher

    files = registered(spec.teacher, registry, encoding)
    model = files.model.read_bytes()
    return Teacher(in_words(files.version), model, spec.temperature, spec.weight)


def registered(name: str, registry: Registry, encoding: Encoding) -> GraphFiles:
    """Return the version of that name, its digests checked.

    Args:
        name: NAME for the champion, NAME@ALIAS or NAME/VERSION.
        registry: where it is.
        encoding: what rows and answers mean here.

    Raises:
        InputError: there is no such version, or it takes other columns or has other classes.
        TransientError: MLflow cannot be reached.
    """
    files = graph_files(registry.fetch(version_named(name, registry)))
    if (difference := _difference(files, encoding)) is not None:
        raise InputError(
            difference,
            seen=_encoding_in_words(files.encoding),
            valid=_encoding_in_words(encoding),
            hint="name a version that was trained on the same columns and classes, and of a text "
            "with the same tokenizer: model.tokenizer",
        )
    return files


def _difference(files: GraphFiles, encoding: Encoding) -> str | None:
    """Return that a version means something else by a row or an answer, in words, or None."""
    if _meaning(files.encoding) == _meaning(encoding):
        return None
    return f"{in_words(files.version)} answers another question than this model"


def _meaning(encoding: Encoding) -> tuple[object, ...]:
    """Return what a row and an answer are, whatever the scales that belong to the graph."""
    columns = [(f.name, f.kind, f.width, f.categories) for f in encoding.features]
    return (columns, encoding.target, encoding.labels, encoding.tokenizer)


def _encoding_in_words(encoding: Encoding) -> str:
    columns = ", ".join(f"{each.name} ({each.kind})" for each in encoding.features)
    answers = f"{len(encoding.labels)} classes" if encoding.labels else "a number"
    return f"{encoding.target} from {columns}; {answers}"
