"""The evidence that a release needs about a language model; compares perplexities of versions."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np

from millrace.export.language.language_certificate import LanguageCertificate, LiveStage
from millrace.export.language.text_loss import TextLoss, text_loss
from millrace.export.openvino.decoder_attention import number_of
from millrace.models.common.errors import InputError
from millrace.models.common.hardware import this_machine
from millrace.models.common.installation import Installation
from millrace.models.comparison.paired_scores import PairedScores
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.messages import parse_messages
from millrace.models.data.snapshots import Snapshot, open_snapshot, scan
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.version_files import Package
from millrace.serving.release.golden_prompts import GoldenPrompts
from millrace.serving.triton.version_folder import Artifact
from millrace.tasks.kinds.certified import (
    certificate_of,
    figures_of,
    pipeline_of,
)
from millrace.tasks.kinds.compared_rows import slice_columns, slice_values
from millrace.tasks.kinds.language.draft_model import draft_of
from millrace.tasks.kinds.language.language_files import LanguageFiles, language_files
from millrace.tasks.kinds.language.language_report import describe_chosen, variants_table
from millrace.tasks.kinds.steps import Measured

SAME = ("millrace.dataset_digest", "millrace.tokenizer_digest")
CHARACTERS = 200_000
"""Characters of the test split on which models with different tokenizers are compared."""


def certified_perplexity(files: LanguageFiles) -> float | None:
    """Return the perplexity of the registered variant; None if it was not measured."""
    certificate = certificate_of(files.package, LanguageCertificate)
    chosen = certificate.stage(certificate.candidate)
    return chosen.perplexity if chosen else None


def perplexity_beside(
    one: LanguageFiles, other: LanguageFiles, installation: Installation
) -> float | None:
    """Return the perplexity of `other` on the test split of `one`, per token of `one`.

    With the same dataset and tokenizer, this is the certified perplexity of `other`. Otherwise the
    losses of both models are measured on the same text. The certified perplexity of `one` is then
    multiplied by exp((loss of `other` - loss of `one`) / tokens of `one`).

    Returns:
        None if a certified perplexity is not known, or the text has no tokens.

    Raises:
        MillraceError: the text cannot be read, or a model cannot be run.
    """
    if all(one.version.tags.get(tag) == other.version.tags.get(tag) for tag in SAME):
        return certified_perplexity(other)
    mine = certified_perplexity(one)
    certificate, pipeline = (
        certificate_of(one.package, LanguageCertificate),
        pipeline_of(one.package),
    )
    snapshot = open_snapshot(installation, certificate.dataset, certificate.dataset_version)
    texts = [text for text, _ in _texts(snapshot, pipeline)]
    losses = [_measure_loss(each, texts, installation) for each in (one, other)]
    return None if mine is None or not losses[0].tokens else beside(mine, *losses)


def beside(perplexity: float, mine: TextLoss, other: TextLoss) -> float:
    """Return the perplexity of `other` per token of `mine`, from the losses of both on one text."""
    return perplexity * math.exp((other.loss - mine.loss) / mine.tokens)


def _measure_loss(files: LanguageFiles, texts: list[str], installation: Installation) -> TextLoss:
    folder = files.folder
    context = number_of(folder, "max_position_embeddings")
    limits = pipeline_of(files.package).export.limits.of_process
    return text_loss(folder, texts, context, limits, installation.vllm_python)


def _texts(
    snapshot: Snapshot, pipeline: Pipeline, columns: Sequence[str] = ()
) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the texts of the test split's target column, at most `CHARACTERS` characters in total.

    The text of a chat has all of its messages; the text of an instruction is the answer. Beside
    each text is its row of `columns`.
    """
    target, left = snapshot.schema.target, CHARACTERS
    chat = snapshot.schema.column(target).type == "messages"
    read = tuple(dict.fromkeys((target, *columns)))
    for rows in scan(snapshot, "test", pipeline.dataset.split, columns=read):
        for row in rows.to_pylist():
            value = row[target]
            text = (
                "\n".join(turn["content"] for turn in parse_messages(value)) if chat else str(value)
            )
            yield text[:left], row
            if (left := left - len(text)) <= 0:
                return


PERPLEXITY: Final = "perplexity"
PROMPTS = 8
"""Golden prompts that a release sends to a busy server; `millrace certify` sends all of them."""


