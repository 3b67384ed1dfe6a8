"""Makes and measures the ONNX variants of one trained model, one at a time."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
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
"""Variants to try if the metric loss of a statically quantized variant is above the limit."""


@dataclass(frozen=True)
class Exporter:
    """Makes the variants of one trained model in one folder.

    Attributes:
        served: trained module from `[rows, width]` to float32 `[rows, outputs]`.
        objective: training objective, which has the metric and the output's name.
        read: the module's input.
        calibration: returns calibration batches, `[rows, width]`.
        validation: returns the rows that the mixed-precision search measures on; never the test
            split.
        folder: folder of the variants.
        threads: threads that serving will use.
        spec: the pipeline's export settings.
        axes: sizes of the dynamic dimensions, for TensorRT engines.
        timing_caches: folder of TensorRT's timing caches; None for no cache.
        tensorrt: options of onnxruntime's TensorRT provider, if serving uses TensorRT; None: do not
            use TensorRT.
        gpu: whether serving runs on a GPU.
        trained_as: name of the trained model's stage, the first of the certificate.
        to_onnx: writes the trained model to an ONNX file; None to use PyTorch's exporter.
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
    gpu: bool = False
    trained_as: str = "pytorch"
    to_onnx: Callable[[Path], None] | None = None
    _failed: dict[str, WorkError] = field(default_factory=dict, init=False, repr=False)

    @property
    def limits(self) -> Limits:
        """Time and memory limits of one conversion or one measurement."""
        return self.spec.limits.of_process

    @property
    def gates(self) -> Gates:
        """The limits that a variant must meet."""
        return Gates(self.spec.max_metric_loss, max_size_mib=self.spec.max_size_mib)

    @property
    def programs(self) -> ConversionPrograms:
        """The conversion programs of ONNX variants."""
        source, needs = f"{FP32}.onnx", "onnx and onnxruntime alone"
        return ConversionPrograms(conversions, self.folder, self.limits, source, needs)

    def candidates(
        self, evidence: Evidence, latency_slo_ms: float | None = None
    ) -> Iterator[GraphCandidate]:
        """Make and measure every variant of the pipeline file, one at a time.

        A variant that cannot be made is yielded as a candidate with the reason; the run goes on. If
        the metric loss of a statically quantized variant is above the limit, the variants of
        `RESCUES` are made too.

        Args:
            evidence: golden batch and test split, with the trained model's outputs.
            latency_slo_ms: largest p99 latency of one row; None for no limit.

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
        """Measure a file, and return the candidate with the given variant name."""
        options = None if name in ENGINES else self.tensorrt
        found = measure(
            *(name, path, evidence, self.objective, self.threads, self.limits),
            tensorrt=options,
            gpu=self.gpu,
        )
        return replace(found, notes=self._notes(name), is_served=name not in ENGINES)

    def make(self, name: str) -> Path:
        """Make one variant unless its file exists, and return the file.

        A variant that failed is not tried again when another variant is converted from it.

        Raises:
            WorkError: the variant cannot be made, or this machine lacks what it needs.
        """
        if name in ENGINES:
            return self._engine(name)
        path = self.folder / f"{name}.onnx"
        if path.exists():
            return path
        if name in self._failed:
            raise self._failed[name]
        try:
            self._make_variant(name, path)
        except WorkError as error:
            if not error.transient:
                self._failed[name] = copy(error)  # no traceback: its frames hold the model
            raise
        return path

    def _make_variant(self, name: str, path: Path) -> None:
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
        # Saved by onnx, so that the digest stays the same when the file is loaded and saved again.
        onnx.save_model(_read_model(draft), path)
        draft.unlink()

    def _mixed_variant(self) -> Variant:
        """Search for the mixed-precision variant on the validation split."""
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
            raise WorkError("the installed version of TensorRT cannot be determined")
        path = file_of(self.folder, name, ties)
        if path.exists():
            return path
        draft, cache = _draft(path), self.timing_caches
        local = ("--timing-cache", str(timing_cache(cache, ties))) if cache else ()
        self.convert(name, draft, replace(variant, options=options_of(self.axes)), local)
        if not draft.is_file():
            raise WorkError("the conversion wrote no engine")
        draft.rename(path)
        return path

    def convert(self, name: str, target: Path, variant: Variant, local: Sequence[str] = ()) -> None:
        """Run the program that makes a variant, with limits, and store its command.

        Args:
            name: the variant's name, for the commands file.
            target: file to write.
            variant: program and options.
            local: options for this machine only, which are not stored with the command.

        Raises:
            WorkError: the program failed, or exceeded the limits.
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
        """Return the file of the calibration batches; write it first if it does not exist."""
        path = self.folder / CALIBRATION
        if not path.exists():
            batch_file.write(path, ({self.read.name: rows} for rows in self.calibration()))
        return path


def _latency_refusal(candidate: GraphCandidate, latency_slo_ms: float | None) -> str | None:
    """Return a reason if the p99 of one row is above the limit, NaN or not known, else None."""
    speed = candidate.speed
    if latency_slo_ms is None or (speed is not None and speed.p99_ms <= latency_slo_ms):
        return None
    p99 = "unknown" if speed is None else f"{speed.p99_ms:.2f} ms"
    return f"p99 {p99} is more than serving.latency_slo_ms, {latency_slo_ms:g} ms"


def _draft(path: Path) -> Path:
    """Return the path where a file is written until it is complete."""
    return path.with_name(f"{path.name}{DRAFT}")


def _require(variant: Variant) -> None:
    """Raise a WorkError unless this machine has the GPU and packages that the variant needs."""
    if (reason := lacking(variant, this_gpu(), installed_packages())) is not None:
        raise WorkError(reason)


def _read_model(draft: Path) -> onnx.ModelProto:
    if not draft.is_file():
        raise WorkError("the conversion wrote no model")
    try:
        model = onnx.load(draft, load_external_data=False)
        onnx.checker.check_model(model)
    except (DecodeError, onnx.checker.ValidationError) as error:
        raise WorkError("the conversion wrote no valid ONNX model", seen=error) from error
    return model
