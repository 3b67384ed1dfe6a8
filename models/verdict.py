"""Decides what one reading of a source comes to; plain values in, a verdict out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from models.columns import TableSchema
from models.errors import InputError
from models.pipeline import DatasetSpec
from models.snapshots import Snapshot
from models.statistics import ColumnStatistics

Verdict = Literal["publish", "unchanged"] | InputError


@dataclass(frozen=True)
class Tally:
    """What one reading of a source came to.

    Attributes:
        rows: good rows.
        digest: their digest.
        schema: what they are held to, with its categories filled in.
        statistics: of the good rows, by column.
        quarantined: bad rows.
        reasons: how many of them for which reason, the commonest first.
    """

    rows: int
    digest: str
    schema: TableSchema
    statistics: Mapping[str, ColumnStatistics]
    quarantined: int
    reasons: Mapping[str, int]


def decide(tally: Tally, stored: Snapshot | None, spec: DatasetSpec, quarantine: str) -> Verdict:
    """Decide what a reading comes to: a new snapshot, none, or a refusal.

    Args:
        tally: the reading.
        stored: the newest snapshot, if there is one.
        spec: the pipeline file's `dataset` part.
        quarantine: where the quarantine table is, to be named in a refusal.
    """
    share = tally.quarantined / max(1, tally.rows + tally.quarantined)
    if not tally.rows or share > spec.max_quarantine:
        return _too_many_bad(tally, spec, quarantine, share)
    classes = tally.statistics[spec.target].counts
    if classes is not None and len(classes) < 2:
        return InputError(
            f"the target {spec.target!r} has only one class, so there is nothing to learn",
            seen=f"{classes[0][0]!r} in all {tally.rows} rows",
            valid="two classes or more",
            hint="choose another dataset.target, or add rows of other classes",
        )
    if stored and (stored.digest, stored.schema) == (tally.digest, tally.schema):
        return "unchanged"
    return "publish"


def _too_many_bad(tally: Tally, spec: DatasetSpec, quarantine: str, share: float) -> InputError:
    seen = tally.rows + tally.quarantined
    top = [f"{reason} ({count} rows)" for reason, count in list(tally.reasons.items())[:5]]
    more = len(tally.reasons) - len(top)
    return InputError(
        f"{'all' if not tally.rows else tally.quarantined} of the {seen} rows of {spec.source} "
        "are bad and were put into quarantine",
        seen="; ".join(top) + (f"; and {more} more reasons" if more else ""),
        valid=f"at most {spec.max_quarantine:.1%} bad rows (dataset.max_quarantine); "
        f"these are {share:.1%}",
        hint=f"read reason and row in the Delta table {quarantine}; then mend the data, or "
        "declare what is allowed in dataset.columns (type, nullable, min, max, categories)",
    )
