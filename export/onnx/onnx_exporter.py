"""Makes and measures the variants of one trained graph, one at a time."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from torch import nn

from millrace.export.conversion_programs import (
    CALIBRATION,
    DRAFT,
    ConversionPrograms,
    measure_candidate,
)
from millrace.export.onnx import conversions
from millrace.export.onnx.conversions import batch_file
from millrace.export.onnx.graph_certificate import GraphCandidate
from millrace.export.onnx.graph_variants import (
    ENGINES,
    FP32,
    MIXED,
    VARIANTS,
    Variant,
    installed_packages,
    lacking,
)
from millrace.export.onnx.measure_graph import Evidence, measure
from millrace.export.onnx.mixed_precision import mixed_variant
from millrace.export.onnx.torch_export import export_in_subprocess
from millrace.export.select import Gates, apply_gates
from millrace.export.tensorrt.engine import Axes, file_of, options_of, timing_cache
from millrace.models.common.arrays import Array
from millrace.models.common.errors import WorkError
from millrace.models.common.hardware import this_fingerprint, this_gpu
from millrace.models.common.subprocess_runner import Limits
from millrace.models.config.export_spec import ExportSpec
from millrace.models.families.objective import Objective
from millrace.models.inference.model_input import ModelInput

RESCUES = ("onnx-int8-smooth", MIXED)
"""What is tried where a static variant loses too much."""


@dataclass(frozen=True)
class Exporter:
    """Makes the variants of one trained model in one folder.

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
        tensorrt: options of onnxruntime's TensorRT provider, by its names, where the ONNX variants
            are served, and so measured, with it; None for without.
        trained_as: what `served` is, in a word: the first stage of the certificate.
        to_onnx: writes what was trained as ONNX to a file; None for PyTorch's exporter.
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
    trained_as: str = "pytorch"
    to_onnx: Callable[[Path], None] | None = None

    @property
    def limits(self) -> Limits:
        """What one conversion or one measurement may take."""
        return self.spec.limits.of_process

    @property
    def gates(self) -> Gates:
        """What a variant may lose."""
        return Gates(self.spec.max_metric_loss, max_size_mib=self.spec.max_size_mib)

    @property
    def programs(self) -> ConversionPrograms:
        """What makes one variant out of another."""
        source, needs = f"{FP32}.onnx", "onnx and onnxruntime alone"
        return ConversionPrograms(conversions, self.folder, self.limits, source, needs)

    def candidates(
        self, evidence: Evidence, latency_slo_ms: float | None = None
    ) -> Iterator[GraphCandidate]:
        """Make and measure every variant that is asked for, one at a time.

        A variant that cannot be made is a candidate with the reason, not a failed run. Where a
        static variant lost too much, those that may hold are tried whether asked for or not.

        Raises:
            TransientError: the calibration rows cannot be read.
        """
        lost_too_much = False
        for name in self.spec.candidates:
            candidate = self._candidate(name, evidence, latency_slo_ms)
            loss = candidate.stage.metric_loss if candidate.stage else None
            static = name in VARIANTS and VARIANTS[name].calibrated
            lost_too_much |= static and loss is not None and not loss <= self.spec.max_metric_loss
            yield candidate
        if lost_too_much:
            for rescue in RESCUES:
                if rescue not in self.spec.candidates:
                    yield self._candidate(rescue, evidence, latency_slo_ms)

    def _candidate(
        self, name: str, evidence: Evidence, latency_slo_ms: float | None
    ) -> GraphCandidate:
        def measure_variant() -> GraphCandidate:
            found = apply_gates(self.measure(name, self.make(name), evidence), self.gates)
            return replace(found, reason=found.reason or _latency_refusal(found, latency_slo_ms))

        found = measure_candidate(name, measure_variant, is_served=name not in ENGINES)
        return replace(found, notes=self._notes(name))

    def measure(self, name: str, path: Path, evidence: Evidence) -> GraphCandidate:
        """Measure a file as the variant of that name."""
        options = None if name in ENGINES else self.tensorrt
        found = measure(
            name, path, evidence, self.objective, self.threads, self.limits, tensorrt=options
        )
        return replace(found, notes=self._notes(name), is_served=name not in ENGINES)

    def make(self, name: str) -> Path:
        """Make one variant, and return its file; a variant that is there is not made again.

        Raises:
            WorkError: it cannot be made, or not on this machine.
        """
        if name in ENGINES:
            return self._engine(name)
        path = self.folder / f"{name}.onnx"
        if path.exists():
            return path
        if name in VARIANTS:
            _require(VARIANTS[name])
        draft = _draft(path)
        if name == FP32 and self.to_onnx is not None:
            self.to_onnx(draft)
        elif name == FP32:
            export_in_subprocess(self.served, self.read, self.objective.output, draft, self.limits)
        elif name == MIXED:
            self.convert(name, draft, self._mixed_variant())
        else:
            self.convert(name, draft, VARIANTS[name])
        # Written by onnx itself, so that loading and saving it again keeps its digest.
        onnx.save_model(_read_model(draft), path)
        draft.unlink()
        return path

    def _mixed_variant(self) -> Variant:
        """Search for the mixed variant on the validation split."""
        evidence, budget = self.validation(), self.spec.max_metric_loss

        def measure_try(path: Path) -> GraphCandidate:
            return self.measure(MIXED, path, evidence)

        return mixed_variant(self.folder, budget, self.convert, measure_try)

    def _engine(self, name: str) -> Path:
        """Build the engine of a variant for the GPU of this machine, and return its file."""
        variant = ENGINES[name]
        _require(variant)
        ties = this_fingerprint()
        if ties is None:
            raise WorkError("the version of TensorRT is not known")
        path = file_of(self.folder, name, ties)
        if path.exists():
            return path
        draft, cache = _draft(path), self.timing_caches
        local = ("--timing-cache", str(timing_cache(cache, ties))) if cache else ()
        self.convert(name, draft, replace(variant, options=options_of(self.axes)), local)
        if not draft.is_file():
            raise WorkError("its conversion left no engine")
        draft.rename(path)
        return path

    def convert(self, name: str, target: Path, variant: Variant, local: Sequence[str] = ()) -> None:
        """Run the program that makes a variant, with limits, and keep the command.

        Args:
            name: the variant.
            target: where to write.
            variant: how it is made.
            local: options that mean nothing on another machine, and are not kept.

        Raises:
            WorkError: it failed, or took more than the limits.
        """
        files, options = [self.make(variant.source), target], list(variant.options)
        if variant.calibrated:
            options += ["--calibration", str(self._calibrating())]
        kept = [str(word).removeprefix(f"{self.folder}/") for word in (*files, *options)]
        self.programs.keep(name, variant.program, kept)
        self.programs.run(variant.program, [*files, *options, *local])

    def _notes(self, name: str) -> tuple[str, ...]:
        path = self.folder / f"{name}.txt"
        return tuple(path.read_text().splitlines()) if path.exists() else ()

    def _calibrating(self) -> Path:
        """Return the calibration batches' file."""
        path = self.folder / CALIBRATION
        if not path.exists():
            batch_file.write(path, ({self.read.name: rows} for rows in self.calibration()))
        return path


def _latency_refusal(candidate: GraphCandidate, latency_slo_ms: float | None) -> str | None:
    """Return that one row takes too long, or None; a NaN takes too long."""
    speed = candidate.speed
    if latency_slo_ms is None or (speed is not None and speed.p99_ms <= latency_slo_ms):
        return None
    p99 = "unknown" if speed is None else f"{speed.p99_ms:.2f} ms"
    return f"p99 {p99} is more than serving.latency_slo_ms, {latency_slo_ms:g} ms"


def _draft(path: Path) -> Path:
    """Return where a file is written until it is whole."""
    return path.with_name(f"{path.name}{DRAFT}")


def _require(variant: Variant) -> None:
    """Raise unless this machine has what the variant needs; nothing runs for one without it."""
    if (reason := lacking(variant, this_gpu(), installed_packages())) is not None:
        raise WorkError(reason)


def _read_model(draft: Path) -> onnx.ModelProto:
    if not draft.is_file():
        raise WorkError("its conversion left no model")
    try:
        model = onnx.load(draft, load_external_data=False)
        onnx.checker.check_model(model)
    except (DecodeError, onnx.checker.ValidationError) as error:
        raise WorkError("its conversion left no ONNX model", seen=error) from error
    return model
