"""The certificate: what a model lost on its way from training to live serving.

Every stage answers the same golden requests and the same test split. Its difference, and its loss
of the metric, are against the first stage: the model as it was trained.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, Self

from pydantic import TypeAdapter, ValidationError

from millrace.export.candidate import Candidate, P, S, Stage
from millrace.models.common.bounded_files import bounded_json


@dataclass(frozen=True)
class CertifiedVariant(Generic[S, P]):
    """One candidate, as it was measured.

    Attributes:
        name: of the candidate.
        digest: sha256 over its files; empty if it could not be made.
        stage: its distance from the model that was trained.
        speed: on the machine of the certificate.
        reason: why it was refused; None if it passed its gates.
    """

    name: str
    digest: str = ""
    stage: S | None = None
    speed: P | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Header:
    """What the certificate of every kind of model says.

    Attributes:
        model: registered model.
        candidate: the variant that was chosen.
        digest: sha256 of the chosen file, or over the files of the chosen folder.
        dataset: name of the dataset.
        dataset_version: snapshot that the test split is of.
        dataset_digest: digest of that snapshot.
        passed: whether the chosen candidate passed its gates.
        machine: what the candidates were measured on, in words.
        machine_kind: what machines share on which that choice holds.
    """

    model: str
    candidate: str
    digest: str
    dataset: str
    dataset_version: int
    dataset_digest: str
    passed: bool
    machine: str = ""
    machine_kind: str = ""


@dataclass(frozen=True, kw_only=True)
class Certificate(Header):
    """The evidence that is kept with a model version as `certificate.json`.

    Each kind of model has a subclass, which adds what only it measures.

    Attributes:
        stages: in the order of the way; the model that was trained is the first.
        forms: every candidate that was asked for, in their order; empty in a certificate of before
            that was kept.
    """

    stages: tuple[Any, ...] = ()
    forms: tuple[CertifiedVariant[Any, Any], ...] = ()

    @property
    def chosen(self) -> Stage | None:
        """The stage of the chosen candidate; None if it was not measured."""
        found: Stage | None = self.stage(self.candidate)
        return found

    def stage(self, name: str) -> Any:
        """Return the stage of that name; None if there is none."""
        candidates = (variant.stage for variant in self.forms if variant.stage is not None)
        return next((each for each in (*self.stages, *candidates) if each.name == name), None)

    def to_json(self) -> str:
        """Return the certificate as JSON."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote.

        Raises:
            ValueError: it is no certificate.
        """
        try:
            return TypeAdapter(cls).validate_python(bounded_json(text))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ValueError(f"{where}: {first['msg']}".removeprefix(": ")) from error


def certify_candidates(
    candidates: Sequence[Candidate[S, P]],
) -> tuple[CertifiedVariant[S, P], ...]:
    """Return candidates without what holds on this machine alone: where their files are."""
    return tuple(CertifiedVariant(c.name, c.digest, c.stage, c.speed, c.reason) for c in candidates)
