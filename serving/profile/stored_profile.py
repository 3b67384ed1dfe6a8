"""Whether a new profile of a version takes the place of the one that is stored."""

from millrace.models.config.slo_spec import SloSpec
from millrace.serving.profile.record import ServingProfile, find_fault


def is_replaced(earlier: ServingProfile | None, new: ServingProfile, own: SloSpec | None) -> bool:
    """Return whether a new profile is stored in place of an earlier one.

    A proof is what a release asks for, so a trial of another goal does not take it away. It goes if
    the new profile says that the same goal is not met any more, on the same kind of machine.

    Args:
        earlier: the stored profile; None if there is none that can be used.
        new: the new profile.
        own: the goal of the version's own pipeline file.
    """
    if earlier is None or not earlier.is_proved:
        return True
    if not new.is_proved:
        return _proves(earlier, new.goal, new)
    return _proves(new, own, new) or not _proves(earlier, own, new)


def other_goal(profile: ServingProfile, own: SloSpec | None) -> str:
    """Return why a profile that was made here does not prove the version's own goal, in words.

    Args:
        profile: the profile.
        own: the goal of the version's own pipeline file.

    Returns:
        Empty if it does, or if the file has no goal, so that nothing asks for a proof.
    """
    if own is None or not profile.is_proved:
        return ""
    return _fault(profile, own, profile) or ""


def _proves(profile: ServingProfile, goal: SloSpec | None, here: ServingProfile) -> bool:
    """Return whether a profile proves a goal where another one was made."""
    return _fault(profile, goal, here) is None


def _fault(profile: ServingProfile, goal: SloSpec | None, here: ServingProfile) -> str | None:
    return find_fault(
        profile,
        digest=here.digest,
        goal=goal,
        machine_kind=here.machine_kind,
        cores=here.cores,
        engine=here.engine,
    )
