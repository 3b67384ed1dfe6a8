"""How many replicas a home may have, from all of its pipeline files.

A Triton serves all models of a home, so its replicas belong to the home, while `serving.replicas`
is in the pipeline files: the largest `min` and the largest `max` of them count. If one of the files
that allow a change only wants to see it logged (`dry_run`), nothing changes.
"""

from collections.abc import Iterable

from millrace.models.config.replicas_spec import ReplicasSpec


def combine_bounds(specs: Iterable[ReplicasSpec]) -> ReplicasSpec:
    """Return the bounds of a home; one replica without any pipeline file."""
    found = list(specs) or [ReplicasSpec()]
    return ReplicasSpec(
        min=max(each.min for each in found),
        max=max(each.max for each in found),
        dry_run=any(each.dry_run for each in found if each.max > each.min),
    )
