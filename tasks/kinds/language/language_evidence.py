"""A language model's files as a release needs them, and two of them by one perplexity."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from millrace.export.language.language_certificate import LanguageCertificate, LiveStage
from millrace.export.language.text_loss import TextLoss, text_loss
from millrace.export.openvino.decoder_attention import number_of
from millrace.models.common.errors import InputError
from millrace.models.common.hardware import this_machine
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.messages import parse_messages
from millrace.models.data.snapshots import Snapshot, open_snapshot, scan
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.version_files import Package
from millrace.serving.release.golden_prompts import GoldenPrompts
from millrace.serving.triton.version_folder import Artifact
from millrace.tasks.kinds.certified import certificate_of, pipeline_of
from millrace.tasks.kinds.language.draft_model import draft_of
from millrace.tasks.kinds.language.language_files import LanguageFiles, language_files
from millrace.tasks.kinds.language.language_report import variants_table
from millrace.tasks.kinds.steps import Measured

SAME = ("millrace.dataset_digest", "millrace.tokenizer_digest")
CHARACTERS = 200_000
"""Of the test split, on which two models are compared whose tokens are not the same."""


def certified_perplexity(files: LanguageFiles) -> float | None:
    """Return the perplexity of the variant that was registered; None if it was not measured."""
    certificate = certificate_of(files.package, LanguageCertificate)
    chosen = certificate.stage(certificate.candidate)
    return chosen.perplexity if chosen else None


def perplexity_beside(
    one: LanguageFiles, other: LanguageFiles, installation: Installation
) -> float | None:
    """Return the other's perplexity on the test split of the one, by token of the one.

    The same text and the same tokens: as it was certified. Else both are asked for the likelihood
    of the same text, and the ratio of the two, by token of the one, is what its certified
    perplexity is multiplied by.

    Raises:
        MillraceError: the text cannot be read, or a model cannot be asked.
    """
    if all(one.version.tags.get(tag) == other.version.tags.get(tag) for tag in SAME):
        return certified_perplexity(other)
    mine = certified_perplexity(one)
    certificate, pipeline = (
        certificate_of(one.package, LanguageCertificate),
        pipeline_of(one.package),
    )
    snapshot = open_snapshot(installation, certificate.dataset, certificate.dataset_version)
    texts = list(_texts(snapshot, pipeline))
    losses = [_measure_loss(each, texts, installation) for each in (one, other)]
    return None if mine is None or not losses[0].tokens else beside(mine, *losses)


def beside(perplexity: float, mine: TextLoss, other: TextLoss) -> float:
    """Return the other's perplexity by my tokens, from mine and the losses on one text."""
    return perplexity * math.exp((other.loss - mine.loss) / mine.tokens)


def _measure_loss(files: LanguageFiles, texts: list[str], installation: Installation) -> TextLoss:
    folder = files.folder
    context = number_of(folder, "max_position_embeddings")
    limits = pipeline_of(files.package).export.limits.of_process
    return text_loss(folder, texts, context, limits, installation.vllm_python)


def _texts(snapshot: Snapshot, pipeline: Pipeline) -> Iterator[str]:
    """Yield texts of the test split; of a chat what was said, of an instruction the answer."""
    target, left = snapshot.schema.target, CHARACTERS
    chat = snapshot.schema.column(target).type == "messages"
    for rows in scan(snapshot, "test", pipeline.dataset.split, columns=(target,)):
        for value in rows[target].to_pylist():
            text = (
                "\n".join(turn["content"] for turn in parse_messages(value)) if chat else str(value)
            )
            yield text[:left]
            if (left := left - len(text)) <= 0:
                return


PERPLEXITY = "perplexity"
PROMPTS = 8
"""That a release asks, on a server that others ask too; `millrace certify` asks all."""


@dataclass(frozen=True)
class LanguageEvidence:
    """A version of a language model; a `VersionEvidence`.

    Attributes:
        files: its files.
        installation: where snapshots are.
    """

    files: LanguageFiles
    installation: Installation

    def artifact(self) -> Artifact:
        """Return what is staged: the variant, and the version that drafts for it."""
        package = self.files.package
        serving = pipeline_of(package).serving
        draft = draft_of(serving.generation, registry_of(self.installation))
        digest = package.version.digest
        return Artifact(
            package.files, digest, package.version.kind.name, serving=serving, draft=draft
        )

    def expected(self) -> GoldenPrompts:
        """Return the golden prompts that a release asks, and their answers."""
        return self.golden().first(PROMPTS)

    def golden(self) -> GoldenPrompts:
        """Return all golden prompts and answers.

        Raises:
            InputError: they cannot be read.
        """
        slo = pipeline_of(self.files.package).serving.latency_slo_ms
        machine = _caution(certificate_of(self.files.package, LanguageCertificate))
        caution = "; ".join(filter(None, (self.files.package.untrusted, machine)))
        try:
            golden = GoldenPrompts.of(self.files.golden(), slo, caution)
        except (ValueError, TypeError, KeyError, OSError) as error:
            raise InputError(
                f"{self.files.version.model} version {self.files.version.version} has no "
                "golden answers that can be read",
                seen=error,
                hint="register the model again",
            ) from error
        # Another kind of machine rounds otherwise, and a tie may fall otherwise.
        return replace(golden, exact=golden.exact and not machine)

    def measured(self) -> Measured:
        """Return what it was certified with."""
        certificate = certificate_of(self.files.package, LanguageCertificate)
        return Measured(
            certificate.passed and certificate.digest == self.files.version.digest,
            certified_perplexity(self.files),
            PERPLEXITY,
            smaller_is_better=True,
        )

    def metric_of(self, other: Package) -> float | None:
        """Return another version's perplexity beside this one's."""
        return perplexity_beside(self.files, language_files(other), self.installation)

    def describe(self, difference: float | None) -> tuple[str, str]:
        """Return the variants as a table, and the certificate."""
        certificate = certificate_of(self.files.package, LanguageCertificate)
        text = variants_table(certificate.candidates, certificate)
        if difference is not None:
            certificate = certificate.with_live(LiveStage(difference))
            text += (
                f"\n\nThe live Triton answers {difference:.1%} of its golden answers differently."
            )
        return text, certificate.to_json()


def language_evidence(package: Package, installation: Installation) -> LanguageEvidence:
    """Return a version's files as a release needs them."""
    return LanguageEvidence(language_files(package), installation)


def _caution(certificate: LanguageCertificate) -> str:
    """Say so where the variant was chosen on another kind of machine than serves it."""
    if certificate.machine_kind in ("", here := this_machine().kind):
        return ""
    return f"its variant was chosen on {certificate.machine}; this machine has {here}"
