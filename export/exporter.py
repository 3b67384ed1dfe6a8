"""Makes and measures the forms of one trained model, one at a time.

Each is made and measured by programs in processes of their own, with limits: one that hangs,
crashes or eats memory is a row with its reason, and the others go on.
"""

import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from torch import nn

from export import conversions
from export.candidate import Candidate, judged
from export.conversions import batches
from export.forms import FORMS, FP32
from export.measure import Evidence, measure
from export.onnx import export_onnx
from models.apart import Limits, run_apart
from models.arrays import Array
from models.errors import MillraceError, TransientError, WorkError
from models.features import FEATURES
from models.objective import Objective
from models.pipeline import ExportSpec

COMMANDS = "commands.sh"
CALIBRATION = "calibration.npz"
PROGRAMS = Path(conversions.__file__).parent


@dataclass(frozen=True)
class Exporter:
    """Makes the forms of one trained model in one folder.

    Attributes:
        served: float32 `[rows, raw_width]` to float32 `[rows, outputs]`.
        objective: names the output and gives the metric.
        raw_width: width of the input.
        calibration: called for calibration batches, float32 `[rows, raw_width]`.
        folder: where the files go.
        threads: threads that serving will use.
        limits: what one conversion or one measurement may take.
    """

    served: nn.Module
    objective: Objective
    raw_width: int
    calibration: Callable[[], Iterable[Array]]
    folder: Path
    threads: int
    limits: Limits

    def candidates(
        self, spec: ExportSpec, evidence: Evidence, latency_slo_ms: float | None = None
    ) -> Iterator[Candidate]:
        """Make and measure every form that `spec` asks for, one at a time.

        A form that cannot be made is a candidate with the reason, not a failed run.

        Raises:
            TransientError: the calibration rows cannot be read.
        """
        for name in spec.candidates:
            try:
                path = self.make(name)
                measured = measure(name, path, evidence, self.objective, self.threads, self.limits)
                yield judged(measured, spec, latency_slo_ms)
            except MillraceError as error:
                if error.transient:  # the rows' source, say: no fault of the form
                    raise
                yield Candidate(name, reason=error.what)

    def make(self, name: str) -> Path:
        """Make one form, and return its file; a form that is there is not made again."""
        path = self.folder / f"{name}.onnx"
        if path.exists():
            return path
        draft = path.with_suffix(".draft")
        if name == FP32:
            export_onnx(self.served, self.raw_width, self.objective.output, draft)
        else:
            self._convert(name, draft)
        # Written by onnx itself, so that loading and saving it again keeps its digest.
        onnx.save_model(_read(draft), path)
        draft.unlink()
        return path

    def reproduction(self) -> tuple[Path, ...]:
        """Return the programs, the commands and what they read; nothing was converted without."""
        names = (PROGRAMS.name, COMMANDS, f"{FP32}.onnx", CALIBRATION)
        converted = (self.folder / COMMANDS).exists()
        return tuple(p for n in names if converted and (p := self.folder / n).exists())

    def _convert(self, name: str, target: Path) -> None:
        form = FORMS[name]
        files = [self.make(form.source), target]
        options = list(form.options)
        if form.calibrated:
            options += ["--calibration", str(self._calibrating())]
        self._note(name, [*(file.name for file in files), *options])
        try:
            run_apart(form.program, [*files, *options], self.limits, what="its conversion")
        except TransientError as error:  # killed, for its memory as like as not
            raise WorkError(error.what) from error

    def _calibrating(self) -> Path:
        """Return the calibration batches' file."""
        path = self.folder / CALIBRATION
        if not path.exists():
            batches.write(path, ({FEATURES: rows} for rows in self.calibration()))
        return path

    def _note(self, name: str, words: Sequence[str]) -> None:
        """Keep the programs and the command that makes a form again, whatever becomes of it."""
        copied = self.folder / PROGRAMS.name
        if not copied.exists():
            shutil.copytree(PROGRAMS, copied, ignore=shutil.ignore_patterns("__pycache__"))
        local = [word.removeprefix(f"{self.folder}/") for word in words]
        command = ["python", "-m", FORMS[name].program.removeprefix("export."), *local]
        with (self.folder / COMMANDS).open("a") as file:
            file.write(f"# {name}\n{shlex.join(command)}\n".replace(".draft", ".onnx"))


def _read(draft: Path) -> onnx.ModelProto:
    if not draft.is_file():
        raise WorkError("its conversion left no model")
    try:
        model = onnx.load(draft, load_external_data=False)
        onnx.checker.check_model(model)
    except (DecodeError, onnx.checker.ValidationError) as error:
        raise WorkError("its conversion left no ONNX model", seen=error) from error
    return model
