"""Makes and measures the variants of one trained language model, one at a time."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from millrace.export.conversion_programs import (
    CALIBRATION,
    DRAFT,
    ConversionPrograms,
    measure_candidate,
)
from millrace.export.language import conversions
from millrace.export.language.language_certificate import LanguageCandidate, LanguageStage
from millrace.export.language.language_variants import (
    CHECKPOINT,
    EXACT_VARIANT,
    LANGUAGE_VARIANTS,
    Groups,
    LanguageVariant,
)
from millrace.export.language.measure_language import exactness_of, measure, probed
from millrace.export.language.token_pieces import Held, TokenPieces
from millrace.export.language.transformers_reference import Reference, answered_apart
from millrace.export.language.variant_folder import VariantFolder
from millrace.export.openvino.decoder_attention import number_of
from millrace.export.select import Gates, apply_gates
from millrace.models.common.errors import InputError, WorkError
from millrace.models.common.subprocess_runner import Limits

REFERENCE = ".reference"
PROGRAM_OF_EXACT = LANGUAGE_VARIANTS[EXACT_VARIANT].program


def language_gates(
    max_perplexity_increase: float = 0.01, max_size_mib: float | None = None
) -> Gates:
    """Return what a variant of a language model may lose.

    Args:
        max_perplexity_increase: relative to transformers'.
        max_size_mib: of the folder; None for any.
    """
    return Gates(
        max_perplexity_increase, "perplexity increase", max_size_mib, smaller_is_better=True
    )


@dataclass(frozen=True)
class LanguageExporter:
    """Makes the variants of one language model in one folder.

    Attributes:
        checkpoint: the folder of the model and its tokenizer, as transformers writes it.
        held_out: text that the model has not learnt from, and is measured on.
        calibration: called for text of the train split.
        folder: where the variants go.
        threads: threads that serving will use.
        candidates: names of the variants, the preferred ones first.
        gates: what they may lose.
        limits: what one conversion or one measurement may take.
        groups: of weights of 4 bits.
        held: how much is measured.
        vllm_python: the Python of an environment that has vLLM; None for this one.
    """

    checkpoint: Path
    held_out: TokenPieces
    calibration: Callable[[], TokenPieces]
    folder: Path
    threads: int
    candidates: Sequence[str]
    limits: Limits
    gates: Gates = field(default_factory=lambda: language_gates())
    groups: Groups = field(default_factory=Groups)
    held: Held = field(default_factory=Held)
    vllm_python: Path | None = None
    _stages: dict[str, LanguageStage] = field(default_factory=dict, init=False, repr=False)
    _failed: dict[str, WorkError] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def context(self) -> int:
        """Tokens of the longest text, by the model's config.

        Raises:
            InputError: it has no limit.
        """
        return number_of(self.checkpoint, "max_position_embeddings")

    @cached_property
    def reference(self) -> Reference:
        """What transformers answers to the held-out text, asked once.

        Raises:
            InputError: there is no held-out text.
            WorkError: the checkpoint cannot be read, or takes more than the limits.
        """
        vocab_size = number_of(self.checkpoint, "vocab_size")
        pieces = self.held.of(self.held_out, vocab_size, self.context)
        if not pieces.counted:
            raise InputError(
                "there is no held-out text to measure the variants on",
                seen=f"{len(self.held_out.lengths)} pieces, {self.held_out.counted} tokens count",
                valid="a piece of two tokens or more",
            )
        return answered_apart(
            *(self.checkpoint, pieces, self._reference, self.held.prompts, self.held.new_tokens),
            self.limits,
        )

    @cached_property
    def stage(self) -> LanguageStage:
        """The first stage of the certificate: transformers, measured on first use."""
        return LanguageStage(
            "transformers", self.reference.perplexity, tokens=self.reference.tokens
        )

    @cached_property
    def inexact(self) -> str | None:
        """Why the engine does not compute what the model does, or None; measured on first use.

        The other variants of OpenVINO are made of the exact one, and inherit its faults.

        Raises:
            WorkError: the exact variant cannot be made, or does not answer.
        """
        if EXACT_VARIANT in self._stages:
            return find_inexactness(self._stages[EXACT_VARIANT])
        known = self.reference
        told = probed(
            *(self.make(EXACT_VARIANT).path, self._reference),
            tokens_only=True,
            context=self.context,
            threads=self.threads,
            limits=self.limits,
        )
        stage = LanguageStage(EXACT_VARIANT, known.perplexity, **exactness_of(told))
        return find_inexactness(stage)

    def measured_candidates(self) -> Iterator[LanguageCandidate]:
        """Yield the row of every variant that is asked for, one at a time.

        Raises:
            TransientError: the calibration text cannot be read.
            InputError: there is no held-out text.
            WorkError: transformers itself cannot answer.
        """
        try:
            for name in self.candidates:
                yield self.row(name, self.reference)
        finally:
            self.__dict__.pop("reference", None)
            shutil.rmtree(self._reference, ignore_errors=True)

    def row(self, name: str, reference: Reference) -> LanguageCandidate:
        """Make, measure and judge one variant.

        One that cannot be made is a candidate with the reason, not a failed run.

        Raises:
            TransientError: the calibration text cannot be read.
        """
        served = name in LANGUAGE_VARIANTS and LANGUAGE_VARIANTS[name].is_served

        def measured() -> LanguageCandidate:
            found = self.measured(name, self.make(name), reference)
            if name == EXACT_VARIANT and found.stage is not None and found.stage.is_finite:
                found = replace(found, reason=find_inexactness(found.stage))
            found = apply_gates(replace(found, is_served=served), self.gates)
            if LANGUAGE_VARIANTS[name].source == EXACT_VARIANT and found.passed and self.inexact:
                return replace(found, reason=f"{EXACT_VARIANT}, its source: {self.inexact}")
            return found

        return measure_candidate(name, measured, is_served=served)

    def measured(
        self, name: str, variant: VariantFolder, reference: Reference
    ) -> LanguageCandidate:
        """Measure a folder as the variant of that name."""
        found = measure(
            *(name, variant, self._reference, reference),
            context=self.context,
            threads=self.threads,
            limits=self.limits,
            vllm_python=self.vllm_python,
        )
        if found.stage is not None:
            self._stages[name] = found.stage
        return found

    def make(self, name: str) -> VariantFolder:
        """Make one variant, and return its folder; a variant that is there is not made again.

        Raises:
            InputError: there is no variant of that name.
            WorkError: it cannot be made, or not on this machine.
        """
        if name not in LANGUAGE_VARIANTS:
            raise InputError(
                f"there is no variant {name!r}", seen=name, valid=", ".join(LANGUAGE_VARIANTS)
            )
        path, variant = self.folder / name, LANGUAGE_VARIANTS[name]
        if path.exists():
            return VariantFolder.read(path)
        if name in self._failed:
            raise self._failed[name]
        try:
            return self._made(name, variant, path)
        except WorkError as error:
            if not error.transient:
                self._failed[name] = error
            raise

    def _made(self, name: str, variant: LanguageVariant, path: Path) -> VariantFolder:
        if reason := variant.lacking(self.vllm_python):
            raise WorkError(reason)
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self.folder / f"{name}{DRAFT}"
        shutil.rmtree(draft, ignore_errors=True)
        try:
            self._convert(name, variant, draft)
            if not draft.is_dir():
                raise WorkError("its conversion left no model")
            try:
                VariantFolder.read(draft)
            except InputError as error:
                raise WorkError(f"its conversion left no whole model: {error.seen}") from error
            draft.rename(path)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return VariantFolder.read(path)

    def _convert(self, name: str, variant: LanguageVariant, draft: Path) -> None:
        """Run the program that makes a variant, with limits, and keep the command."""
        from_checkpoint = variant.source == CHECKPOINT
        source = self.checkpoint if from_checkpoint else self.make(variant.source).path
        options = [*variant.options, *(self.groups.options if variant.grouped else ())]
        kept = list(options)
        if variant.calibrated:
            options += ["--calibration", str(self._calibrating())]
            kept += ["--calibration", CALIBRATION]
        if variant.program != PROGRAM_OF_EXACT:
            known = CHECKPOINT if from_checkpoint else source.name
            self.programs.keep(name, variant.program, [known, name, *kept])
        self.programs.run(variant.program, [source, draft, *options])

    def _calibrating(self) -> Path:
        """Return the calibration text's file."""
        path = self.folder / CALIBRATION
        if not path.exists():
            self.calibration().write(path)
        return path

    @property
    def programs(self) -> ConversionPrograms:
        """What makes one variant out of another."""
        needs = "openvino and nncf alone, or with onnxruntime-genai or llmcompressor"
        return ConversionPrograms(conversions, self.folder, self.limits, EXACT_VARIANT, needs)

    @property
    def _reference(self) -> Path:
        return self.folder / REFERENCE


def find_inexactness(stage: LanguageStage) -> str | None:
    """Return how the exact variant differs from transformers, or None if it does not."""
    if (alike := stage.greedy_equal + stage.greedy_ties) < max(stage.prompts, 1):
        return f"it gives transformers' greedy tokens for {alike} of {stage.prompts} prompts"
    if (other := stage.texts - stage.texts_equal) > 0:
        return f"its tokenizer splits {other} of {stage.texts} texts otherwise"
    return None
