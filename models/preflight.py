"""Finds the errors in a pipeline that can be found before a run, without reading all rows.

At most the first block of the source is read, and torch is imported only for a user's own family.
"""

from dataclasses import replace

from millrace.models.common.errors import TransientError
from millrace.models.config.model_kind import kind_of_family
from millrace.models.config.model_uri import is_model_uri
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.infer_schema import feature_names
from millrace.models.data.sources.find_files import FileSource
from millrace.models.data.sources.open_source import open_source
from millrace.models.data.sources.python_source import FunctionSource
from millrace.models.data.sources.source import Source, read_error, require_columns
from millrace.models.families.pretrained import resolve_pretrained


def preflight(pipeline: Pipeline) -> str:
    """Check the source, its named columns, the family, the pretrained model and the tokenizer.

    A remote store that cannot be reached is ignored here: the pipeline file is not at fault, and
    the run tries again.

    Args:
        pipeline: the pipeline, with the folder of its file.

    Raises:
        InputError: an error that `millrace run` would raise later.

    Returns:
        Why the source could not be checked; empty if it was checked.
    """
    unreachable = ""
    try:
        _check_source(pipeline)
    except TransientError as error:
        unreachable = error.what
    kind_of_family(pipeline.model.family).check_model(pipeline.model, pipeline.folder)
    pretrained = pipeline.model.pretrained
    registered = is_model_uri(pretrained)
    for name in (None if registered else pretrained, pipeline.model.tokenizer.source):
        if name is not None:
            resolve_pretrained(name, pipeline.folder)
    return unreachable


def _check_source(pipeline: Pipeline) -> None:
    source = open_source(pipeline.dataset, pipeline.folder)
    spec = source.spec
    family = pipeline.model.family
    kind_of_family(family).check_dataset(spec, family)
    if isinstance(source, FunctionSource):
        source.load_function()
        return
    try:
        names = _read_names(source)
    except OSError as error:
        raise read_error(spec.source, error) from error
    if names:
        require_columns(spec, names)
        feature_names(spec, names)


def _read_names(source: Source) -> list[str]:
    """Return the source's column names; an empty list if the first block does not show them."""
    if source.schema is not None:
        return list(source.schema.names)
    if not isinstance(source, FileSource):
        return []
    spec = source.spec.model_copy(update={"features": None})
    first = next(replace(source, spec=spec).chunks(), None)
    if first is None or not first.rows.num_rows:
        return []
    # A nullable column may be missing in the first block.
    nullable = [name for name, column in spec.columns.items() if column.nullable]
    return list(dict.fromkeys([*first.rows.schema.names, *nullable]))
