"""The approved version of a model for a process that has no server: decided, and written down.

A release proves a version on a server. A batch job has none, and where nothing is live it does what
of that needs none: the requirements of the pipeline, and the golden answers in a process of its own
with limits. A verdict is an event of the release table: `accepted`, which makes nothing live and
spares no release its trial on the server, or `refused`, which holds for online too.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from millrace.models.common.errors import InputError, MillraceError
from millrace.serving.release.approved import (
    SCORE,
    Approved,
    Unapproved,
    Undecided,
    Verdict,
    approved,
)
from millrace.serving.release.ledger import Ledger
from millrace.serving.release.model_registry import ModelRegistry
from millrace.serving.release.outcome import sentence
from millrace.serving.release.release_state import (
    DesiredVersion,
    Kind,
    Release,
    ReleaseState,
    standing_of,
)
from millrace.serving.release.version_tags import REASON, STATUS
from millrace.serving.triton.repository import Repository

log = logging.getLogger("millrace")


@dataclass(frozen=True)
class Choice:
    """The version that a batch job answers with.

    Attributes:
        wish: the version.
        is_approved: whether it is the one that online serves, or would.
        reason: why it is this one, in a sentence.
    """

    wish: DesiredVersion
    is_approved: bool
    reason: str


@dataclass(frozen=True)
class Approver:
    """Decides for batch jobs.

    Attributes:
        desk: the registry's side of a release.
        ledger: the release table.
        repository: whose lock keeps releases of the model out while it is judged.
        clock: seconds since 1970.
    """

    desk: ModelRegistry
    ledger: Ledger
    repository: Repository
    clock: Callable[[], float] = field(default=time.time)

    def choose(self, model: str) -> Choice:
        """Return the approved version; one that was never released is judged now.

        Raises:
            InputError: there is none, or it was refused; with the reason and the way out.
            TransientError: the registry or the release table does not answer.
        """
        _, found = self._look(model)
        if isinstance(found, Undecided):
            with self.repository.exclusive(model):  # a release that is at work may decide it
                standing, found = self._look(model)
                if isinstance(found, Undecided):
                    return self._judged(model, standing, found)
        if isinstance(found, Unapproved):
            raise unapproved(model, found)
        return Choice(found.wish, True, found.reason)

    def named(self, model: str, wish: DesiredVersion) -> Choice:
        """Return a version that somebody asked for, and whether it is the approved one."""
        standing, found = self._look(model)
        told = f"asked for by its number, {wish.version}"
        if isinstance(found, Approved):
            return Choice(wish, found.wish == wish, f"{told}; {found.reason}")
        if isinstance(found, Unapproved):
            reason = f"{found.what}{f': {found.seen}' if found.seen else ''}"
            return Choice(wish, False, f"{told}; {reason}")
        accepted = standing.is_accepted(wish) and found.wish == wish
        return Choice(wish, accepted, f"{told}; {'accepted' if accepted else 'nothing is live'}")

    def _look(self, model: str) -> tuple[ReleaseState, Verdict]:
        wish = self.desk.wishes(model).get(model)
        standing = standing_of(self.ledger.releases(model))
        return standing, approved(model, standing, wish, self.clock())

    def _judged(self, model: str, standing: ReleaseState, found: Undecided) -> Choice:
        """Judge a version as a release does, as far as that needs no server."""
        wish, began = found.wish, time.perf_counter()
        try:
            evidence = self._tried(model, found)
        except MillraceError as error:
            if error.transient or not wish.digest:  # of another tool: not ours to judge
                raise
            reason = sentence(error)
            known = standing.refused if standing.refuses(wish) else None
            if known is None or known.reason != reason:
                self._append(model, "refused", wish, reason, began)
                self.desk.write(model, wish.version, {STATUS: "refused", REASON: reason})
            what = f"version {wish.version} of {model} has the alias champion and is refused, and "
            raise unapproved(
                model, Unapproved(what + "nothing else is live", reason, wish.version)
            ) from error
        if standing.refuses(wish):
            self._append(model, "withdrawn", wish, "it is tried again", began)
            self.desk.write(model, wish.version, {STATUS: None, REASON: None})
        reason = "nothing is live; it holds what a release asks, as far as that needs no server"
        if found.needs_trial:
            self._append(model, "accepted", wish, reason, began, evidence)
        return Choice(wish, True, reason)

    def _tried(self, model: str, found: Undecided) -> Mapping[str, Any]:
        version = found.wish.version
        artifact = self.desk.fetch(model, version)
        self.desk.verify(model, version, None)
        if not found.needs_trial:
            return {}
        log.info("%s version %s: nothing is live, so its answers are tried here", model, version)
        return {"difference": self.desk.expected(model, version).validate_alone(artifact)}

    def _append(
        self,
        model: str,
        kind: Kind,
        wish: DesiredVersion,
        reason: str,
        began: float,
        evidence: Mapping[str, Any] | None = None,
    ) -> None:
        release = Release(
            model=model,
            kind=kind,
            version=wish.version,
            digest=wish.digest,
            asked_by=SCORE,
            reason=reason,
            evidence=evidence or {},
            seconds=time.perf_counter() - began,
        )
        self.ledger.append(release)
        self.desk.tell(release)


def unapproved(model: str, found: Unapproved) -> InputError:
    """Return the error of a batch job that has no version to score with."""
    if found.version is None:
        return InputError(
            found.what,
            valid=f"a version of {model} with the alias champion",
            hint="run `millrace run FILE`, then set the alias in the MLflow UI",
        )
    return InputError(
        found.what,
        seen=found.seen,
        valid="a version that a release accepts; online and batch take the same",
        hint="mend what is said there, or move the alias champion to another version; `millrace "
        f"release` has this one tried again, `millrace score FILE --version {found.version}` "
        "scores with it all the same",
    )
