"""The approved version of a model: Triton serves it, and batch jobs score with it.

A live version is approved, whatever the alias says. If no version is live, a release would try the
version with the alias. A batch job has no server for that trial, so it runs only those checks of a
release that need no server: the requirements of the pipeline, and the golden answers in a
subprocess with limits. The verdict, `accepted` or `refused`, is an event of the release table. An
accepted version is not live, and still needs the trial on a server. A refused version is refused
for online serving too.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from millrace.models.common.errors import InputError, MillraceError
from millrace.serving.release.ledger import Ledger
from millrace.serving.release.model_registry import ModelRegistry
from millrace.serving.release.outcome import summarize_error
from millrace.serving.release.plan import select_target
from millrace.serving.release.release_state import (
    DesiredVersion,
    Kind,
    Release,
    ReleaseState,
    derive_state,
)
from millrace.serving.release.version_tags import REASON, STATUS
from millrace.serving.triton.repository import Repository

SCORE = "millrace score"
"""`asked_by` of an event that a batch job recorded."""

log = logging.getLogger("millrace")


@dataclass(frozen=True)
class Approved:
    """A version is approved.

    Attributes:
        desired: the version.
        reason: why this version is approved, in a sentence.
    """

    desired: DesiredVersion
    reason: str


@dataclass(frozen=True)
class Undecided:
    """No version is live, and the version with the alias is to be checked.

    Attributes:
        desired: the version.
        needs_trial: whether to compare the version's answers with its certified answers. If false,
            only the requirements are checked, because they may have changed.
    """

    desired: DesiredVersion
    needs_trial: bool


@dataclass(frozen=True)
class Unapproved:
    """No version is approved.

    Attributes:
        what: why, in a sentence.
        seen: the reason of a refusal; None if no version was refused.
        version: the refused version; None if no version was refused.
    """

    what: str
    seen: str | None = None
    version: int | None = None


Verdict = Approved | Undecided | Unapproved


def decide_approval(
    model: str, state: ReleaseState, desired: DesiredVersion | None, now: float
) -> Verdict:
    """Return the approved version of a model, or why there is none.

    Args:
        model: the model's name.
        state: the model's release state.
        desired: the version with the alias champion.
        now: seconds since 1970.
    """
    target, live = select_target(state, desired, now), state.live
    if target is not None and live is not None:
        return Approved(live.desired, _explain_live(state, desired, live.version))
    if target is not None:
        is_checked = state.is_validated(target) or state.is_accepted(target)
        return Undecided(target, needs_trial=not is_checked)
    refused = state.refused
    if desired is not None and refused is not None:
        if refused.asked_by == SCORE:  # a batch job has no release that tries again
            return Undecided(desired, needs_trial=True)
        what = f"version {desired.version} of {model} has the alias champion and was refused, and "
        return Unapproved(what + "nothing else is live", refused.reason, desired.version)
    if live is not None:
        what = f"the alias champion of {model} was removed, and version {live.version} is unloaded"
        return Unapproved(what)
    return Unapproved(f"{model} has no champion to score with")


def _explain_live(state: ReleaseState, desired: DesiredVersion | None, live: int) -> str:
    """Return why the live version is the approved one."""
    is_live = f"version {live} is live"
    if desired is None:
        return f"{is_live}; no version has the alias champion"
    if state.is_live(desired):
        return is_live
    other = f"{is_live}; version {desired.version} has the alias champion and"
    if state.refused is not None and state.has_refused(desired):
        return f"{other} was refused: {state.refused.reason}"
    step = state.step
    if step is not None and step.desired == desired:
        return f"{other} is rolled out: {step.reason}"
    return f"{other} is not live yet"


@dataclass(frozen=True)
class Choice:
    """The version that a batch job scores with.

    Attributes:
        desired: the version.
        is_approved: whether Triton serves this version, or would serve it.
        reason: why this version was chosen, in a sentence.
    """

    desired: DesiredVersion
    is_approved: bool
    reason: str


@dataclass(frozen=True)
class Approver:
    """Chooses the version that a batch job scores with.

    Attributes:
        registry: the model registry.
        ledger: the release table.
        repository: the model repository; its lock keeps out releases of this model meanwhile.
        clock: seconds since 1970.
    """

    registry: ModelRegistry
    ledger: Ledger
    repository: Repository
    clock: Callable[[], float] = field(default=time.time)

    def choose(self, model: str) -> Choice:
        """Return the approved version; a version that was never released is checked first.

        Raises:
            InputError: no version is approved; the error has the reason and the next step.
            TransientError: the registry or the release table does not answer.
        """
        _, verdict = self._decide(model)
        if isinstance(verdict, Undecided):
            with self.repository.exclusive(model):  # a release in progress may decide it
                state, verdict = self._decide(model)
                if isinstance(verdict, Undecided):
                    return self._check(model, state, verdict)
        if isinstance(verdict, Unapproved):
            raise self._no_version(model, verdict)
        return Choice(verdict.desired, True, verdict.reason)

    def choose_named(self, model: str, desired: DesiredVersion) -> Choice:
        """Return the version that the user named, and whether it is the approved one."""
        state, verdict = self._decide(model)
        named = f"requested by its number, {desired.version}"
        if isinstance(verdict, Approved):
            return Choice(desired, verdict.desired == desired, f"{named}; {verdict.reason}")
        if isinstance(verdict, Unapproved):
            reason = f"{verdict.what}{f': {verdict.seen}' if verdict.seen else ''}"
            return Choice(desired, False, f"{named}; {reason}")
        is_accepted = state.is_accepted(desired) and verdict.desired == desired
        reason = "accepted" if is_accepted else "nothing is live"
        return Choice(desired, is_accepted, f"{named}; {reason}")

    def _decide(self, model: str) -> tuple[ReleaseState, Verdict]:
        desired = self.registry.desired_versions(model).get(model)
        state = derive_state(self.ledger.releases(model))
        return state, decide_approval(model, state, desired, self.clock())

    def _check(self, model: str, state: ReleaseState, undecided: Undecided) -> Choice:
        """Check a version with those checks of a release that need no server."""
        desired, began = undecided.desired, time.perf_counter()
        version = desired.version
        try:
            evidence = self._compare_answers(model, undecided)
        except MillraceError as error:
            if error.transient or not desired.digest:  # another tool's versions are not checked
                raise
            reason = summarize_error(error)
            known = state.refused if state.has_refused(desired) else None
            if known is None or known.reason != reason:
                self._append(model, "refused", desired, reason, began)
                self.registry.write_tags(model, version, {STATUS: "refused", REASON: reason})
            what = f"version {version} of {model} has the alias champion and is refused, and "
            unapproved = Unapproved(what + "nothing else is live", reason, version)
            raise self._no_version(model, unapproved) from error
        if state.has_refused(desired):
            self._append(model, "withdrawn", desired, "the version is tried again", began)
            self.registry.write_tags(model, version, {STATUS: None, REASON: None})
        reason = "nothing is live; the version passes the release checks that need no server"
        if undecided.needs_trial:
            self._append(model, "accepted", desired, reason, began, evidence)
        return Choice(desired, True, reason)

    def _compare_answers(self, model: str, undecided: Undecided) -> Mapping[str, Any]:
        version = undecided.desired.version
        artifact = self.registry.fetch(model, version)
        self.registry.verify(model, version, None)
        if not undecided.needs_trial:
            return {}
        log.info("%s version %s: no version is live; this job checks its answers", model, version)
        check = self.registry.version_check(model, version)
        return {"difference": check.validate_in_subprocess(artifact)}

    def _append(
        self,
        model: str,
        kind: Kind,
        desired: DesiredVersion,
        reason: str,
        began: float,
        evidence: Mapping[str, Any] | None = None,
    ) -> None:
        release = Release(
            model=model,
            kind=kind,
            version=desired.version,
            digest=desired.digest,
            asked_by=SCORE,
            reason=reason,
            evidence=evidence or {},
            seconds=time.perf_counter() - began,
        )
        self.ledger.append(release)
        self.registry.report(release)

    def _no_version(self, model: str, verdict: Unapproved) -> InputError:
        """Return the error of a batch job that has no version to score with."""
        if verdict.version is None:
            return InputError(
                verdict.what,
                valid=f"a version of {model} with the alias champion",
                hint=self.registry.describe_promotion(model),
            )
        return InputError(
            verdict.what,
            seen=verdict.seen,
            valid="a version that a release accepts; Triton and batch jobs use the same version",
            hint="fix what `seen` says, or move the alias champion to another version; `millrace "
            f"release` tries version {verdict.version} again, and `millrace score FILE --version "
            f"{verdict.version}` scores with it anyway",
        )
