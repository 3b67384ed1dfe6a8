"""Makes and measures the variants of one trained language model, one at a time."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from copy import copy
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
from millrace.export.language.measure_language import exactness_of, measure, run_probe
from millrace.export.language.token_pieces import MeasuredText, TokenPieces
from millrace.export.language.transformers_reference import Reference, write_reference_in_subprocess
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
    """Return the limits that a variant of a language model must meet.

    Args:
        max_perplexity_increase: largest increase of the perplexity, relative to transformers.
        max_size_mib: largest size of the variant's folder; None for no limit.
    """
    return Gates(
        max_perplexity_increase, "perplexity increase", max_size_mib, smaller_is_better=True
    )


@dataclass(frozen=True)
class LanguageExporter:
    """Makes the variants of one language model in one folder.

    Attributes:
        checkpoint: folder of the model and its tokenizer, in the format of transformers.
        held_out: text to measure on, which the model was not trained on.
        calibration: returns calibration text of the train split.
        folder: folder of the variants.
        threads: threads that serving will use.
        candidates: names of the variants, the preferred ones first.
        limits: time and memory limits of one conversion or one measurement.
        gates: limits that a variant must meet.
        groups: how 4-bit weights are grouped.
        measured_text: how much of the held-out text is measured.
        vllm_python: Python interpreter that has vLLM; None for the current interpreter.
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
    measured_text: MeasuredText = field(default_factory=MeasuredText)
    vllm_python: Path | None = None
    _stages: dict[str, LanguageStage] = field(default_factory=dict, init=False, repr=False)
    _failed: dict[str, WorkError] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def context(self) -> int:
        """The context length in tokens, from the model's config.

        Raises:
            InputError: the config has no context length.
        """
        return number_of(self.checkpoint, "max_position_embeddings")

    @cached_property
    def reference(self) -> Reference:
        """The results of transformers on the held-out text, computed on first use.

        Raises:
            InputError: there is no held-out text.
            WorkError: the checkpoint cannot be read, or the run exceeded the limits.
        """
        vocab_size = number_of(self.checkpoint, "vocab_size")
        pieces = self.measured_text.of(self.held_out, vocab_size, self.context)
        if not pieces.counted:
            raise InputError(
                "there is no held-out text to measure the variants on",
                seen=f"{len(self.held_out.lengths)} documents or chunks, "
                f"{self.held_out.counted} tokens that count in the loss",
                valid="at least one held-out document of two tokens or more",
            )
        return write_reference_in_subprocess(
            *(
                self.checkpoint,
                pieces,
                self._reference,
                self.measured_text.prompts,
                self.measured_text.new_tokens,
            ),
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
        """How the float32 variant differs from transformers; None if it does not differ.

        Measured on first use. The other OpenVINO variants are converted from the float32 variant,
        `EXACT_VARIANT`, so they have its errors too.

        Raises:
            WorkError: the float32 variant cannot be made or run.
        """
        if EXACT_VARIANT in self._stages:
            return find_inexactness(self._stages[EXACT_VARIANT])
        known = self.reference
        probe = run_probe(
            *(self.make(EXACT_VARIANT).path, self._reference),
            only="--tokens-only",
            context=self.context,
            threads=self.threads,
            limits=self.limits,
        )
        stage = LanguageStage(EXACT_VARIANT, known.perplexity, **exactness_of(probe))
        return find_inexactness(stage)

    def measure_candidates(self) -> Iterator[LanguageCandidate]:
        """Make and measure every variant in `candidates`, one at a time.

        Raises:
            TransientError: the calibration text cannot be read.
            InputError: there is no held-out text.
            WorkError: transformers itself cannot run the model.
        """
        try:
            for name in self.candidates:
                yield self.measure_one(name, self.reference)
        finally:
            self.__dict__.pop("reference", None)
            shutil.rmtree(self._reference, ignore_errors=True)

    def measure_one(self, name: str, reference: Reference) -> LanguageCandidate:
        """Make and measure one variant, and apply the gates.

        A variant that cannot be made is returned as a candidate with the reason; the run goes on.

        Args:
            name: the variant's name.
            reference: results of transformers on the held-out text.

        Raises:
            TransientError: the calibration text cannot be read.
        """
        served = name in LANGUAGE_VARIANTS and LANGUAGE_VARIANTS[name].is_served

        def measure_variant() -> LanguageCandidate:
            found = self.measure(name, self.make(name), reference)
            if name == EXACT_VARIANT and found.stage is not None and found.stage.is_finite:
                found = replace(found, reason=find_inexactness(found.stage))
            found = apply_gates(replace(found, is_served=served), self.gates)
            if LANGUAGE_VARIANTS[name].source == EXACT_VARIANT and found.passed and self.inexact:
                reason = f"its source {EXACT_VARIANT} is inexact: {self.inexact}"
                return replace(found, reason=reason)
            return found

        return measure_candidate(name, measure_variant, is_served=served)

    def measure(self, name: str, variant: VariantFolder, reference: Reference) -> LanguageCandidate:
        """Measure a variant's folder, and return the candidate with the given name."""
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
        """Make one variant unless its folder exists, and return the folder.

        Raises:
            InputError: there is no variant with this name.
            WorkError: the variant cannot be made, or this machine lacks what it needs.
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
            return self._make_variant(name, variant, path)
        except WorkError as error:
            if not error.transient:
                self._failed[name] = copy(error)  # no traceback: its frames hold the model
            raise

    def _make_variant(self, name: str, variant: LanguageVariant, path: Path) -> VariantFolder:
        if reason := variant.lacking(self.vllm_python):
            raise WorkError(reason)
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self.folder / f"{name}{DRAFT}"
        shutil.rmtree(draft, ignore_errors=True)
        try:
            self._convert(name, variant, draft)
            if not draft.is_dir():
                raise WorkError("the conversion wrote no model")
            try:
                VariantFolder.read(draft)
            except InputError as error:
                raise WorkError(f"the conversion wrote no complete model: {error.seen}") from error
            draft.rename(path)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return VariantFolder.read(path)

    def _convert(self, name: str, variant: LanguageVariant, draft: Path) -> None:
        """Run the program that makes a variant, with limits, and store its command."""
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
        """Return the file of the calibration text; write it first if it does not exist."""
        path = self.folder / CALIBRATION
        if not path.exists():
            self.calibration().write(path)
        return path

    @property
    def programs(self) -> ConversionPrograms:
        """The conversion programs of language models."""
        needs = "openvino and nncf alone, or with onnxruntime-genai or llmcompressor"
        return ConversionPrograms(conversions, self.folder, self.limits, EXACT_VARIANT, needs)

    @property
    def _reference(self) -> Path:
        return self.folder / REFERENCE


def find_inexactness(stage: LanguageStage) -> str | None:
    """Return how the stage of `EXACT_VARIANT` differs from transformers; None if it does not."""
    if (alike := stage.greedy_equal + stage.greedy_ties) < max(stage.prompts, 1):
        return f"it gives transformers' greedy tokens for only {alike} of {stage.prompts} prompts"
    if (other := stage.texts - stage.texts_equal) > 0:
        return f"its tokenizer splits {other} of {stage.texts} texts differently from transformers"
    return None
