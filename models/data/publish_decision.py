"""Decides whether a reading of a source is published: a pure function of plain values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from millrace.models.common.errors import InputError
from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.data.column_statistics import ColumnStatistics
from millrace.models.data.schema import TableSchema
from millrace.models.data.snapshots import Snapshot

MAX_NAMED = 5

Verdict = Literal["publish", "unchanged"] | InputError


@dataclass(frozen=True)
class Tally:
    """The result of reading a source.

    Attributes:
        rows: good rows.
        digest: their digest.
        schema: their schema, with its categories filled in.
        statistics: of the good rows, by column.
        quarantined: bad rows.
        reasons: bad rows of each reason, the most frequent first.
    """

    rows: int
    digest: str
    schema: TableSchema
    statistics: Mapping[str, ColumnStatistics]
    quarantined: int
    reasons: Mapping[str, int]


def decide(tally: Tally, stored: Snapshot | None, spec: DatasetSpec, quarantine: str) -> Verdict:
    """Decide whether a reading makes a new snapshot, changes nothing, or is refused.

    Args:
        tally: the reading.
        stored: the newest snapshot, if there is one.
        spec: the pipeline file's `dataset` part.
        quarantine: URI of the quarantine table, for the refusal.
    """
    share = tally.quarantined / max(1, tally.rows + tally.quarantined)
    if not tally.rows or share > spec.max_quarantine:
        return _too_many_bad_rows(tally, spec, quarantine, share)
    classes = tally.statistics[spec.target].counts
    if classes is not None and len(classes) < 2:
        return InputError(
            f"the target {spec.target!r} has only one class, so there is nothing to learn",
            seen=f"{classes[0][0]!r} in all {tally.rows} rows",
            valid="two classes or more",
            hint="choose another dataset.target, or add rows of other classes",
        )
    for name in tally.schema.features:
        column = tally.schema.column(name)
        if column.type == "category" and not column.categories:
            return InputError(
                f"column {name!r} holds no value, so there is no category to learn from",
                seen=f"only nulls in all {tally.rows} rows",
                hint=f"leave {name!r} out of dataset.features",
            )
    if stored and (stored.digest, stored.schema) == (tally.digest, tally.schema):
        return "unchanged"
    return "publish"


def nulls_hint(reading: Tally | Snapshot) -> str | None:
    """Return how to accept rows that are in quarantine for a null in a feature.

    Returns:
        The declaration to add to the pipeline file, or None if there are no such rows.
    """
    nulls = [name for name in reading.schema.features if _had_nulls(name, reading.reasons)]
    texts = [name for name in nulls if reading.schema.column(name).type == "text"]
    if texts:  # there is nothing to learn from a text that is missing
        return (
            f"leave out the rows without {', '.join(texts[:MAX_NAMED])}, or fill them with a word "
            "of your own; dataset.max_quarantine accepts a larger share of such rows"
        )
    if not nulls:
        return None
    declared = ", ".join(f"{name}: {{nullable: true}}" for name in nulls[:MAX_NAMED])
    more = f" (and likewise {len(nulls) - MAX_NAMED} more)" if len(nulls) > MAX_NAMED else ""
    kinds = {reading.schema.column(name).type for name in nulls}
    means = "" if kinds == {"category"} else " and replaces them by the mean"
    categories = "; a null category counts as none of its values" if "category" in kinds else ""
    return f"dataset.columns: {{{declared}}}{more} accepts nulls{means}{categories}"


def _had_nulls(name: str, reasons: Mapping[str, int]) -> bool:
    return f"{name}: null" in reasons or f"{name}: null in a vector" in reasons


def _too_many_bad_rows(
    tally: Tally, spec: DatasetSpec, quarantine: str, share: float
) -> InputError:
    seen = tally.rows + tally.quarantined
    top = [f"{reason} ({count} rows)" for reason, count in list(tally.reasons.items())[:5]]
    more = len(tally.reasons) - len(top)
    nulls = nulls_hint(tally)
    return InputError(
        f"{'all' if not tally.rows else tally.quarantined} of the {seen} rows of {spec.source} "
        "are bad and were put into quarantine",
        seen="; ".join(top) + (f"; and {more} more reasons" if more else ""),
        valid=f"at most {spec.max_quarantine:.1%} bad rows (dataset.max_quarantine); "
        f"these are {share:.1%}",
        hint=f"read reason and row in the Delta table {quarantine}; then fix the data, or "
        "declare what is allowed in dataset.columns (type, nullable, min, max, categories)"
        + (f"; {nulls}" if nulls else ""),
    )
