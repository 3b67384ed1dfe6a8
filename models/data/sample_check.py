"""Checks the first rows of a source as an ingestion does: their types, and which are bad."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from millrace.models.common.counted import counted
from millrace.models.common.errors import InputError
from millrace.models.config.model_kind import kind_of_family
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.category_limit import require_few_categories
from millrace.models.data.column_statistics import ColumnStatistics, merge, statistics_of
from millrace.models.data.read_source import open_rows
from millrace.models.data.repeated_keys import count_in
from millrace.models.data.row_checks import check
from millrace.models.data.schema import TableSchema
from millrace.models.data.sources.open_source import open_source
from millrace.models.data.sources.python_source import FunctionSource
from millrace.models.data.sources.source import Chunk
from millrace.models.data.split import Hashes, hash_texts, joined_keys

SAMPLE_ROWS = 10_000


@dataclass(frozen=True)
class SampleCheck:
    """What the first rows of a source show.

    Attributes:
        schema: the schema that every row must fit.
        rows: number of rows in the sample, unreadable lines included.
        reasons: number of bad rows by reason.
        repeated_keys: number of good rows whose key an earlier row of the sample has.
        line_breaks: number of cells of CSV files that have line breaks, in these rows or beside.
        statistics: statistics of the good rows, by column.
        is_whole: whether the sample is all of the source.
        bytes: bytes of the good rows in memory.
    """

    schema: TableSchema
    rows: int
    reasons: Mapping[str, int]
    line_breaks: int = 0
    repeated_keys: int = 0
    statistics: Mapping[str, ColumnStatistics] = field(default_factory=dict, repr=False)
    is_whole: bool = False
    bytes: int = 0


def check_sample(
    pipeline: Pipeline, stored: TableSchema | None, *, call_functions: bool = False
) -> SampleCheck | None:
    """Infer the schema of a pipeline's source, and check its first rows.

    Args:
        pipeline: the pipeline, with the folder of its file.
        stored: schema of the newest snapshot, from which types are taken; None if there is none.
        call_functions: whether a Python function is called too.

    Returns:
        None for a Python function that is not called: it may do anything.

    Raises:
        InputError: the source holds no rows, or a column does not fit, or has too many values.
        TransientError: a source on the network cannot be read.
    """
    source = open_source(pipeline.dataset, pipeline.folder)
    if isinstance(source, FunctionSource) and not call_functions:
        return None
    kind_of_family(pipeline.model.family).check_dataset(source.spec, pipeline.model.family)
    schema, chunks = open_rows(source, source.spec, stored)
    rows, line_breaks, size, keys, is_whole = 0, 0, 0, list[Hashes](), True
    reasons, statistics = Counter[str](), dict[str, ColumnStatistics]()
    for chunk in chunks:
        some = _first_rows(chunk, SAMPLE_ROWS - rows)
        is_whole = len(some) == len(chunk)
        rows += len(some)
        line_breaks += some.line_breaks
        checked = check(some.rows, schema, 0)
        if schema.key:
            keys.append(hash_texts(joined_keys(checked.good, schema.key)))
        size += checked.good.nbytes
        statistics = merge(statistics, statistics_of(checked.good, schema))
        reasons.update(checked.bad["reason"].to_pylist())
        reasons.update(line.reason for line in some.unreadable)
        if rows >= SAMPLE_ROWS:
            is_whole = False
            break
    require_few_categories(schema, statistics)
    found = dict(reasons.most_common())
    return SampleCheck(
        *(schema, rows, found, line_breaks, count_in(keys)),
        statistics=statistics,
        is_whole=is_whole,
        bytes=size,
    )


def _first_rows(chunk: Chunk, most: int) -> Chunk:
    """Return the first rows of a chunk, with the unreadable lines before them."""
    if len(chunk) <= most:
        return chunk
    lines = tuple(line for line in chunk.unreadable if line.before < most)
    return replace(chunk, rows=chunk.rows.slice(0, max(most - len(lines), 0)), unreadable=lines)


def describe_reasons(reasons: Mapping[str, int]) -> str:
    """Return the reasons of bad rows with their numbers, in one line."""
    return "; ".join(f"{reason} ({count:,})" for reason, count in reasons.items())


def require_good_rows(found: SampleCheck) -> None:
    """Refuse a source of which no row of the sample is good.

    Raises:
        InputError: every row of the sample is bad.
    """
    if sum(found.reasons.values()) < found.rows:
        return
    raise InputError(
        f"all of the first {counted(found.rows, 'row')} of the source are bad",
        seen=describe_reasons(found.reasons),
        valid="rows that fit dataset.columns",
        hint="fix the data, or declare what is allowed in dataset.columns (type, nullable, min, "
        "max, categories)",
    )
