"""The live versions: what each Triton serves, and what the release table says."""

from collections.abc import Mapping
from dataclasses import dataclass

from millrace.models.common.errors import InputError, MillraceError, nearest
from millrace.models.common.installation import Installation
from millrace.serving.release.ledger import ledger_of
from millrace.serving.release.release_state import Release, derive_state
from millrace.serving.replicas.files import servers_of
from millrace.serving.triton.client import TritonClient


@dataclass(frozen=True)
class Served:
    """The state of a served model.

    Attributes:
        model: the model.
        version: the version that should be served; None if the model was unloaded.
        since: when it went live, ISO 8601.
        replicas: how many servers serve that version, as `m of n`.
        refused: the version that has the alias and was refused; None if it was not refused.
        reason: why this version was refused.
        rollout: the running step of a rollout and its version, in words; None without a rollout.
        accepted: the version that batch jobs score with; None if a version is live.
    """

    model: str
    version: int | None
    since: str | None
    replicas: str
    refused: int | None = None
    reason: str | None = None
    rollout: str | None = None
    accepted: int | None = None

    @property
    def note(self) -> str:
        """Why the live version is not the one with the alias, in words; empty if it is."""
        if self.refused is not None:
            return f"version {self.refused} was refused: {self.reason}"
        if self.accepted is not None:
            return f"nothing is live; batch scores with version {self.accepted}"
        return self.rollout or ""


def live_versions(installation: Installation) -> Mapping[str, object]:
    """Return each endpoint's live versions by model, or why the endpoint does not answer."""
    found: dict[str, object] = {}
    for endpoint in servers_of(installation):
        with TritonClient(endpoint, checks=True) as client:
            try:
                names = sorted({entry.name for entry in client.index()})
                versions = {name: client.live_version(name) for name in names}
                found[str(endpoint)] = {k: v for k, v in versions.items() if v is not None}
            except MillraceError as error:
                found[str(endpoint)] = error.what
    return found


def served_models(
    installation: Installation, live: Mapping[str, object] | None
) -> tuple[Served, ...]:
    """Return the state of each model that was ever released, sorted by name.

    Args:
        installation: the installation whose release table is read.
        live: what `live_versions` returned; None if no Triton was queried.
    """
    by_model = ledger_of(installation).by_model()
    return tuple(
        _describe_model(installation, model, by_model[model], live or {})
        for model in sorted(by_model)
    )


def history(
    installation: Installation, model: str, limit: int | None = None
) -> tuple[Release, ...]:
    """Return the releases of a model, the newest first.

    Raises:
        InputError: the model was never released.
    """
    by_model = ledger_of(installation).by_model()
    if model not in by_model:
        raise InputError(
            f"{model} was never released",
            valid=", ".join(sorted(by_model)) or "no model was released yet",
            hint=nearest(model, list(by_model)) or "set the alias champion in the MLflow UI",
        )
    return by_model[model][::-1][:limit]


def _describe_model(
    installation: Installation,
    model: str,
    releases: tuple[Release, ...],
    live: Mapping[str, object],
) -> Served:
    state = derive_state(releases)
    version = state.live_version
    answering = [
        endpoint
        for endpoint, models in live.items()
        if version is not None and isinstance(models, Mapping) and models.get(model) == version
    ]
    refused = state.refused
    return Served(
        model,
        version,
        state.live.at.isoformat() if state.live else None,
        f"{len(answering)} of {len(servers_of(installation))}",
        refused.version if refused else None,
        refused.reason if refused else None,
        f"version {state.step.version}: {state.step.reason}" if state.step else None,
        state.accepted.version if state.accepted and not state.live else None,
    )
