"""Registered versions that a training refers to: its teacher, and the version to compare with."""

from typing import TYPE_CHECKING

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.compression_spec import DistillationSpec
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.training_spec import TrainingSpec
from millrace.models.inference.features import Encoding
from millrace.models.registry.mlflow_registry import Registry, registry_of
from millrace.models.registry.named_version import in_words, version_named
from millrace.tasks.progress import log

if TYPE_CHECKING:
    from millrace.models.training.compression.distillation import Teacher
    from millrace.tasks.kinds.graph.graph_files import GraphFiles


def reference_of(spec: TrainingSpec, registry: Registry, encoding: Encoding) -> "GraphFiles | None":
    """Return the registered version to compare the model with: `training.compare`, or the teacher.

    Return None if neither is named, or if the version in `training.compare` has other columns,
    classes or tokenizer than the model.

    Raises:
        InputError: there is no such version, or the teacher has other columns or classes.
        TransientError: MLflow cannot be reached.
    """
    if spec.compare is not None:
        files = _fetch(spec.compare, registry)
        if (difference := _difference(files, encoding)) is None:
            return files
        # not an error, because the data may have grown
        log.warning("the model is not compared with training.compare: %s", difference)
        return None
    if spec.distillation is not None:
        return registered(spec.distillation.teacher, registry, encoding)
    return None


def names_references(pipeline: Pipeline) -> bool:
    """Return whether a pipeline names a teacher, or a version to compare with."""
    return pipeline.training.distillation is not None or pipeline.training.compare is not None


def pin_references(pipeline: Pipeline, installation: Installation) -> Pipeline:
    """Check that the versions which a training names exist, and return the pipeline unchanged.

    Raises:
        InputError: a version does not exist.
        TransientError: MLflow cannot be reached.
    """
    spec = pipeline.training
    teacher = spec.distillation.teacher if spec.distillation is not None else None
    for name in (teacher, spec.compare):
        if name is not None:
            version_named(name, registry_of(installation))
    return pipeline


def teacher_of(spec: DistillationSpec, registry: Registry, encoding: Encoding) -> "Teacher":
    """Return the registered version that is the teacher in a distillation.

    Raises:
        InputError: there is no such version, or its columns or classes differ from the encoding's.
        TransientError: MLflow cannot be reached.
    """
    from millrace.models.training.compression.distillation import Teacher

    files = registered(spec.teacher, registry, encoding)
    model = files.model.read_bytes()
    return Teacher(in_words(files.version), model, spec.temperature, spec.weight)


def registered(name: str, registry: Registry, encoding: Encoding) -> "GraphFiles":
    """Return the files of the named version, after a check of its digests.

    Args:
        name: NAME for the champion, NAME@ALIAS or NAME/VERSION.
        registry: the registry of the version.
        encoding: the encoding whose columns and classes the version must share.

    Raises:
        InputError: there is no such version, or its columns or classes differ from the encoding's.
        TransientError: MLflow cannot be reached.
    """
    files = _fetch(name, registry)
    if (difference := _difference(files, encoding)) is not None:
        raise InputError(
            difference,
            seen=_encoding_in_words(files.encoding),
            valid=_encoding_in_words(encoding),
            hint="name a version that was trained on the same columns and classes and, for text, "
            "with the same model.tokenizer",
        )
    return files


def _fetch(name: str, registry: Registry) -> "GraphFiles":
    # `check` only asks whether a pipeline names a version, and needs no onnxruntime for that.
    from millrace.tasks.kinds.graph.graph_files import graph_files

    return graph_files(registry.fetch(version_named(name, registry)))


def _difference(files: "GraphFiles", encoding: Encoding) -> str | None:
    """Return a message if a version has other columns, classes or tokenizer, else None."""
    if _meaning(files.encoding) == _meaning(encoding):
        return None
    return f"{in_words(files.version)} has other columns, classes or tokenizer than this model"


def _meaning(encoding: Encoding) -> tuple[object, ...]:
    """Return the columns, target, classes and tokenizer, without the scaling of the columns."""
    columns = [(f.name, f.kind, f.width, f.categories) for f in encoding.features]
    return (columns, encoding.target, encoding.labels, encoding.tokenizer)


def _encoding_in_words(encoding: Encoding) -> str:
    columns = ", ".join(f"{each.name} ({each.kind})" for each in encoding.features)
    answers = f"{len(encoding.labels)} classes" if encoding.labels else "a number"
    return f"{encoding.target} from {columns}; {answers}"
