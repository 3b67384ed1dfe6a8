"""Variants for vLLM: how they are made, why they are not, and what is read of vLLM's answers."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from millrace.export.language import language_variants
from millrace.export.language.conversions.compress_tensors import group_size, texts
from millrace.export.language.language_exporter import LanguageExporter
from millrace.export.language.language_variants import CAST, LANGUAGE_VARIANTS
from millrace.export.language.transformers_reference import Reference
from millrace.export.language.variant_folder import VariantFolder
from millrace.export.vllm.vllm_engine import by_token
from millrace.models.common.errors import InputError, WorkError
from millrace.models.common.hardware import Gpu
from millrace.models.common.subprocess_runner import Limits, run_in_subprocess
from millrace.models.inference.language_engine import engine_of
from tests.unit.export import language_models

LIMITS = Limits(300, 16 * 2**30)
GPU = Gpu("NVIDIA H100", "9.0", "580")
VARIANTS = ("vllm-bf16", "vllm-w8a8", "vllm-awq", "vllm-gptq")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return language_models.checkpoint(tmp_path_factory.mktemp("vllm") / "checkpoint", steps=2)


def test_bfloat16_is_the_checkpoint_in_half_its_bytes(checkpoint: Path, tmp_path: Path) -> None:
    run_in_subprocess(CAST, [checkpoint, tmp_path / "form"], LIMITS)
    variant = VariantFolder.read(tmp_path / "form")
    weights = "model.safetensors"
    assert variant.engine == "vllm"
    assert variant.files[weights].stat().st_size < 0.6 * (checkpoint / weights).stat().st_size
    assert json.loads(variant.files["config.json"].read_text())["dtype"] == "bfloat16"
    same = "tokenizer.json"
    assert variant.files[same].read_bytes() == (checkpoint / same).read_bytes()


def test_a_form_for_vllm_without_its_tokenizer_is_not_whole(tmp_path: Path) -> None:
    for name in ("model.safetensors", "config.json", "tokenizer_config.json"):
        (tmp_path / name).write_text(name)
    with pytest.raises(InputError, match="lacks files") as error:
        VariantFolder.read(tmp_path)
    assert error.value.seen == "no tokenizer.json"


def test_the_files_tell_the_engine() -> None:
    assert engine_of(["config.json", "model-00001-of-00002.safetensors"]) == "vllm"
    assert engine_of(["openvino_model.xml", "draft/model.safetensors"]) == "openvino_genai"


@pytest.mark.parametrize("name", VARIANTS)
def test_without_a_gpu_every_form_of_vllm_is_a_row_with_the_reason(
    name: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language_variants, "this_gpu", lambda: None)
    pieces = language_models.pieces(0, 2)
    exporter = LanguageExporter(
        *(checkpoint, pieces, lambda: pieces, tmp_path / "forms", 1, (name,), LIMITS)
    )
    row = exporter.measure_one(name, Reference(10.0, 100, 1, 1))
    assert row.reason == "vLLM measures this variant on an NVIDIA GPU, and this machine has none"
    assert not (tmp_path / "forms").exists()


def test_beside_a_gpu_it_is_said_what_else_is_lacking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language_variants, "this_gpu", lambda: GPU)
    variant, gptq = LANGUAGE_VARIANTS["vllm-bf16"], LANGUAGE_VARIANTS["vllm-gptq"]
    python = Path(sys.executable)
    assert variant.lacking(python) is None
    assert "there is no" in (variant.lacking(tmp_path / "python") or "")
    absent = replace(gptq, package="no_such_module").lacking(python)
    assert absent is not None
    assert "--no-deps llmcompressor==" in absent
    monkeypatch.setattr(language_variants, "find_spec", lambda name: None)
    assert "MILLRACE_VLLM_PYTHON" in (variant.lacking() or "")


@pytest.mark.parametrize(
    ("widths", "size"), [((256, 1024), 128), ((64, 192), 64), ((96,), 32), ((4096, 64), 64)]
)
def test_a_group_fills_the_rows_of_all_layers(widths: tuple[int, ...], size: int) -> None:
    assert group_size(widths) == size


def test_a_layer_that_no_group_divides_is_refused() -> None:
    with pytest.raises(ValueError, match=r"divides the input widths of all layers, \[48, 128\]"):
        group_size([128, 48])


def test_each_piece_of_text_calibrates_by_itself(tmp_path: Path) -> None:
    np.savez(tmp_path / "c.npz", input_ids=np.arange(6), lengths=np.array([3, 1, 2]))
    batches = [each["input_ids"].tolist() for each in texts(tmp_path / "c.npz")]
    assert batches == [[[0, 1, 2]], [[4, 5]]]


class Flat:
    """As vLLM tells log-probabilities: of two positions, the first with nothing before it."""

    start_indices, end_indices = (0, 0), (0, 4)
    token_ids = (2, 0, 1, 2)
    logprobs = (-0.5, -2.0, -3.0, -0.5)


def test_flat_log_probabilities_are_read_by_token() -> None:
    first, second = by_token(Flat())
    assert len(first) == 0
    assert second.tolist() == [-2.0, -3.0, -0.5]


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A Python with numpy and nothing else that is installed here."""
    installed = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):
        (tmp_path / name).symlink_to(installed / name)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return python


@pytest.mark.parametrize("program", ["language_probe", "golden_texts"])
def test_vllms_python_needs_none_of_our_packages_to_measure(bare: Path, program: str) -> None:
    told = run_in_subprocess(f"millrace.export.language.{program}", ["--help"], LIMITS, python=bare)
    assert b"usage" in told


def test_a_bare_python_lacks_what_millrace_installs(bare: Path) -> None:
    with pytest.raises(WorkError, match="No module named 'pydantic'"):
        run_in_subprocess("millrace.models.config.language_spec", [], LIMITS, python=bare)
