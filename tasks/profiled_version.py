"""Reads the serving profile of a version, and applies its settings where it was made for."""

from dataclasses import replace
from functools import cache

from millrace.models.common.errors import InputError
from millrace.models.common.hardware import Machine, this_machine
from millrace.models.config.serving_spec import ServingSpec
from millrace.models.config.slo_spec import SloSpec
from millrace.models.registry.mlflow_registry import Registry
from millrace.models.registry.serving_profiles import read_profile
from millrace.models.registry.version_files import ModelVersion
from millrace.serving.profile.engine import engine_of
from millrace.serving.profile.record import ServingProfile, find_fault, parse_profile
from millrace.serving.triton.version_folder import Artifact


def load_profile(registry: Registry, version: ModelVersion) -> ServingProfile | None:
    """Return a version's serving profile; None if it has none.

    Raises:
        InputError: it is not signed by a key that this home trusts, or cannot be read.
        TransientError: MLflow does not answer.
    """
    text = read_profile(registry, version)
    if text is None:
        return None
    try:
        profile = parse_profile(text)
        profile.configuration.apply(ServingSpec())
        return profile
    except ValueError as error:
        raise InputError(
            f"the serving profile of {version.title} cannot be read",
            seen=error,
            hint=f"measure it again: millrace profile FILE --version {version.version}",
        ) from error


def applies_here(profile: ServingProfile, digest: str) -> bool:
    """Return whether a profile's settings are those to serve a version with on this machine.

    They are if the profile proves its goal, on a machine of this kind with as many cores.

    Args:
        profile: the profile.
        digest: digest of the version's files.
    """
    machine = _machine()
    is_alike = (profile.machine_kind, profile.cores) == (machine.kind, machine.cores)
    return is_alike and profile.is_proved and profile.digest == digest


def profiled(artifact: Artifact, profile: ServingProfile | None) -> Artifact:
    """Return a version's artifact with the settings of its serving profile, if they apply here."""
    if profile is None or not applies_here(profile, artifact.sha256):
        return artifact
    serving = profile.configuration.apply(artifact.serving)
    return replace(artifact, serving=serving, profile=profile.sha256)


def fault_here(
    profile: ServingProfile | None, goal: SloSpec | None, artifact: Artifact
) -> str | None:
    """Return why a profile does not prove a version's goal on this machine; None if it does."""
    machine = _machine()
    return find_fault(
        profile,
        digest=artifact.sha256,
        goal=goal,
        machine_kind=machine.kind,
        cores=machine.cores,
        engine=engine_of(artifact),
    )


@cache
def _machine() -> Machine:
    """Return this machine, which the watch of `up` asks for every few seconds."""
    return this_machine()
