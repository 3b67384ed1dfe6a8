"""TensorRT engines, as far as they are decided without a GPU."""

import json
import sys
from argparse import ArgumentTypeError
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from millrace.export import conversion_programs
from millrace.export.conversion_programs import COMMANDS
from millrace.export.onnx import onnx_exporter as module
from millrace.export.onnx.conversions.tensorrt_engine import Range, axis, shapes
from millrace.export.onnx.graph_certificate import (
    GraphCandidate,
    GraphCertificate,
    GraphSpeed,
    GraphStage,
)
from millrace.export.onnx.graph_variants import (
    ENGINES,
    FP32,
    TENSORRT,
    VARIANTS,
    Variant,
    installed_packages,
    lacking,
)
from millrace.export.onnx.measure_graph import gather_evidence
from millrace.export.onnx.onnx_exporter import Exporter
from millrace.export.select import Gates, choose
from millrace.export.tensorrt.engine import Sizes, axes_of, file_of, options_of, timing_cache
from millrace.models.common.errors import WorkError
from millrace.models.common.hardware import EngineFingerprint, Gpu
from millrace.models.common.subprocess_runner import Limits, run_in_subprocess
from millrace.models.config.export_spec import ExportSpec
from millrace.models.inference.model_input import FEATURES, INPUT_IDS, ModelInput
from millrace.models.inference.onnx_session import TENSORRT as ONNX_TENSORRT
from millrace.models.inference.onnx_session import OnnxSession

H200 = Gpu("NVIDIA H200", "9.0", "570.86.10")
TIES = EngineFingerprint(H200, "11.4.0.106", "13")
LIMITS = Limits(60.0, 8 << 30)
BOTH = frozenset({"tensorrt", "modelopt"})

NUMBERS = ModelInput(FEATURES, 4)


def model_of(*shapes: list[Any]) -> Any:
    values = [
        helper.make_tensor_value_info(f"in{n}", TensorProto.INT64, shape)
        for n, shape in enumerate(shapes)
    ]
    return helper.make_model(helper.make_graph([], "g", values, []))


def test_a_dynamic_batch_has_one_range() -> None:
    found = shapes(model_of(["rows", 64]), {"rows": Range(1, 8, 32)})
    assert found == {"in0": ((1, 64), (8, 64), (32, 64))}


def test_two_dynamic_dimensions_of_a_text_have_a_range_each() -> None:
    axes = {"rows": Range(1, 8, 32), "tokens": Range(1, 128, 512)}
    assert shapes(model_of(["rows", "tokens"]), axes) == {"in0": ((1, 1), (8, 128), (32, 512))}


def test_inputs_that_share_a_dimension_share_its_range_and_fixed_ones_have_none() -> None:
    axes = {"rows": Range(1, 2, 3)}
    assert shapes(model_of(["rows"], ["rows", 4], [5, 6]), axes) == {
        "in0": ((1,), (2,), (3,)),
        "in1": ((1, 4), (2, 4), (3, 4)),
    }


def test_a_dynamic_dimension_of_one_size_has_a_range_too() -> None:
    assert shapes(model_of(["rows", 4]), {"rows": Range(1, 1, 1)}) == {"in0": ((1, 4),) * 3}


def test_a_dimension_without_sizes_is_told_by_its_name() -> None:
    with pytest.raises(KeyError, match="tokens"):
        shapes(model_of(["rows", "tokens"]), {"rows": Range(1, 8, 32)})


@pytest.mark.parametrize("word", ["rows", "rows=1:2", "rows=2:1:3", "rows=0:1:2", "=1:2:3", "a=x"])
def test_sizes_that_make_no_sense_are_refused(word: str) -> None:
    with pytest.raises(ArgumentTypeError):
        axis(word)


def test_what_the_exporter_asks_for_is_what_the_program_reads() -> None:
    words = options_of(axes_of(NUMBERS, 64, 32))
    assert words[::2] == ("--axis",)
    assert axis(words[1]) == ("rows", Range(1, 64, 64))


