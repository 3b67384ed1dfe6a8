"""The export of a language model: held-out text to measure on, golden prompts, certificate."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from millrace.export.certificate import Header
from millrace.export.language.golden_texts import Golden, make_golden
from millrace.export.language.language_certificate import LanguageCandidate, LanguageCertificate
from millrace.export.language.language_exporter import LanguageExporter, language_gates
from millrace.export.language.language_variants import Groups
from millrace.export.language.transformers_reference import Reference
from millrace.export.language.variant_folder import VariantFolder
from millrace.export.select import Gates
from millrace.models.common.errors import InputError, WorkError
from millrace.models.common.hardware import this_machine
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.snapshots import Snapshot
from millrace.models.language.held_out import HELD_OUT_TOKENS
from millrace.tasks.kinds.language.language_files import GOLDEN
from millrace.tasks.kinds.language.language_train import (
    DecoderTraining,
    select_pieces,
    sequences_of,
)
from millrace.tasks.kinds.steps import Trained
from millrace.tasks.progress import log

CALIBRATION_TOKENS = 32_768


@dataclass(frozen=True)
class LanguageExport:
    """The export of one language model; an `Export`.

    Attributes:
        pipeline: the pipeline of the model.
        installation: the installation, with the location of vLLM.
        exporter: the exporter that makes and measures variants.
        trained: the trained model to export.
        texts: the golden prompts and answers of each variant, by the variant's name; without
            variants that cannot be served. Set after all variants are measured.
    """

    pipeline: Pipeline
    installation: Installation
    exporter: LanguageExporter
    trained: Trained[DecoderTraining]
    texts: dict[str, Golden] = field(default_factory=dict)

    @property
    def gates(self) -> Gates:
        """The limits that a candidate must stay within."""
        return self.exporter.gates

    def candidates(self) -> Iterator[LanguageCandidate]:
        """Make and measure every variant, and refuse variants no better than a unigram model.

        Raises:
            InputError: there is no held-out text, or no prompt has a clear answer. An answer is not
                clear if two tokens at the same place are equally the likeliest.
            WorkError: transformers itself cannot run the model.
        """
        # read first, because the reference is deleted with the last measured variant
        stage, reference = self.exporter.stage, self.exporter.reference
        if not reference.texts:
            raise InputError(
                "no prompt of the test split has a clear answer that a release could check",
                seen=f"a model with perplexity {stage.perplexity:,.1f} on {stage.tokens:,} tokens",
                valid="a model for which one next token is likelier than every other token",
                hint="train the model longer, or provide more text",
            )
        found = []
        for each in self.exporter.measure_candidates():
            found.append(beside_unigram(each, self.trained.details.baselines.unigram))
            yield found[-1]
        self.texts.update(self._continued(found, reference))

    def certificate(
        self,
        header: Header,
        candidates: Sequence[LanguageCandidate],
        chosen: LanguageCandidate,
    ) -> LanguageCertificate:
        """Return the certificate with the stage of transformers."""
        return LanguageCertificate(
            **asdict(header),
            stages=(self.exporter.stage,),
            max_perplexity_increase=self.pipeline.export.max_perplexity_increase,
            tokens_fingerprint=self.trained.details.tokens.fingerprint,
            unigram=self.trained.details.baselines.unigram,
        )

    def model_files(self, chosen: LanguageCandidate) -> Mapping[str, Path]:
        """Return the files of the chosen variant."""
        if chosen.path is None:
            raise WorkError(
                f"the variant {chosen.name} was chosen, but was not made", seen=chosen.reason
            )
        return VariantFolder.read(chosen.path).files

    def evidence(
        self, chosen: LanguageCandidate, certificate: LanguageCertificate
    ) -> Mapping[str, str | Path]:
        """Return the file of golden prompts and answers, by name."""
        return {GOLDEN: self.golden(chosen).to_json()}

    def golden(self, chosen: LanguageCandidate) -> Golden:
        """Return the golden prompts and the chosen variant's answers to them.

        Raises:
            WorkError: the variant failed to answer the golden prompts.
        """
        if chosen.name not in self.texts:
            raise WorkError(f"the variant {chosen.name} failed to answer the golden prompts")
        return self.texts[chosen.name]

    def reproduction(self) -> tuple[Path, ...]:
        """Return the files that reproduce the variants."""
        return self.exporter.programs.reproduction()

    def _continued(
        self, candidates: Sequence[LanguageCandidate], reference: Reference
    ) -> Iterator[tuple[str, Golden]]:
        """Yield each variant's answers to the golden prompts, without variants that fail."""
        cores, python = this_machine().cores, self.installation.vllm_python
        for each in candidates:
            if each.path is None or not each.is_served:
                continue
            try:
                folder = VariantFolder.read(each.path)
                yield each.name, make_golden(folder, reference, self.exporter.limits, cores, python)
            except WorkError as error:
                log.warning(
                    "the variant %s failed to answer the golden prompts: %s", each.name, error
                )


def export_language(
    pipeline: Pipeline,
    installation: Installation,
    snapshot: Snapshot,
    trained: Trained[DecoderTraining],
    folder: Path,
) -> LanguageExport:
    """Return the export of a trained decoder."""
    tokens, spec = trained.details.tokens, pipeline.export
    train = sequences_of(tokens, "train", installation)
    exporter = LanguageExporter(
        checkpoint=trained.weights,
        held_out=select_pieces(sequences_of(tokens, "test", installation), HELD_OUT_TOKENS),
        calibration=lambda: select_pieces(train, CALIBRATION_TOKENS),
        folder=folder / "forms",
        threads=this_machine().cores,
        candidates=spec.candidates,
        limits=spec.limits.of_process,
        gates=language_gates(spec.max_perplexity_increase, spec.max_size_mib),
        groups=Groups(spec.group_size, spec.ratio),
        vllm_python=installation.vllm_python,
    )
    return LanguageExport(pipeline, installation, exporter, trained)


def beside_unigram(candidate: LanguageCandidate, unigram: float) -> LanguageCandidate:
    """Return the candidate, refused with a reason if it is no better than a unigram model.

    Args:
        candidate: the measured candidate, after the check of its gates.
        unigram: the perplexity of a unigram model on the test split.
    """
    stage = candidate.stage
    if not candidate.passed or stage is None or stage.perplexity < unigram:
        return candidate
    reason = (
        f"its perplexity of {stage.perplexity:,.1f} is no better than {unigram:,.1f}, that of a "
        "unigram model, which ignores the context"
    )
    return replace(candidate, reason=reason)
