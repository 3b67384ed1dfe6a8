"""What a batch job did."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from millrace.serving.batch.monitoring.agreement import Agreement

SECONDS_PER_DAY = 86_400
PREFIX = "millrace."
FINGERPRINT = f"{PREFIX}fingerprint"
WHOLE = f"{PREFIX}report"


@dataclass(frozen=True)
class BatchReport:
    """What a batch job did.

    Attributes:
        table: URI of the output.
        dead_letters: URI of the table of rows that were not scored.
        table_version: version of the commit.
        date: the partition.
        model: registered model.
        model_version: its version.
        model_digest: digest of its files.
        fingerprint: of the job.
        job: its id, which names the folder of its files.
        rows: rows of the input.
        scored: those in the output.
        dead: the others, in the table of dead letters.
        resumed: rows that an earlier run of the job had written.
        tokens_in: tokens of the prompts in the output; None for a model without tokens.
        tokens_out: tokens that were generated for it.
        seconds: wall time from reading to commit, of the last run.
        unchanged: whether the partition had been committed by the same job before, so that there
            was nothing to do.
        agreement: how a sample of its answers compares with those of the live model; None where
            nobody looked.
        input: which rows: the version of a table, or the files and the digest of their digests.
        approved: whether the version was the approved one when it was committed; None of a commit
            of before that was told.
        approval: why it was that version, in a sentence.
        replaced: what the partition held before, in a sentence; empty where it held nothing.
    """

    table: str
    dead_letters: str
    table_version: int
    date: str
    model: str
    model_version: int
    model_digest: str
    fingerprint: str
    job: str
    rows: int
    scored: int
    dead: int
    resumed: int
    tokens_in: int | None
    tokens_out: int | None
    seconds: float
    unchanged: bool = False
    agreement: Agreement | None = None
    input: str = ""
    approved: bool | None = None
    approval: str = ""
    replaced: str = ""

    @property
    def rows_per_second(self) -> float:
        """Rows per second that this run brought into the output, end to end."""
        return max(self.scored - self.resumed, 0) / self.seconds

    @property
    def rows_per_day(self) -> float:
        """Rows per day at this rate."""
        return self.rows_per_second * SECONDS_PER_DAY

    def metadata(self) -> dict[str, str]:
        """Return it as what is kept with the commit: what readers ask for, and the whole."""
        names = (
            *("fingerprint", "model", "model_version", "model_digest", "input", "approved"),
            *("rows", "scored", "dead", "tokens_in", "tokens_out"),
        )
        values = asdict(self)
        told = {f"{PREFIX}{n}": str(values[n]) for n in names if values[n] is not None}
        return {**told, WHOLE: json.dumps(values)}

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the report of which `asdict` made values."""
        agreement = values.get("agreement")  # commits of before have none
        found = None if agreement is None else Agreement.of_json(agreement)
        return cls(**{**values, "agreement": found})

    @property
    def words(self) -> str:
        """What was scored, in a line."""
        return f"{self.scored:,} rows of {self.input or 'an input that is not known'}"

    @classmethod
    def of_commit(cls, kept: Mapping[str, str]) -> Self:
        """Return the report that was kept with a commit.

        Args:
            kept: what `Partition.committed` returned.
        """
        report = cls.of_json(json.loads(kept[WHOLE]))
        return replace(report, table_version=int(kept["version"]), unchanged=True)