@dataclass(frozen=True)
class LanguageEvidence:
    """A version of a language model; a `VersionEvidence`.

    Attributes:
        files: the version's files.
        installation: the installation with the snapshots.
    """

    files: LanguageFiles
    installation: Installation
    compares_quickly: ClassVar[bool] = False

    def artifact(self) -> Artifact:
        """Return the artifact for Triton's model repository: the variant, and its draft model."""
        package = self.files.package
        serving = pipeline_of(package).serving
        draft = draft_of(serving.generation, registry_of(self.installation))
        digest = package.version.digest
        return Artifact(
            package.files, digest, package.version.kind.name, serving=serving, draft=draft
        )

    def expected(self) -> GoldenPrompts:
        """Return the golden prompts that a release sends, with their certified answers."""
        return self.golden().first(PROMPTS)

    def golden(self) -> GoldenPrompts:
        """Return all golden prompts and answers.

        Raises:
            InputError: the golden prompts cannot be read.
        """
        slo = pipeline_of(self.files.package).serving.latency_slo_ms
        machine = _caution(certificate_of(self.files.package, LanguageCertificate))
        caution = "; ".join(filter(None, (self.files.package.untrusted, machine)))
        try:
            golden = GoldenPrompts.of(self.files.golden(), slo, caution)
        except (ValueError, TypeError, KeyError, OSError) as error:
            raise InputError(
                f"{self.files.version.model} version {self.files.version.version}: its golden "
                "answers cannot be read",
                seen=error,
                hint="register the model again",
            ) from error
        # Another kind of machine rounds differently, so of two equally likely tokens it may choose
        # the other one.
        return replace(golden, exact=golden.exact and not machine)

    def measured(self) -> Measured:
        """Return the version's certified perplexity, and whether the version passed its gates."""
        certificate = certificate_of(self.files.package, LanguageCertificate)
        return Measured(
            certificate.passed and certificate.digest == self.files.version.digest,
            certified_perplexity(self.files),
            PERPLEXITY,
            smaller_is_better=True,
            figures=figures_of(certificate),
        )

    def metric_of(self, other: Package) -> float | None:
        """Return another version's perplexity, comparable with this version's."""
        return perplexity_beside(self.files, language_files(other), self.installation)

    def paired_scores(self, other: Package, columns: Sequence[str] | None) -> PairedScores | None:
        """Return the losses of another version and of this one on texts of this one's test split.

        A text counts by the tokens that it has for this version, also if the other one has another
        tokenizer.
        """
        certificate = certificate_of(self.files.package, LanguageCertificate)
        snapshot = open_snapshot(
            self.installation, certificate.dataset, certificate.dataset_version
        )
        pipeline = pipeline_of(self.files.package)
        names = slice_columns(snapshot, columns)
        texts, slices = [], dict[str, list[object]]({name: [] for name in names})
        for text, row in _texts(snapshot, pipeline, names):
            texts.append(text)
            for name, values in slices.items():
                values.append(row[name])
        losses = [
            _measure_loss(each, texts, self.installation).by_text
            for each in (language_files(other), self.files)
        ]
        first, second = (np.array([loss for loss, _ in each]) for each in losses)
        tokens = np.array([tokens for _, tokens in losses[1]], dtype=np.float64)
        counted = tokens > 0
        if not counted.any():
            return None
        return PairedScores(
            PERPLEXITY,
            first[counted],
            second[counted],
            tokens[counted],
            slices={name: slice_values(values)[counted] for name, values in slices.items()},
        )

    def describe(self, difference: float | None) -> tuple[str, str]:
        """Return the variants as a Markdown table, and the certificate as JSON."""
        certificate = certificate_of(self.files.package, LanguageCertificate)
        variants = variants_table(certificate.candidates, certificate)
        text = f"{describe_chosen(certificate)}\n\n{variants}"
        if difference is not None:
            certificate = certificate.with_live(LiveStage(difference))
            text += f"\n\n{difference:.1%} of the live Triton's golden answers"
            text += " differ from the certified ones."
        return text, certificate.to_json()


def language_evidence(package: Package, installation: Installation) -> LanguageEvidence:
    """Return the evidence that a release needs about a version."""
    return LanguageEvidence(language_files(package), installation)


def _caution(certificate: LanguageCertificate) -> str:
    """Return a warning if the variant was chosen on another kind of machine; empty if not."""
    if certificate.machine_kind in ("", here := this_machine().kind):
        return ""
    return f"its variant was chosen on {certificate.machine}; this machine has {here}"