def test_the_golden_batch_fits_into_the_profile() -> None:
    assert axes_of(NUMBERS, 16, 100) == {"rows": Sizes(1, 16, 100)}
    text = ModelInput(INPUT_IDS, 128, padding=0)
    assert axes_of(text, 16, 8) == {"rows": Sizes(1, 16, 16), "tokens": Sizes(1, 128, 128)}


def test_the_names_of_an_engine_and_of_its_timing_cache_say_what_it_is_tied_to() -> None:
    slug = "NVIDIA-H200.sm90.driver-570.86.10.tensorrt-11.4.0.106.cuda-13"
    path = file_of(Path("f"), "tensorrt-fp16", TIES)
    assert path == Path(f"f/tensorrt-fp16.{slug}.plan")
    assert timing_cache(Path("c"), TIES) == Path(f"c/{slug}.timing")


@pytest.mark.parametrize(
    ("name", "gpu", "installed", "reason"),
    [
        ("tensorrt-fp16", None, BOTH, "no NVIDIA GPU on this machine"),
        ("tensorrt-fp16", H200, set(), "package tensorrt is not.*millrace\\[tensorrt\\]"),
        ("tensorrt-fp8", Gpu("A100", "8.0", "1"), BOTH, "A100 has compute capability 8.0, and 8.9"),
        ("tensorrt-fp16", Gpu("V100", "7.0", "1"), BOTH, "7.0, and 7.5 is needed"),
        ("onnx-int8-modelopt", None, set(), "nvidia-modelopt is not.*millrace\\[modelopt\\]"),
    ],
)
def test_what_a_form_lacks_is_told(
    name: str, gpu: Gpu | None, installed: set[str], reason: str
) -> None:
    variant = {**VARIANTS, **ENGINES}[name]
    with pytest.raises(WorkError, match=reason):
        raise WorkError(lacking(variant, gpu, installed) or "nothing")


@pytest.mark.parametrize("gpu", [H200, Gpu("B200", "10.0", "1"), Gpu("RTX", "12.0", "1")])
def test_a_gpu_with_all_that_is_needed_lacks_nothing(gpu: Gpu) -> None:
    assert [lacking(variant, gpu, BOTH) for variant in ENGINES.values()] == [None] * len(ENGINES)


def test_forms_that_need_nothing_can_be_made_anywhere() -> None:
    free = [variant for variant in VARIANTS.values() if not variant.package]
    assert [lacking(variant, None, ()) for variant in free] == [None] * len(free)


def test_every_engine_is_made_of_a_form_that_can_be_asked_for() -> None:
    assert {variant.source for variant in ENGINES.values()} <= {*VARIANTS, FP32}


def exporter_of(exported: Any, folder: Path, *candidates: Any) -> Exporter:
    return Exporter(
        served=exported.served,
        objective=exported.objective,
        read=exported.read,
        calibration=lambda: pytest.fail("nothing is calibrated"),
        validation=lambda: pytest.fail("nothing is searched for"),
        folder=folder,
        threads=1,
        spec=ExportSpec(candidates=candidates),
        axes=axes_of(exported.read, 64, 32),
        timing_caches=folder / "caches",
    )


@pytest.mark.skipif(module.this_gpu() is not None, reason="there is a GPU")
def test_without_a_gpu_every_engine_is_a_row_that_says_so_and_nothing_is_run(
    exported: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        conversion_programs, "run_in_subprocess", lambda *_, **__: pytest.fail("a program was run")
    )
    rows = exported.rows(8)
    target = exported.answer(rows).argmax(axis=1)
    evidence = gather_evidence(
        *(exported.served, exported.objective, exported.read, rows, target), golden_rows=2
    )
    found = list(exporter_of(exported, tmp_path, *ENGINES).candidates(evidence))
    assert [each.name for each in found] == list(ENGINES)
    assert {each.reason for each in found} == {"no NVIDIA GPU on this machine"}
    assert not any(each.is_served for each in found)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif("modelopt" in installed_packages(), reason="it is installed")
def test_a_form_whose_package_is_not_there_is_told_how_to_install_it(
    exported: Any, tmp_path: Path
) -> None:
    with pytest.raises(WorkError, match=r"pip install 'millrace\[modelopt\]'"):
        exporter_of(exported, tmp_path, FP32).make("onnx-fp8-modelopt")


