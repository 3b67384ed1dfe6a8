"""Makes and measures the forms of one trained language model, one at a time.

Each is made and measured by programs in processes of their own, with limits: one that hangs,
crashes or eats memory is a row with its reason, and the others go on.
"""

import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from millrace.export.language import conversions
from millrace.export.language.language_variants import (
    CHECKPOINT,
    EXACT_FORM,
    LANGUAGE_FORMS,
    Groups,
    LanguageForm,
)
from millrace.export.language.measure_language import exactness_of, measure, probed
from millrace.export.language.token_pieces import Held, TokenPieces
from millrace.export.language.transformers_reference import Reference, answered_apart
from millrace.export.language.variant_folder import FormFolder
from millrace.export.language_candidate import LanguageCandidate, LanguageStage
from millrace.export.openvino.decoder_attention import number_of
from millrace.export.select import Gates, inexact, judged
from millrace.models.common.errors import InputError, MillraceError, TransientError, WorkError
from millrace.models.common.subprocess_runner import Limits, run_in_subprocess

COMMANDS = "commands.sh"
CALIBRATION = "calibration.npz"
REFERENCE = ".reference"
DRAFT = ".draft"
PROGRAMS = Path(conversions.__file__).parent
PROGRAM_OF_EXACT = LANGUAGE_FORMS[EXACT_FORM].program


