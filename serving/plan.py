"""What must happen so that Triton serves what the registry wants: decisions only, no effects."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from serving.index import LoadedModel, live_version, ready_versions


@dataclass(frozen=True)
class Stage:
    """Fetch a version and publish its folder in the model repository."""

    model: str
    version: int


@dataclass(frozen=True)
class Load:
    """Make `version` the one that answers requests which name none.

    Attributes:
        model: the model.
        version: the version wanted.
        keep: versions to keep loaded beside it, all of them lower.
        previous: the version that answers now, or None.
    """

    model: str
    version: int
    keep: tuple[int, ...] = ()
    previous: int | None = None

    @property
    def versions(self) -> tuple[int, ...]:
        """What `version_policy { specific }` has to name."""
        return (*self.keep, self.version)


@dataclass(frozen=True)
class Unload:
    """Stop serving a model that has no champion any more."""

    model: str
    previous: int


Action = Stage | Load | Unload


def plan(
    desired: Mapping[str, int],
    staged: Mapping[str, Collection[int]],
    index: Iterable[LoadedModel],
    left_alone: Collection[str] = (),
) -> tuple[Action, ...]:
    """Decide what to do to one server; nothing when it serves what is desired.

    Args:
        desired: the champion's version of each model.
        staged: the versions of each model on disk.
        index: what the server has loaded.
        left_alone: models whose champion is not ours to load; what is loaded of them stays.

    Returns:
        What to stage, then what to load, then what to unload, each by the model's name.
    """
    entries = tuple(index)
    changes = [
        (model, version)
        for model, version in sorted(desired.items())
        if live_version(entries, model) != version
    ]
    stages = [Stage(*change) for change in changes if change[1] not in staged.get(change[0], ())]
    loads = [
        Load(
            model,
            version,
            keep=warm_versions(version, ready_versions(entries, model), staged.get(model, ())),
            previous=live_version(entries, model),
        )
        for model, version in changes
    ]
    unloads = [
        Unload(model, live)
        # Only what a release staged: on a shared server other people's models are loaded too.
        for model in sorted(staged.keys() - desired.keys() - set(left_alone))
        if (live := live_version(entries, model)) is not None
    ]
    return (*stages, *loads, *unloads)


def warm_versions(wanted: int, ready: Collection[int], staged: Collection[int]) -> tuple[int, ...]:
    """Return which loaded versions stay loaded beside the wanted one: the last one below it.

    Triton answers a request that names no version with the highest number it has loaded, so after
    a rollback nothing above the wanted version may stay.
    """
    below = [version for version in ready if version < wanted and version in staged]
    return (max(below),) if below else ()
