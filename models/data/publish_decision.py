"""Decides whether a snapshot is published, by a pure function of plain values."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from millrace.models.common.counted import counted
from millrace.models.common.errors import InputError
from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.data.lacked_columns import (
    LackedColumns,
    describe_cause,
    describe_remedy,
    explain_nulls,
    reasons_of,
)
from millrace.models.data.schema import TableSchema
from millrace.models.data.snapshots import Snapshot

MAX_NAMED = 5

Verdict = Literal["publish", "unchanged"] | InputError


def decide(
    reading: Snapshot, stored: Snapshot | None, spec: DatasetSpec, quarantine: str
) -> Verdict:
    """Decide whether the snapshot of a source is published, is unchanged, or is refused.

    Args:
        reading: the snapshot of the rows that were read, not published yet.
        stored: the newest published snapshot; None if there is none.
        spec: the pipeline file's `dataset` part.
        quarantine: URI of the quarantine table, for the error message.

    Returns:
        "publish", "unchanged" (nothing to publish), or the error that says why the snapshot is
        refused.
    """
    if not reading.rows and not reading.quarantined:
        return _no_row_left(reading, spec)
    share = reading.quarantined / max(1, reading.rows + reading.quarantined)
    if not reading.rows or share > spec.max_quarantine:
        return _too_many_bad_rows(reading, spec, quarantine, share)
    classes = reading.statistics[spec.target].counts
    if classes is not None and len(classes) < 2:
        return InputError(
            f"the target {spec.target!r} has only one class, so there is nothing to learn",
            seen=f"{classes[0][0]!r} in all {reading.rows:,} rows",
            valid="two classes or more",
            hint="choose another dataset.target, or add rows of other classes",
        )
    for name in reading.schema.features:
        column = reading.schema.column(name)
        if column.type == "category" and not column.categories:
            return InputError(
                f"column {name!r} holds no value, so there are no categories to learn from",
                seen=f"only nulls in all {reading.rows:,} rows",
                hint=f"leave {name!r} out of dataset.features",
            )
    return "unchanged" if is_unchanged(reading, stored) else "publish"


def is_unchanged(reading: Snapshot, stored: Snapshot | None) -> bool:
    """Return whether a source still has the rows and the columns of the newest snapshot."""
    if stored is None:
        return False
    return (stored.digest, stored.schema) == (reading.digest, reading.schema)


def nulls_hint(snapshot: Snapshot) -> str | None:
    """Return how to accept rows that are in quarantine because a feature is null.

    Returns:
        The hint, with the declaration to add to the pipeline file; None if no row has such a null,
        or only in columns that a file of the source lacks.
    """
    lacked = {name for each in snapshot.lacked_columns for name in each.columns}
    features = (name for name in snapshot.schema.features if name not in lacked)
    nulls = [name for name in features if _had_nulls(name, snapshot.reasons)]
    texts = [name for name in nulls if snapshot.schema.column(name).type == "text"]
    if texts:  # a text cannot be nullable, because there is nothing to learn from a missing text
        return (
            f"remove the rows in which {', '.join(texts[:MAX_NAMED])} is null, or write a word of "
            "your own there; a higher dataset.max_quarantine accepts a larger share of such rows"
        )
    if not nulls:
        return None
    declared = ", ".join(f"{name}: {{nullable: true}}" for name in nulls[:MAX_NAMED])
    more = (
        f" (and likewise {len(nulls) - MAX_NAMED} more columns)" if len(nulls) > MAX_NAMED else ""
    )
    kinds = {snapshot.schema.column(name).type for name in nulls}
    means = "" if kinds == {"category"} else "; networks replace them by the mean"
    categories = (
        f"; a null in a category column counts as none of its categories{_words(snapshot.schema)}"
        if "category" in kinds
        else ""
    )
    return f"dataset.columns: {{{declared}}}{more} accepts nulls{means}{categories}"


def _words(schema: TableSchema) -> str:
    """Return that words are nulls too, as the end of a sentence on categories."""
    word = next(filter(None, schema.null_values), None)
    return "" if word is None else f" (a word such as {word} is a null: dataset.null_values)"


def _had_nulls(name: str, reasons: Mapping[str, int]) -> bool:
    return f"{name}: null" in reasons or f"{name}: null in a vector" in reasons


def _too_many_bad_rows(
    reading: Snapshot, spec: DatasetSpec, quarantine: str, share: float
) -> InputError:
    seen = reading.rows + reading.quarantined
    top = [
        f"{reason} ({counted(count, 'row')})" for reason, count in list(reading.reasons.items())[:5]
    ]
    more = len(reading.reasons) - len(top)
    lacked = explain_nulls(reading.lacked_columns, reading.reasons)
    cause = f"; {describe_cause(lacked)}" if lacked else ""
    return InputError(
        f"{f'{reading.quarantined:,}' if reading.rows else 'all'} of the {seen:,} rows of "
        f"{spec.source} are bad",
        seen="; ".join(top) + (f"; and {more} more reasons" if more else "") + cause,
        valid=f"at most {spec.max_quarantine:.1%} bad rows (dataset.max_quarantine); "
        f"this source has {share:.1%}",
        hint="; ".join(_next_steps(reading, lacked, quarantine)),
    )


def _no_row_left(reading: Snapshot, spec: DatasetSpec) -> InputError:
    return InputError(
        f"no row of {spec.source} is left, because the keys of all of them were forgotten",
        seen=f"{counted(reading.left_out, 'row')} with forgotten keys",
        valid="at least one row with another key",
        hint=f"add rows with other keys; or allow keys again: millrace forget {reading.name} "
        "--key KEY --allow-again",
    )


def _next_steps(
    reading: Snapshot, lacked: Sequence[LackedColumns], quarantine: str
) -> Iterator[str]:
    """Yield what to do about bad rows; `lacked` are files whose columns made rows bad."""
    if lacked:
        yield describe_remedy(lacked)
    if lacked and reasons_of(lacked).issuperset(reading.reasons):
        return
    yield (
        f"read the columns reason and row of the Delta table {quarantine}; then fix the data, or "
        "declare what is allowed in dataset.columns (type, nullable, min, max, categories)"
    )
    if nulls := nulls_hint(reading):
        yield nulls
