"""The part `retention`: what `millrace clean` removes, and when."""

from pydantic import Field

from millrace.models.config import Spec

MOST_DAYS = 36_500
"""A century. More days would lie before the first date of a calendar."""


class RetentionSpec(Spec):
    """How much of the past is kept; null keeps all.

    What an alias, a release or a running job needs is kept in any case.
    """

    versions: int | None = Field(
        None,
        ge=1,
        description="Number of the newest registered versions to keep, with the files of their "
        "runs.",
    )
    snapshots: int | None = Field(
        None,
        ge=1,
        description="Number of the newest snapshots whose rows are kept, beside those that a "
        "registered version was trained on. What a snapshot was made of stays known. The tokens of "
        "a snapshot go with its rows.",
    )
    artifacts: int | None = Field(
        None,
        ge=1,
        le=MOST_DAYS,
        description="Days to keep the files of MLflow runs that no registered version needs. "
        "Parameters, metrics and tags stay.",
    )
    predictions: int | None = Field(
        None,
        ge=1,
        le=MOST_DAYS,
        description="Days to keep the partitions of predictions and dead letters. Files that a "
        "newer commit replaced stay for 7 days, for readers of the earlier version.",
    )
    logs: int | None = Field(
        30, ge=1, le=MOST_DAYS, description="Days to keep log files that no process writes."
    )
    staging: int | None = Field(
        1, ge=1, le=MOST_DAYS, description="Days to keep what a killed command left unfinished."
    )
