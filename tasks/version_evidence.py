"""What is kept with a registered version, as a release needs it, whatever kind of model it is."""

from dataclasses import dataclass
from typing import Protocol

from millrace.models.common.installation import Installation
from millrace.models.registry.version_files import LanguagePackage, Package
from millrace.serving.release.version_check import VersionCheck
from millrace.serving.triton.version_folder import Artifact


@dataclass(frozen=True)
class Measured:
    """What a version was certified with.

    Attributes:
        passed: whether its certificate is of this version, and says that it held its gates.
        metric: its metric on its test split; None if there is none.
        name: of the metric.
        smaller_is_better: of two metrics.
    """

    passed: bool
    metric: float | None
    name: str
    smaller_is_better: bool = False


class VersionEvidence(Protocol):
    """One version's files, read as what they are."""

    def artifact(self) -> Artifact:
        """Return what is staged.

        Raises:
            InputError: the files cannot be read.
        """
        ...

    def expected(self) -> VersionCheck:
        """Return what the version must answer.

        Raises:
            InputError: the files cannot be read.
        """
        ...

    def measured(self) -> Measured:
        """Return what it was certified with.

        Raises:
            InputError: the certificate cannot be read.
        """
        ...

    def metric_of(self, other: Package) -> float | None:
        """Return another version's metric on the test split of this one; None if it has none.

        Raises:
            MillraceError: the rows cannot be read, or the other cannot answer them.
            KeyError: the rows lack a column that the other needs.
        """
        ...

    def told(self, difference: float | None) -> tuple[str, str]:
        """Return the evidence as Markdown, and the certificate as JSON with the live stage in it.

        Args:
            difference: of the live Triton's answers from the certified ones; None if not measured.

        Raises:
            InputError: the certificate cannot be read.
        """
        ...


def dossier_of(package: Package, places: Installation) -> VersionEvidence:
    """Return a version's files as what they are."""
    from millrace.tasks.kinds.graph.graph_evidence import GraphEvidence
    from millrace.tasks.kinds.language.language_evidence import LanguageEvidence

    if isinstance(package, LanguagePackage):
        return LanguageEvidence(package, places)
    return GraphEvidence(package.graph, places)
