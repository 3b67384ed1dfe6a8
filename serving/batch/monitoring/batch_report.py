"""The report of a batch job."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from millrace.models.common.counted import counted
from millrace.serving.batch.monitoring.agreement import Agreement

SECONDS_PER_DAY = 86_400
PREFIX = "millrace."
FINGERPRINT = f"{PREFIX}fingerprint"
WHOLE = f"{PREFIX}report"


@dataclass(frozen=True)
class BatchReport:
    """The report of a batch job.

    Attributes:
        table: URI of the output.
        dead_letters: URI of the table of rows that were not scored.
        table_version: version of the output table that the commit made; -1 before the commit.
        date: the date of the partition.
        model: the registered model.
        model_version: the version that scored.
        model_digest: digest of the version's files.
        fingerprint: the job's fingerprint.
        job: the job's id, also the name of the folder with its data files.
        rows: rows of the input.
        scored: rows in the output.
        dead: rows in the table of dead letters.
        resumed: rows that an earlier run of the job had written.
        tokens_in: tokens of the prompts in the output; None for a model without tokens.
        tokens_out: tokens that were generated for the output.
        seconds: wall time of the last run, from reading to commit.
        unchanged: whether the same job had committed the partition before, so nothing was done.
        agreement: how a sample of the answers compares with the live model's; None if they were not
            compared.
        input: the input in words: a table and its version, or the files and their digest.
        approved: whether the version was the approved one at the commit; None for older commits,
            which do not record it.
        approval: why this version scored, in a sentence.
        replaced: what this commit replaced in the partition, in words; empty if nothing.
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
        """Rows per second that this run added to the output, end to end."""
        return max(self.scored - self.resumed, 0) / self.seconds

    @property
    def rows_per_day(self) -> float:
        """Rows per day at the rate of `rows_per_second`."""
        return self.rows_per_second * SECONDS_PER_DAY

    def metadata(self) -> dict[str, str]:
        """Return the commit's metadata: main values as single keys, and the whole report."""
        names = (
            *("fingerprint", "model", "model_version", "model_digest", "input", "approved"),
            *("rows", "scored", "dead", "tokens_in", "tokens_out"),
        )
        values = asdict(self)
        own = {f"{PREFIX}{n}": str(values[n]) for n in names if values[n] is not None}
        return {**own, WHOLE: json.dumps(values)}

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the report from the dictionary that `asdict` gives."""
        agreement = values.get("agreement")  # older commits have none
        found = None if agreement is None else Agreement.of_json(agreement)
        return cls(**{**values, "agreement": found})

    @property
    def words(self) -> str:
        """What was scored, in one line."""
        return f"{counted(self.scored, 'row')} of {self.input or 'an unknown input'}"

    @classmethod
    def of_commit(cls, commit: Mapping[str, str]) -> Self:
        """Return the report from the metadata of its commit.

        Args:
            commit: what `Partition.read_commit` returned.
        """
        report = cls.of_json(json.loads(commit[WHOLE]))
        return replace(report, table_version=int(commit["version"]), unchanged=True)
