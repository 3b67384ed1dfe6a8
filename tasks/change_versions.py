"""Moves the alias champion between versions, and deletes a version, for those who use a terminal.

The same can be done in MLflow's UI. Triton follows the alias, as after a change there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from millrace.models.common.errors import InputError, MillraceError
from millrace.models.common.installation import Installation
from millrace.models.config.retention_spec import RetentionSpec
from millrace.models.registry.mlflow_registry import Registry, registry_of
from millrace.models.registry.named_version import in_words
from millrace.models.registry.version_files import (
    CERTIFICATE_TAG,
    CHALLENGER,
    CHAMPION,
    COMPARED_TAG,
    FAILED,
    ModelVersion,
)
from millrace.serving.release.ledger import ledger_of
from millrace.serving.release.release_state import ReleaseState, derive_state
from millrace.tasks.retention.clean_registry import RegistryCleaner

BEFORE_TAG = "millrace.champion_before"
"""Tag of a version: the number of the champion that it replaced by `millrace promote`."""


@dataclass(frozen=True)
class Moved:
    """Where the alias champion is, and where it was.

    Attributes:
        model: the registered model.
        version: the version that has the alias.
        before: the version that had it; None if none had.
        live: the version that clients get; None if nothing is live, or no release ever ran.
        refusal: why a release would refuse a version that was promoted; None if it would not.
        compared: how it compares with the version that its training was compared with, in a
            sentence that begins with that version; empty if it was not.
    """

    model: str
    version: int
    before: int | None
    live: int | None = None
    refusal: str | None = None
    compared: str = ""

    @property
    def changed(self) -> bool:
        """Whether the alias was moved."""
        return self.version != self.before


@dataclass(frozen=True)
class Deleted:
    """A version that was deleted with its files.

    Attributes:
        model: the registered model.
        version: its number.
    """

    model: str
    version: int


def promote_version(installation: Installation, model: str, number: int | None = None) -> Moved:
    """Give a version the alias champion.

    Args:
        installation: where the registry and the release table are.
        model: the registered model.
        number: the version's number; None for the one with the alias challenger.

    Raises:
        InputError: there is no such version, or it did not pass its gates.
        TransientError: MLflow does not answer.
    """
    registry = registry_of(installation)
    version = _challenger(registry, model) if number is None else registry.version(model, number)
    verdict = version.tags.get(CERTIFICATE_TAG, "")
    if verdict.startswith(FAILED):
        raise InputError(
            f"{in_words(version)} did not pass its gates, so a release would refuse it",
            seen=verdict.removeprefix(FAILED),
            valid="a version that passed its gates",
            hint="train another version, or loosen its gates and train again",
        )
    state = _state(installation, model)
    moved, refused = _move(registry, version, state), _refusal(installation, version, state)
    return replace(moved, refusal=refused, compared=version.tags.get(COMPARED_TAG, ""))


def _refusal(installation: Installation, version: ModelVersion, state: ReleaseState) -> str | None:
    """Return why a release would refuse a version; None if it would not, or that is not known."""
    from millrace.tasks.release import MlflowRegistry

    try:
        known = MlflowRegistry(installation)
        return known.refusal(version.model, version.version, state.live_version)
    except MillraceError:  # a release finds out, and says so
        return None


def roll_back(installation: Installation, model: str) -> Moved:
    """Give the alias champion back to the version before.

    Raises:
        InputError: the model has no champion, or no version before it is known.
        TransientError: MLflow does not answer.
    """
    registry, state = registry_of(installation), _state(installation, model)
    champion = registry.by_alias(model, CHAMPION)
    if champion is None:
        raise InputError(
            f"{model} has no champion to roll back from",
            hint=f"`millrace promote {model} VERSION` gives a version the alias champion",
        )
    target = version_before(champion, state)
    if target is None:
        raise InputError(
            f"no version is known that was champion of {model} before version {champion.version}",
            seen="no release of another version, and no `millrace promote`",
            hint=f"name one: `millrace promote {model} VERSION`; `millrace history {model}` lists "
            "what was live",
        )
    return _move(registry, registry.version(model, target), state)


def version_before(champion: ModelVersion, state: ReleaseState) -> int | None:
    """Return the version to roll back to; None if none is known.

    The live version, where the champion is another one, which was refused or has not gone live
    yet; else the version that was live before; else the champion that `millrace promote` replaced.
    """
    number, tag = champion.version, champion.tags.get(BEFORE_TAG, "")
    known = (state.live_version, state.superseded, int(tag) if tag.isdecimal() else None)
    return next((each for each in known if each is not None and each != number), None)


def delete_version(
    installation: Installation, model: str, number: int, named: Mapping[str, str]
) -> Deleted:
    """Delete a version and its files, unless somebody needs it.

    Args:
        installation: where the registry and the release table are.
        model: the registered model.
        number: the version's number.
        named: texts that may name versions, by what is then said of the version.

    Raises:
        InputError: there is no such version, or it is needed: by an alias, a server, a job, another
            version or a pipeline file.
        WorkError: MLflow or the artifact store failed.
    """
    registry_of(installation).version(model, number)
    RegistryCleaner.read(model, RetentionSpec(), installation, named).remove(number)
    return Deleted(model, number)


def _challenger(registry: Registry, model: str) -> ModelVersion:
    found = registry.by_alias(model, CHALLENGER)
    if found is None:
        raise InputError(
            f"no version of {model} has the alias {CHALLENGER}, which the newest version that "
            "passed its gates has",
            valid="millrace promote MODEL VERSION",
            hint="name a version, or train one: millrace run FILE",
        )
    return found


def _state(installation: Installation, model: str) -> ReleaseState:
    return derive_state(ledger_of(installation).releases(model))


def _move(registry: Registry, version: ModelVersion, state: ReleaseState) -> Moved:
    champion = registry.by_alias(version.model, CHAMPION)
    before = champion.version if champion else None
    moved = Moved(version.model, version.version, before, state.live_version)
    if moved.changed:
        if before is not None:
            registry.set_tags(version, {BEFORE_TAG: before})
        registry.set_alias(version, CHAMPION)
    return moved
