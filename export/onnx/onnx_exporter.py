"""Makes and measures the forms of one trained model, one at a time.

Each is made and measured by programs in processes of their own, with limits: one that hangs,
crashes or eats memory is a row with its reason, and the others go on.
"""

import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from torch import nn

from millrace.export.candidate import Candidate, judged
from millrace.export.measure import Evidence, measure
from millrace.export.onnx import conversions
from millrace.export.onnx.conversions import batch_file
from millrace.export.onnx.from_torch import export_apart
from millrace.export.onnx.mixed_precision import mixed_form
from millrace.export.tensorrt.engine_file import Axes, file_of, options_of, timing_cache
from millrace.export.variant_requirements import installed_packages, lacking
from millrace.export.variants import ENGINES, FORMS, FP32, MIXED, Form
from millrace.models.common.arrays import Array
from millrace.models.common.errors import MillraceError, TransientError, WorkError
from millrace.models.common.hardware import this_fingerprint, this_gpu
from millrace.models.common.subprocess_runner import Limits, run_in_subprocess
from millrace.models.config.export_spec import ExportSpec
from millrace.models.families.objective import Objective
from millrace.models.inference.model_input import ModelInput

COMMANDS = "commands.sh"
RESCUES = ("onnx-int8-smooth", MIXED)
"""What is tried where a static form loses too much."""
CALIBRATION = "calibration.npz"
DRAFT = ".draft"
PROGRAMS = Path(conversions.__file__).parent
OUTER = f"{conversions.__name__.rpartition('.')[0]}."


