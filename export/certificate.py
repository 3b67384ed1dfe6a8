"""The certificate: the differences between a trained model, its exported variants and live serving.

Every stage is measured on the same golden requests and the same test split. Its difference and its
metric loss are relative to the first stage, which is the trained model.
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
    """The measurements of one candidate.

    Attributes:
        name: the candidate's name.
        digest: sha256 over its files; empty if the candidate could not be made.
        stage: its differences from the trained model.
        speed: its speed on the machine of the certificate.
        reason: why it was refused; None if it passed its gates.
    """

    name: str
    digest: str = ""
    stage: S | None = None
    speed: P | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Header:
    """The fields of every certificate, for all kinds of models.

    Attributes:
        model: name of the registered model.
        candidate: name of the chosen variant.
        digest: sha256 of the chosen file, or over the files of the chosen folder.
        dataset: name of the dataset.
        dataset_version: version of the snapshot with the test split.
        dataset_digest: digest of that snapshot.
        passed: whether the chosen candidate passed its gates.
        machine: description of the machine that measured the candidates.
        machine_kind: kind of that machine: its GPU, or its CPU architecture and CPU flags if it has
            no GPU. The choice is valid for this kind of machine.
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
    """The evidence that is stored with a model version as `certificate.json`.

    Each kind of model has a subclass, which adds its own measurements.

    Attributes:
        stages: stages from training to live serving; the first is the trained model.
        forms: every candidate of the pipeline file, in the file's order; empty in old certificates,
            which do not have this field.
    """

    stages: tuple[Any, ...] = ()
    forms: tuple[CertifiedVariant[Any, Any], ...] = ()

    @property
    def chosen(self) -> Stage | None:
        """The stage of the chosen candidate; None if it was not measured."""
        found: Stage | None = self.stage(self.candidate)
        return found

    def stage(self, name: str) -> Any:
        """Return the stage with a name; None if there is none."""
        candidates = (variant.stage for variant in self.forms if variant.stage is not None)
        return next((each for each in (*self.stages, *candidates) if each.name == name), None)

    def to_json(self) -> str:
        """Return the certificate as JSON."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the certificate that `to_json` wrote.

        Raises:
            ValueError: the text is not a certificate.
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
    """Return the measurements of candidates, without the local paths of their files."""
    return tuple(CertifiedVariant(c.name, c.digest, c.stage, c.speed, c.reason) for c in candidates)
