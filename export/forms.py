"""The forms a model can take, by name, and how each is made and measured."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
from torch import nn

from export.candidate import Candidate
from export.measure import Evidence, measure
from export.onnx import export_onnx
from export.quantize import quantize_int8
from models.arrays import Array
from models.errors import MillraceError
from models.objective import Objective
from models.pipeline import ExportSpec

FP32 = "onnx-fp32"


@dataclass(frozen=True)
class Exporter:
    """Makes the forms of one trained model in one folder.

    Attributes:
        served: float32 `[rows, raw_width]` to float32 `[rows, outputs]`.
        objective: names the output and gives the metric.
        raw_width: width of the input.
        calibration: called for fresh calibration batches, float32 `[rows, raw_width]`.
        folder: where the files go.
        threads: threads that serving will use.
    """

    served: nn.Module
    objective: Objective
    raw_width: int
    calibration: Callable[[], Iterable[Array]]
    folder: Path
    threads: int

    def candidates(self, spec: ExportSpec, evidence: Evidence) -> Iterator[Candidate]:
        """Make and measure every form that `spec` asks for, one at a time.

        A form that cannot be made is a candidate with the reason, not a failed run.

        Raises:
            TransientError: the calibration rows cannot be read.
        """
        for name in spec.candidates:
            try:
                path = self.make(name)
                yield measure(name, path, evidence, self.objective, spec, self.threads)
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
            quantize_int8(self.make(FP32), self.calibration(), draft)
        # Written by onnx itself, so that loading and saving it again keeps its digest.
        onnx.save_model(onnx.load(draft), path)
        draft.unlink()
        return path
