"""Which version of a model is approved: what online serves, and what batch scores with.

One decision for both. What is live is approved, whatever the alias says. Where nothing is live the
version with the alias is what a release would try: a batch job then decides as a release does
(`millrace.serving.release.approval`), and a refusal holds for both.
"""

from dataclasses import dataclass

from millrace.serving.release.plan import target
from millrace.serving.release.release_state import DesiredVersion, ReleaseState

SCORE = "millrace score"
"""Who asked, where a batch job decided."""


@dataclass(frozen=True)
class Approved:
    """A version to answer with.

    Attributes:
        wish: the version.
        reason: why it is this one, in a sentence.
    """

    wish: DesiredVersion
    reason: str


@dataclass(frozen=True)
class Undecided:
    """Nothing is live, and the version with the alias was not judged, or is to be judged again.

    Attributes:
        wish: the version.
        needs_trial: whether its answers are to be compared; else only the requirements are looked
            at, which may have changed.
    """

    wish: DesiredVersion
    needs_trial: bool


@dataclass(frozen=True)
class Unapproved:
    """There is no version to answer with.

    Attributes:
        what: why, in a sentence.
        seen: the reason of a refusal; None where none was refused.
        version: that was refused.
    """

    what: str
    seen: str | None = None
    version: int | None = None


Verdict = Approved | Undecided | Unapproved


def approved(
    model: str, standing: ReleaseState, wish: DesiredVersion | None, now: float
) -> Verdict:
    """Return the approved version of a model, or why there is none.

    Args:
        model: its name.
        standing: what its release events say.
        wish: the version with the alias champion.
        now: seconds since 1970.
    """
    wanted, live = target(standing, wish, now), standing.live
    if wanted is not None and live is not None:
        return Approved(live.wish, _reason(standing, wish, live.version))
    if wanted is not None:
        tried = standing.has_proved(wanted) or standing.is_accepted(wanted)
        return Undecided(wanted, needs_trial=not tried)
    refused = standing.refused
    if wish is not None and refused is not None:
        if refused.asked_by == SCORE:  # for a batch job nobody runs a release, which tries again
            return Undecided(wish, needs_trial=True)
        what = f"version {wish.version} of {model} has the alias champion and was refused, and "
        return Unapproved(what + "nothing else is live", refused.reason, wish.version)
    if live is not None:
        what = f"the alias champion of {model} was removed, and version {live.version} is unloaded"
        return Unapproved(what)
    return Unapproved(f"{model} has no champion to score with")


def _reason(standing: ReleaseState, wish: DesiredVersion | None, live: int) -> str:
    """Return why the live version is the approved one."""
    is_live = f"version {live} is live"
    if wish is None:
        return f"{is_live}; no version has the alias champion"
    if standing.is_live(wish):
        return is_live
    other = f"{is_live}; version {wish.version} has the alias champion and"
    if standing.refused is not None and standing.refuses(wish):
        return f"{other} was refused: {standing.refused.reason}"
    step = standing.step
    if step is not None and step.wish == wish:
        return f"{other} is rolled out: {step.reason}"
    return f"{other} is not live yet"