@dataclass(frozen=True)
class Exporter:
    """Makes the forms of one trained model in one folder.

    Attributes:
        served: `[rows, width]` to float32 `[rows, outputs]`.
        objective: names the output and gives the metric.
        read: its input.
        calibration: called for calibration batches, `[rows, width]`.
        validation: called for what a search measures its tries on; never the test split.
        folder: where the files go.
        threads: threads that serving will use.
        spec: what to make, and what it may lose and take.
        axes: the sizes of the dynamic dimensions, for engines.
        timing_caches: folder of what speeds up the next build of an engine; None keeps nothing.
        tensorrt: options of onnxruntime's TensorRT provider, by its names, where the ONNX forms are
            to be served, and so measured, with it; None for without.
    """

    served: nn.Module
    objective: Objective
    read: ModelInput
    calibration: Callable[[], Iterable[Array]]
    validation: Callable[[], Evidence]
    folder: Path
    threads: int
    spec: ExportSpec
    axes: Axes = field(default_factory=dict)
    timing_caches: Path | None = None
    tensorrt: Mapping[str, str] | None = None

    @property
    def limits(self) -> Limits:
        """What one conversion or one measurement may take."""
        return self.spec.limits.of_process

    def candidates(
        self, evidence: Evidence, latency_slo_ms: float | None = None
    ) -> Iterator[Candidate]:
        """Make and measure every form that is asked for, one at a time.

        A form that cannot be made is a candidate with the reason, not a failed run. Where a static
        form lost too much, those that may hold are tried whether they are asked for or not.

        Raises:
            TransientError: the calibration rows cannot be read.
        """
        lost_too_much = False
        for name in self.spec.candidates:
            candidate = self._candidate(name, evidence, latency_slo_ms)
            loss = candidate.stage.metric_loss if candidate.stage else None
            static = name in FORMS and FORMS[name].calibrated
            lost_too_much |= static and loss is not None and not loss <= self.spec.max_metric_loss
            yield candidate
        if lost_too_much:
            for rescue in RESCUES:
                if rescue not in self.spec.candidates:
                    yield self._candidate(rescue, evidence, latency_slo_ms)

    def _candidate(self, name: str, evidence: Evidence, latency_slo_ms: float | None) -> Candidate:
        try:
            measured = self.measured(name, self.make(name), evidence)
            return judged(measured, self.spec, latency_slo_ms)
        except MillraceError as error:
            if error.transient:  # the rows' source, say: no fault of the form
                raise
            return Candidate(name, reason=error.what, notes=self._notes(name))

    def measured(self, name: str, path: Path, evidence: Evidence) -> Candidate:
        """Measure a file as the form of that name."""
        options = None if name in ENGINES else self.tensorrt
        found = measure(
            name, path, evidence, self.objective, self.threads, self.limits, tensorrt=options
        )
        return replace(found, notes=self._notes(name), is_engine=name in ENGINES)

    def make(self, name: str) -> Path:
        """Make one form, and return its file; a form that is there is not made again.

        Raises:
            WorkError: it cannot be made, or not on this machine.
        """
        if name in ENGINES:
            return self._engine(name)
        path = self.folder / f"{name}.onnx"
        if path.exists():
            return path
        if name in FORMS:
            _require(FORMS[name])
        draft = _draft(path)
        if name == FP32:
            export_apart(self.served, self.read, self.objective.output, draft, self.limits)
        elif name == MIXED:
            self.convert(name, draft, mixed_form(self))
        else:
            self.convert(name, draft, FORMS[name])
        # Written by onnx itself, so that loading and saving it again keeps its digest.
        onnx.save_model(_read(draft), path)
        draft.unlink()
        return path

    def _engine(self, name: str) -> Path:
        """Build the engine of a form for the GPU of this machine, and return its file."""
        form = ENGINES[name]
        _require(form)
        ties = this_fingerprint()
        if ties is None:
            raise WorkError("the version of TensorRT is not known")
        path = file_of(self.folder, name, ties)
        if path.exists():
            return path
        draft, cache = _draft(path), self.timing_caches
        local = ("--timing-cache", str(timing_cache(cache, ties))) if cache else ()
        self.convert(name, draft, replace(form, options=options_of(self.axes)), local)
        if not draft.is_file():
            raise WorkError("its conversion left no engine")
        draft.rename(path)
        return path

    def convert(self, name: str, target: Path, form: Form, local: Sequence[str] = ()) -> None:
        """Run the program that makes a form, with limits, and keep the command.

        Args:
            name: the form.
            target: where to write.
            form: how it is made.
            local: options that mean nothing on another machine, and are not kept.

        Raises:
            WorkError: it failed, or took more than the limits.
        """
        files, options = [self.make(form.source), target], list(form.options)
        if form.calibrated:
            options += ["--calibration", str(self._calibrating())]
        self._keep_command(name, form, [*(file.name for file in files), *options])
        try:
            words: list[str | Path] = [*files, *options, *local]
            run_in_subprocess(form.program, words, self.limits, what="its conversion")
        except TransientError as error:  # killed, for its memory as like as not
            raise WorkError(error.what) from error

    def reproduction(self) -> tuple[Path, ...]:
        """Return the programs, the commands and what they read; nothing was converted without."""
        names = (PROGRAMS.name, COMMANDS, f"{FP32}.onnx", CALIBRATION)
        converted = (self.folder / COMMANDS).exists()
        return tuple(p for n in names if converted and (p := self.folder / n).exists())

    def _notes(self, name: str) -> tuple[str, ...]:
        path = self.folder / f"{name}.txt"
        return tuple(path.read_text().splitlines()) if path.exists() else ()

    def _calibrating(self) -> Path:
        """Return the calibration batches' file."""
        path = self.folder / CALIBRATION
        if not path.exists():
            batch_file.write(path, ({self.read.name: rows} for rows in self.calibration()))
        return path

    def _keep_command(self, name: str, form: Form, words: Sequence[str]) -> None:
        """Keep the programs and the command that makes a form again, whatever becomes of it."""
        copied = self.folder / PROGRAMS.name
        if not copied.exists():
            shutil.copytree(PROGRAMS, copied, ignore=shutil.ignore_patterns("__pycache__"))
        local = [word.removeprefix(f"{self.folder}/") for word in words]
        command = ["python", "-m", form.program.removeprefix(OUTER), *local]
        with (self.folder / COMMANDS).open("a") as file:
            if not file.tell():
                file.write(
                    "# in this folder, the run's export/, with onnx and onnxruntime alone;\n"
                    f"# {FP32} is what PyTorch exported\n"
                )
            file.write(f"# {name}\n{shlex.join(command)}\n".replace(DRAFT, ""))


def _draft(path: Path) -> Path:
    """Return where a file is written until it is whole."""
    return path.with_name(f"{path.name}{DRAFT}")


def _require(form: Form) -> None:
    """Raise unless this machine has what the form needs; nothing is run for one that it lacks."""
    if (reason := lacking(form, this_gpu(), installed_packages())) is not None:
        raise WorkError(reason)


def _read(draft: Path) -> onnx.ModelProto:
    if not draft.is_file():
        raise WorkError("its conversion left no model")
    try:
        model = onnx.load(draft, load_external_data=False)
        onnx.checker.check_model(model)
    except (DecodeError, onnx.checker.ValidationError) as error:
        raise WorkError("its conversion left no ONNX model", seen=error) from error
    return model
