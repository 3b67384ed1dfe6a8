"""Tells early what a run would refuse: what can be seen without reading the rows.

At most the first block of the source is read, and torch is imported only for a family of the
user's own.
"""

from contextlib import suppress

from millrace.models.common.errors import InputError, TransientError
from millrace.models.common.user_code import load
from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.config.family_keys import FAMILIES
from millrace.models.config.model_uri import is_model_uri
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.infer_schema import feature_names
from millrace.models.data.sources.jsonl_source import JsonlSource
from millrace.models.data.sources.open_source import open_source
from millrace.models.data.sources.python_source import FunctionSource
from millrace.models.data.sources.source import Source, broken_off, require_columns
from millrace.models.data.text_target import require_fitting
from millrace.models.families.pretrained import resolve_pretrained


def preflight(pipeline: Pipeline) -> None:
    """Check that the source, the columns that the file names, the family and the encoder are there.

    A store that cannot be reached is no mistake in the file: the run tries that again.

    Args:
        pipeline: from the file's folder.

    Raises:
        InputError: what `run` would raise as well, later.
    """
    with suppress(TransientError):
        _check_source(pipeline)
    if pipeline.model.family not in FAMILIES:
        from millrace.models.families.family import family_of

        family_of(pipeline.model, pipeline.folder)
    pretrained = pipeline.model.pretrained
    registered = is_model_uri(pretrained)
    for name in (None if registered else pretrained, pipeline.model.tokenizer.source):
        if name is not None:
            resolve_pretrained(name, pipeline.folder)


def _check_source(pipeline: Pipeline) -> None:
    spec = pipeline.dataset
    source = open_source(spec, pipeline.folder)
    spec = source.spec
    require_fitting(spec, pipeline.model.family)
    if isinstance(source, FunctionSource):
        _require_function(source)
        return
    try:
        names = _names(source, spec)
    except OSError as error:
        raise broken_off(spec.source, error) from error
    if names:
        require_columns(spec, names)
        feature_names(spec, names)


def _require_function(source: FunctionSource) -> None:
    function = load(source.spec.source, source.folder)
    if not callable(function):
        raise InputError(
            f"{source.spec.source} is not a function",
            seen=type(function).__name__,
            valid="a function without arguments that yields pyarrow.RecordBatch",
        )


def _names(source: Source, spec: DatasetSpec) -> list[str]:
    """Return the source's columns; none where they cannot be told cheaply."""
    if source.schema is not None:
        return list(source.schema.names)
    return _names_of_lines(source, spec) if isinstance(source, JsonlSource) else []


def _names_of_lines(source: JsonlSource, spec: DatasetSpec) -> list[str]:
    """Return the keys in the first block; a nullable one may well come later."""
    every = JsonlSource(spec.model_copy(update={"features": None}), source.files)
    first = next(every.chunks(), None)
    if first is None or not first.rows.num_rows:
        return []
    nullable = [name for name, column in spec.columns.items() if column.nullable]
    return list(dict.fromkeys([*first.rows.schema.names, *nullable]))
