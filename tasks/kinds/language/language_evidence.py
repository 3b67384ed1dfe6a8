"""A language model's files as a release needs them."""

from dataclasses import dataclass, replace

from millrace.export.language_certificate import LanguageCertificate
from millrace.export.live_stage import LiveStage
from millrace.models.common.errors import InputError
from millrace.models.common.hardware import this_machine
from millrace.models.common.installation import Places
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.version_files import LanguagePackage, Package
from millrace.serving.release.golden_prompts import GoldenPrompts
from millrace.serving.triton.version_folder import Artifact
from millrace.tasks.kept import language_certificate_of, pipeline_of
from millrace.tasks.kinds.language.draft_model import draft_of
from millrace.tasks.kinds.language.language_compare import certified_perplexity, perplexity_beside
from millrace.tasks.kinds.language.language_report import forms_table
from millrace.tasks.version_evidence import Measured

PERPLEXITY = "perplexity"
PROMPTS = 8
"""That a release asks, on a server that others ask too; `millrace certify` asks all."""


@dataclass(frozen=True)
class LanguageDossier:
    """A version of a language model; a `Dossier`.

    Attributes:
        package: its files.
        places: where snapshots are.
    """

    package: LanguagePackage
    places: Places

    def artifact(self) -> Artifact:
        """Return what is staged: the form, and the version that drafts for it."""
        package = self.package
        serving = pipeline_of(package).serving
        draft = draft_of(serving.generation, registry_of(self.places))
        digest = package.version.digest
        return Artifact(package.files, digest, "language", serving=serving, draft=draft)

    def expected(self) -> GoldenPrompts:
        """Return the golden prompts that a release asks, and their answers."""
        return self.golden().first(PROMPTS)

    def golden(self) -> GoldenPrompts:
        """Return all golden prompts and answers.

        Raises:
            InputError: they cannot be read.
        """
        slo = pipeline_of(self.package).serving.latency_slo_ms
        machine = _caution(language_certificate_of(self.package))
        caution = "; ".join(filter(None, (self.package.untrusted, machine)))
        try:
            golden = GoldenPrompts.of(self.package.golden(), slo, caution)
        except (ValueError, TypeError, KeyError, OSError) as error:
            raise InputError(
                f"{self.package.version.model} version {self.package.version.version} has no "
                "golden answers that can be read",
                seen=error,
                hint="register the model again",
            ) from error
        # Another kind of machine rounds otherwise, and a tie may fall otherwise.
        return replace(golden, exact=golden.exact and not machine)

    def measured(self) -> Measured:
        """Return what it was certified with."""
        certificate = language_certificate_of(self.package)
        return Measured(
            certificate.passed and certificate.digest == self.package.version.digest,
            certified_perplexity(self.package),
            PERPLEXITY,
            smaller_is_better=True,
        )

    def metric_of(self, other: Package) -> float | None:
        """Return another version's perplexity beside this one's."""
        if not isinstance(other, LanguagePackage):
            return None
        return perplexity_beside(self.package, other, self.places)

    def told(self, difference: float | None) -> tuple[str, str]:
        """Return the forms as a table, and the certificate."""
        certificate = language_certificate_of(self.package)
        text = forms_table([form.candidate for form in certificate.forms], certificate)
        if difference is not None:
            certificate = certificate.with_live(LiveStage(difference))
            text += f"\n\nThe live Triton gives {difference:.1%} of its golden answers otherwise."
        return text, certificate.to_json()


def _caution(certificate: LanguageCertificate) -> str:
    """Say so where the form was chosen on another kind of machine than serves it."""
    if certificate.machine_kind in ("", here := this_machine().kind):
        return ""
    return f"its form was chosen on {certificate.machine}; this machine has {here}"