BUILD = "import sys, pathlib\npathlib.Path(sys.argv[2]).write_text(' '.join(sys.argv[3:]))\n"


def test_an_engine_gets_its_name_its_profile_and_its_cache(
    exported: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "build.py"
    program.write_text(BUILD)
    on_a_gpu(monkeypatch, Variant(str(program)))
    exported.place(tmp_path)
    exporter = exporter_of(exported, tmp_path, FP32)
    path = exporter.make("tensorrt-fp32")
    assert path == file_of(tmp_path, "tensorrt-fp32", TIES)
    cache = timing_cache(tmp_path / "caches", TIES)
    assert path.read_text() == f"--axis rows=1:64:64 --timing-cache {cache}"
    program.unlink()
    assert exporter.make("tensorrt-fp32") == path  # what is there is not built again
    command = (tmp_path / COMMANDS).read_text().splitlines()[3]
    assert command.endswith(f"{FP32}.onnx {path.name} --axis rows=1:64:64")


def test_a_build_that_leaves_nothing_is_told(
    exported: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_gpu(monkeypatch, Variant("tests.unit.export.bad.writes_nothing"))
    exported.place(tmp_path)
    with pytest.raises(WorkError, match="wrote no engine"):
        exporter_of(exported, tmp_path, FP32).make("tensorrt-fp32")


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, variant: Variant) -> None:
    monkeypatch.setattr(module, "this_fingerprint", lambda: TIES)
    monkeypatch.setitem(module.ENGINES, "tensorrt-fp32", variant)  # type: ignore[arg-type]


@pytest.mark.skipif("tensorrt" in installed_packages(), reason="it is installed")
def test_the_program_says_that_tensorrt_is_not_there(exported: Any, tmp_path: Path) -> None:
    words = [exported.path, tmp_path / "e.plan", "--axis", "rows=1:2:4"]
    with pytest.raises(WorkError, match="No module named 'tensorrt'"):
        run_in_subprocess(TENSORRT, words, LIMITS)


def test_the_program_says_which_dimension_has_no_sizes(exported: Any, tmp_path: Path) -> None:
    with pytest.raises(WorkError, match="dynamic dimension 'rows' has no sizes"):
        run_in_subprocess(TENSORRT, [exported.path, tmp_path / "e.plan"], LIMITS)


def test_a_program_that_builds_engines_imports_tensorrt_only_when_it_runs() -> None:
    assert "tensorrt" not in sys.modules


FAKE = Path(__file__).with_name("fake")


def built_by_a_fake(folder: Path, model: Any, *options: str) -> dict[str, Any]:
    """Return what the program asks of TensorRT; the fake has its names and nothing else."""
    source, target = folder / "m.onnx", folder / "e.plan"
    onnx.save_model(model, source)
    environment = {"PYTHONPATH": str(FAKE)}
    words = [source, target, "--axis", "rows=1:8:32", *options]
    run_in_subprocess(TENSORRT, words, LIMITS, environment=environment)
    said: dict[str, Any] = json.loads(target.read_text())
    return said


def test_an_engine_is_strongly_typed_without_tf32_and_with_one_profile(tmp_path: Path) -> None:
    assert built_by_a_fake(tmp_path, model_of(["rows", 4]), "--workspace", "4096") == {
        "flags": 1 << 1,
        "cleared": "TF32",
        "WORKSPACE": 4096,
        "shapes": {"in0": [[1, 4], [8, 4], [32, 4]]},
        "timing cache": "",
        "ignore mismatch": False,
    }


def test_a_model_of_fixed_shapes_has_no_profile(tmp_path: Path) -> None:
    assert "shapes" not in built_by_a_fake(tmp_path, model_of([1, 4]))


def test_a_timing_cache_is_read_and_replaced(tmp_path: Path) -> None:
    cache = tmp_path / "caches" / "here.timing"
    options = ("--timing-cache", str(cache))
    assert built_by_a_fake(tmp_path, model_of(["rows"]), *options)["timing cache"] == ""
    assert built_by_a_fake(tmp_path, model_of(["rows"]), *options)["timing cache"] == "+"
    assert cache.read_text() == "++"
    assert list(cache.parent.iterdir()) == [cache]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("refused", "TensorRT cannot read the model: error 0: no such operator"),
        ("unbuilt", "TensorRT built no engine"),
    ],
)
def test_what_tensorrt_will_not_do_is_the_reason(tmp_path: Path, name: str, reason: str) -> None:
    model = model_of(["rows"])
    model.graph.name = name
    with pytest.raises(WorkError, match=reason):
        built_by_a_fake(tmp_path, model)