@dataclass(frozen=True)
class LanguageExporter:
    """Makes the forms of one language model in one folder.

    Attributes:
        checkpoint: the folder of the model and its tokenizer, as transformers writes it.
        held_out: text that the model has not learnt from, and is measured on.
        calibration: called for text of the train split.
        folder: where the forms go.
        threads: threads that serving will use.
        candidates: names of the forms, the preferred ones first.
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
    gates: Gates = field(default_factory=Gates)
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
                "there is no held-out text to measure the forms on",
                seen=f"{len(self.held_out.lengths)} pieces, {self.held_out.counted} tokens count",
                valid="a piece of two tokens or more",
            )
        return answered_apart(
            *(self.checkpoint, pieces, self._reference, self.held.prompts, self.held.new_tokens),
            self.limits,
        )

    @property
    def stage(self) -> LanguageStage:
        """Transformers as the first stage of the certificate."""
        return LanguageStage(
            "transformers", self.reference.perplexity, tokens=self.reference.tokens
        )

    @cached_property
    def inexact(self) -> str | None:
        """Why the engine does not compute what the model does, or None; asked once.

        Of the exact form, which all of OpenVINO are made of: what is wrong there is wrong in them.

        Raises:
            WorkError: the exact form cannot be made, or does not answer.
        """
        if EXACT_FORM in self._stages:
            return inexact(self._stages[EXACT_FORM])
        known = self.reference
        told = probed(
            *(self.make(EXACT_FORM).path, self._reference),
            tokens_only=True,
            context=self.context,
            threads=self.threads,
            limits=self.limits,
        )
        stage = LanguageStage(EXACT_FORM, known.perplexity, **exactness_of(told))
        return inexact(stage)

    def measured_candidates(self) -> Iterator[LanguageCandidate]:
        """Yield the row of every form that is asked for, one at a time.

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
        """Make, measure and judge one form.

        One that cannot be made is a candidate with the reason, not a failed run.

        Raises:
            TransientError: the calibration text cannot be read.
        """
        served = name in LANGUAGE_FORMS and LANGUAGE_FORMS[name].is_served
        try:
            measured = replace(self.measured(name, self.make(name), reference), is_served=served)
            found = judged(measured, self.gates)
            if LANGUAGE_FORMS[name].source == EXACT_FORM and found.passed and self.inexact:
                return replace(found, reason=f"{EXACT_FORM}, its source: {self.inexact}")
            return found
        except MillraceError as error:
            if error.transient:  # the text's source, say: no fault of the form
                raise
            return LanguageCandidate(name, reason=error.what, is_served=served)

    def measured(self, name: str, form: FormFolder, reference: Reference) -> LanguageCandidate:
        """Measure a folder as the form of that name."""
        found = measure(
            *(name, form, self._reference, reference),
            context=self.context,
            threads=self.threads,
            limits=self.limits,
            vllm_python=self.vllm_python,
        )
        if found.stage is not None:
            self._stages[name] = found.stage
        return found

    def make(self, name: str) -> FormFolder:
        """Make one form, and return its folder; a form that is there is not made again.

        Raises:
            InputError: there is no form of that name.
            WorkError: it cannot be made, or not on this machine.
        """
        if name not in LANGUAGE_FORMS:
            raise InputError(
                f"there is no form {name!r}", seen=name, valid=", ".join(LANGUAGE_FORMS)
            )
        path, form = self.folder / name, LANGUAGE_FORMS[name]
        if path.exists():
            return FormFolder.read(path)
        if name in self._failed:
            raise self._failed[name]
        try:
            return self._made(name, form, path)
        except WorkError as error:
            if not error.transient:
                self._failed[name] = error
            raise

    def _made(self, name: str, form: LanguageForm, path: Path) -> FormFolder:
        if reason := form.lacking(self.vllm_python):
            raise WorkError(reason)
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self.folder / f"{name}{DRAFT}"
        shutil.rmtree(draft, ignore_errors=True)
        try:
            self._convert(name, form, draft)
            if not draft.is_dir():
                raise WorkError("its conversion left no model")
            try:
                FormFolder.read(draft)
            except InputError as error:
                raise WorkError(f"its conversion left no whole model: {error.seen}") from error
            draft.rename(path)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return FormFolder.read(path)

    def _convert(self, name: str, form: LanguageForm, draft: Path) -> None:
        """Run the program that makes a form, with limits, and keep the command."""
        from_checkpoint = form.source == CHECKPOINT
        source = self.checkpoint if from_checkpoint else self.make(form.source).path
        options = [*form.options, *(self.groups.options if form.grouped else ())]
        kept = list(options)
        if form.calibrated:
            options += ["--calibration", str(self._calibrating())]
            kept += ["--calibration", CALIBRATION]
        if form.program != PROGRAM_OF_EXACT:
            known = CHECKPOINT if from_checkpoint else source.name
            self._keep_command(name, form, [known, name, *kept])
        try:
            run_in_subprocess(
                form.program, [source, draft, *options], self.limits, what="its conversion"
            )
        except TransientError as error:  # killed, for its memory as like as not
            raise WorkError(error.what) from error

    def _calibrating(self) -> Path:
        """Return the calibration text's file."""
        path = self.folder / CALIBRATION
        if not path.exists():
            self.calibration().write(path)
        return path

    def reproduction(self) -> tuple[Path, ...]:
        """Return the programs, the commands and what they read; nothing was converted without."""
        names = (PROGRAMS.name, COMMANDS, EXACT_FORM, CALIBRATION)
        converted = (self.folder / COMMANDS).exists()
        return tuple(p for n in names if converted and (p := self.folder / n).exists())

    def _keep_command(self, name: str, form: LanguageForm, words: Sequence[str]) -> None:
        """Keep the programs and the command that makes a form again, whatever becomes of it."""
        copied = self.folder / PROGRAMS.name
        if not copied.exists():
            shutil.copytree(PROGRAMS, copied, ignore=shutil.ignore_patterns("__pycache__"))
        module = form.program.removeprefix(f"{conversions.__name__.rpartition('.')[0]}.")
        command = ["python", "-m", module, *words]
        with (self.folder / COMMANDS).open("a") as file:
            if not file.tell():
                file.write(
                    "# in this folder, the run's export/, with openvino and nncf alone, or with\n"
                    "# onnxruntime-genai or llmcompressor;\n"
                    f"# {EXACT_FORM} is what was exported from the checkpoint\n"
                )
            file.write(f"# {name}\n{shlex.join(command)}\n")

    @property
    def _reference(self) -> Path:
        return self.folder / REFERENCE
