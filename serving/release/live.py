"""What is live: what each Triton serves, and what the release table says of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from millrace.models.common.errors import InputError, MillraceError, nearest
from millrace.models.common.installation import Installation
from millrace.serving.release.ledger import ledger_of
from millrace.serving.release.release_state import Release, standing_of
from millrace.serving.triton.client import TritonClient


@dataclass(frozen=True)
class Served:
    """Where a model stands.

    Attributes:
        model: the model.
        version: the version that should be served; None if nobody wants it any more.
        since: when it went live, ISO 8601.
        replicas: `m of n`: how many of the servers answer with it.
        refused: the version that has the alias and was refused, if one was.
        reason: why.
        rollout: the step of a rollout that is on, and of which version.
        accepted: the version that batch jobs score with, where nothing is live.
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
        """Why the alias and what is live differ, in words; empty where they do not."""
        if self.refused is not None:
            return f"version {self.refused} was refused: {self.reason}"
        if self.accepted is not None:
            return f"nothing is live; batch scores with version {self.accepted}"
        return self.rollout or ""


def live_versions(places: Installation) -> Mapping[str, object]:
    """Return the live version of every model, by endpoint; or why there is none to tell."""
    found: dict[str, object] = {}
    for endpoint in places.triton:
        with TritonClient(endpoint) as client:
            try:
                names = sorted({entry.name for entry in client.index()})
                versions = {name: client.live_version(name) for name in names}
                found[endpoint.grpc] = {k: v for k, v in versions.items() if v is not None}
            except MillraceError as error:
                found[endpoint.grpc] = error.what
    return found


def served_models(places: Installation, live: Mapping[str, object] | None) -> tuple[Served, ...]:
    """Return where every model stands that was ever released, by its name.

    Args:
        places: where the release table is.
        live: what `live_versions` returned; None if no Triton was asked.
    """
    by_model = ledger_of(places).by_model()
    return tuple(_served(places, model, by_model[model], live or {}) for model in sorted(by_model))


def history(places: Installation, model: str, limit: int | None = None) -> tuple[Release, ...]:
    """Return the releases of a model, the newest first.

    Raises:
        InputError: no release knows the model.
    """
    by_model = ledger_of(places).by_model()
    if model not in by_model:
        raise InputError(
            f"{model} was never released",
            valid=", ".join(sorted(by_model)) or "no model was",
            hint=nearest(model, list(by_model)) or "set the alias champion in the MLflow UI",
        )
    return by_model[model][::-1][:limit]


def _served(
    places: Installation, model: str, releases: tuple[Release, ...], live: Mapping[str, object]
) -> Served:
    standing = standing_of(releases)
    version = standing.live.version if standing.live else None
    answering = [
        endpoint
        for endpoint, models in live.items()
        if version is not None and isinstance(models, Mapping) and models.get(model) == version
    ]
    refused = standing.refused
    return Served(
        model,
        version,
        standing.live.at.isoformat() if standing.live else None,
        f"{len(answering)} of {len(places.triton)}",
        refused.version if refused else None,
        refused.reason if refused else None,
        f"version {standing.step.version}: {standing.step.reason}" if standing.step else None,
        standing.accepted.version if standing.accepted and not standing.live else None,
    )