def test_an_engine_is_never_chosen_however_fast(
    exported: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, speeds = (
        tmp_path / "model",
        iter((GraphSpeed(0.01, 0.01, 1e6, 1), GraphSpeed(9, 9, 1, 1))),
    )
    file.touch()

    def measured(name: str, path: Path, *_: object, **__: object) -> GraphCandidate:
        stage = GraphStage(name, 0, 0, 0.9, 0)
        return GraphCandidate(name, path, "", 1, next(speeds), stage)

    monkeypatch.setattr(module, "measure", measured)
    monkeypatch.setattr(Exporter, "make", lambda self, name: file)
    nothing: Any = None
    engine, slow = exporter_of(exported, tmp_path, "tensorrt-fp16", FP32).candidates(nothing)
    assert engine.passed
    assert choose((engine, slow), "latency", Gates(0.01)) is slow
    assert choose((engine,), "latency", Gates(0.01)) is None
    refused = replace(engine, reason="it is too large")
    assert choose((refused,), "latency", Gates(0.01)) is None


def certificate(stage: GraphStage) -> GraphCertificate:
    return GraphCertificate(
        model="m",
        candidate="c",
        digest="d",
        dataset="n",
        dataset_version=0,
        dataset_digest="e",
        passed=True,
        stages=(stage,),
        test_rows=1,
        golden_rows=1,
        metric_name="accuracy",
        max_metric_loss=0.01,
    )


def test_the_certificate_keeps_what_a_stage_is_tied_to() -> None:
    made = certificate(GraphStage("tensorrt-fp16", 0.1, ties=str(TIES)))
    assert GraphCertificate.from_json(made.to_json()) == made
    assert "NVIDIA H200" in made.to_json()


def test_a_certificate_from_before_has_no_ties() -> None:
    made = certificate(GraphStage("s", 0))
    old = made.to_json().replace('"worst_metric": null,\n   "ties": ""', '"worst_metric": null')
    assert "ties" not in old
    assert GraphCertificate.from_json(old) == made


def test_the_exported_graph_calls_its_batch_what_sizes_are_given_for(
    exported: Any,
) -> None:
    (found,) = onnx.load(exported.path).graph.input
    assert found.type.tensor_type.shape.dim[0].dim_param == "rows"


@pytest.mark.skipif(
    ONNX_TENSORRT in onnxruntime.get_available_providers(), reason="there is TensorRT"
)
def test_a_session_that_is_to_have_tensorrt_does_not_go_on_without_it(exported: Any) -> None:
    warned = pytest.warns(UserWarning, match="not in available provider")
    with warned, pytest.raises(WorkError, match="cannot load TensorRT") as caught:
        OnnxSession(exported.path, 1, {"trt_fp16_enable": "1"})
    assert caught.value.seen == "loaded providers: CPUExecutionProvider"


@pytest.mark.skipif(
    ONNX_TENSORRT in onnxruntime.get_available_providers(), reason="there is TensorRT"
)
def test_forms_that_are_served_with_tensorrt_are_measured_with_it(
    exported: Any, tmp_path: Path
) -> None:
    rows = exported.rows(8)
    target = exported.answer(rows).argmax(axis=1)
    evidence = gather_evidence(
        *(exported.served, exported.objective, exported.read, rows, target), golden_rows=2
    )
    exported.place(tmp_path)
    exporter = replace(exporter_of(exported, tmp_path, FP32), tensorrt={"trt_fp16_enable": "1"})
    (found,) = exporter.candidates(evidence)
    assert "cannot load TensorRT" in (found.reason or "")
