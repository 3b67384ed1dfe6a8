"""The variants of a small Llama, made and measured by real programs."""

import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.export.conversion_programs import COMMANDS
from millrace.export.language import language_exporter as module
from millrace.export.language import language_variants
from millrace.export.language.golden_texts import make_golden
from millrace.export.language.language_certificate import LanguageCandidate, LanguageStage
from millrace.export.language.language_exporter import REFERENCE as REFERENCE_FOLDER
from millrace.export.language.language_exporter import (
    LanguageExporter,
    MeasuredText,
    language_gates,
)
from millrace.export.language.language_variants import EXACT_VARIANT, Groups, LanguageVariant
from millrace.export.language.text_loss import pieces_loss
from millrace.export.language.token_pieces import TokenPieces
from millrace.export.language.transformers_reference import Reference
from millrace.export.language.variant_folder import VariantFolder
from millrace.models.common.errors import TransientError
from millrace.models.common.subprocess_runner import Limits
from millrace.serving.release.golden_prompts import same_words
from tests.unit.export import language_models
from tests.unit.export.language_models import pieces

INT8, INT4, AWQ, SCALE = (f"openvino-{name}" for name in ("int8", "int4", "int4-awq", "int4-scale"))
LIMITS = Limits(300, 16 * 2**30)
REFERENCE = Reference(10.0, 100, 1, 1)


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> LanguageExporter:
    folder = tmp_path_factory.mktemp("language")
    return LanguageExporter(
        checkpoint=language_models.checkpoint(folder / "checkpoint"),
        held_out=pieces(8192, 6),
        calibration=lambda: pieces(0, 4, 32),
        folder=folder / "forms",
        threads=1,
        candidates=("onnx-genai-int4", "no-such-variant"),
        limits=LIMITS,
        gates=language_gates(max_perplexity_increase=0.01),
        groups=Groups(size=32),
        measured_text=MeasuredText(prompts=6, new_tokens=16),
    )


@pytest.fixture(scope="module")
def reference(exporter: LanguageExporter) -> Reference:
    return exporter.reference


@pytest.fixture(scope="module")
def exact(exporter: LanguageExporter, reference: Reference) -> LanguageCandidate:
    return exporter.measure_one(EXACT_VARIANT, reference)


@pytest.fixture(scope="module")
def int8(
    exporter: LanguageExporter, reference: Reference, exact: LanguageCandidate
) -> LanguageCandidate:
    return exporter.measure_one(INT8, reference)


@pytest.fixture(scope="module")
def int4(
    exporter: LanguageExporter, reference: Reference, exact: LanguageCandidate
) -> LanguageCandidate:
    return exporter.measure_one(INT4, reference)


def weights(row: LanguageCandidate) -> int:
    assert row.path is not None
    return (row.path / "openvino_model.bin").stat().st_size


def test_the_exact_form_answers_as_transformers(exact: LanguageCandidate) -> None:
    assert exact.reason is None
    assert exact.stage is not None
    assert exact.stage.greedy_equal == exact.stage.prompts == 6
    assert exact.stage.texts_equal == exact.stage.texts == 6
    assert abs(exact.stage.perplexity_increase) < 1e-4
    assert exact.stage.mean_kl < 1e-6
    assert exact.stage.tokens == 6 * 63


@pytest.mark.parametrize(
    ("stage", "reason"),
    [
        ({"prompts": 8, "greedy_equal": 7, "greedy_ties": 1}, None),
        ({"prompts": 8, "greedy_equal": 7}, "greedy tokens for only 7 of 8 prompts"),
        ({}, "greedy tokens for only 0 of 0 prompts"),
        (
            {"prompts": 1, "greedy_equal": 1, "texts": 3, "texts_equal": 1},
            "splits 2 of 3 texts differently",
        ),
    ],
)
@pytest.mark.parametrize("name", [EXACT_VARIANT, INT8, "vllm-bf16"])
def test_the_exact_form_must_be_exact_and_others_need_not(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stage: dict[str, int],
    reason: str | None,
    name: str,
) -> None:
    def measured(name: str, *_: object, **__: object) -> LanguageCandidate:
        counts = stage if name in (EXACT_VARIANT, "vllm-bf16") else {}
        return LanguageCandidate(name, tmp_path, stage=LanguageStage(name, 10.0, **counts))  # type: ignore[arg-type]

    monkeypatch.setattr(module, "measure", measured)
    monkeypatch.setattr(LanguageExporter, "make", lambda self, name: tmp_path)
    exporter = LanguageExporter(
        *(tmp_path, pieces(0, 1), lambda: pieces(0, 1), tmp_path, 1, (EXACT_VARIANT, INT8), LIMITS)
    )
    monkeypatch.setattr(LanguageExporter, "context", 64)
    exact = exporter.measure_one(EXACT_VARIANT, REFERENCE)
    found = exporter.measure_one(name, REFERENCE)
    if reason is None or name == "vllm-bf16":
        assert found.reason is None
    else:
        assert reason in (exact.reason or "")
        made_of_it = f"its source {EXACT_VARIANT} is inexact: " if name == INT8 else ""
        assert found.reason == f"{made_of_it}{exact.reason}"


@pytest.mark.parametrize(
    ("perplexity", "increase", "reason"),
    [
        (float("nan"), 0.0, "its answers are not finite"),
        (10.0, 0.5, "it gives transformers' greedy tokens for only 0 of 1 prompts"),
    ],
)
def test_of_the_exact_form_answers_that_are_not_finite_come_first_and_then_that_it_is_not_exact(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    perplexity: float,
    increase: float,
    reason: str,
) -> None:
    stage = LanguageStage(EXACT_VARIANT, perplexity, increase, prompts=1)
    found = LanguageCandidate(EXACT_VARIANT, tmp_path, size_bytes=2**40, stage=stage)
    monkeypatch.setattr(module, "measure", lambda *_, **__: found)
    monkeypatch.setattr(LanguageExporter, "make", lambda self, name: tmp_path)
    monkeypatch.setattr(LanguageExporter, "context", 64)
    exporter = LanguageExporter(
        *(tmp_path, pieces(0, 1), lambda: pieces(0, 1), tmp_path, 1, (EXACT_VARIANT,), LIMITS),
        gates=language_gates(max_size_mib=1),
    )
    assert exporter.measure_one(EXACT_VARIANT, REFERENCE).reason == reason


def test_as_text_the_exact_form_answers_as_transformers_too(
    exporter: LanguageExporter, reference: Reference, exact: LanguageCandidate
) -> None:
    golden = make_golden(exporter.make(EXACT_VARIANT), reference, LIMITS, 1)
    assert len(golden.prompts) == len(set(golden.prompts)) >= 5
    assert (golden.max_tokens, golden.exact) == (16, True)
    assert all(map(same_words, golden.transformers, golden.answers))


def test_the_perplexity_of_the_files_can_be_measured_again(
    exporter: LanguageExporter, exact: LanguageCandidate, int8: LanguageCandidate
) -> None:
    text = exporter.held_out.first(exporter.measured_text.tokens, exporter.context)
    for row, tolerance in ((exact, 1e-5), (int8, 1e-3)):
        assert row.stage is not None
        again = pieces_loss(exporter.make(row.name).path, text, LIMITS)
        assert again.tokens == row.stage.tokens
        assert again.perplexity == pytest.approx(row.stage.perplexity, rel=tolerance)


def test_eight_bits_are_smaller_and_close(
    exact: LanguageCandidate, int8: LanguageCandidate
) -> None:
    assert int8.stage is not None
    assert int8.passed
    assert weights(int8) < 0.4 * weights(exact)
    assert 0 < int8.stage.mean_kl < 0.01
    assert int8.stage.top1_agreement > 0.95


def test_four_bits_are_smaller_still_and_further_away(
    int8: LanguageCandidate, int4: LanguageCandidate
) -> None:
    assert int8.stage is not None
    assert int4.stage is not None
    assert weights(int4) < weights(int8)
    assert int4.stage.mean_kl > 2 * int8.stage.mean_kl


def test_speed_is_measured_at_one_and_at_many_streams(int8: LanguageCandidate) -> None:
    speed = int8.speed
    assert speed is not None
    assert speed.tokens_per_second.keys() == {1, 8, 32}
    assert min(speed.tokens_per_second.values()) > 0
    assert speed.time_to_first_token_ms > 0
    assert speed.peak_memory_bytes > 2**26


def test_no_path_of_this_machine_is_in_a_form(
    exporter: LanguageExporter, int8: LanguageCandidate, int4: LanguageCandidate
) -> None:
    here = [str(exporter.folder.parent).encode(), sys.prefix.encode(), str(Path.cwd()).encode()]
    for name in (EXACT_VARIANT, INT8, INT4):
        for file in exporter.make(name).files.values():
            assert not any(path in file.read_bytes() for path in here), file


def test_the_kept_commands_make_the_same_weights(
    exporter: LanguageExporter, int8: LanguageCandidate, tmp_path: Path
) -> None:
    for each in exporter.programs.reproduction():
        copy = shutil.copytree if each.is_dir() else shutil.copyfile
        copy(each, tmp_path / each.name)
    lines = (exporter.folder / COMMANDS).read_text().splitlines()
    python, *words = shlex.split(lines[lines.index(f"# {INT8}") + 1])
    assert python == "python"
    subprocess.run([sys.executable, *words], cwd=tmp_path, check=True, env={"PATH": "/usr/bin"})
    again = VariantFolder.read(tmp_path / INT8).files["openvino_model.bin"].read_bytes()
    assert again == exporter.make(INT8).files["openvino_model.bin"].read_bytes()


@pytest.mark.parametrize("name", [AWQ, SCALE])
def test_text_of_the_train_split_calibrates_four_bits(
    exporter: LanguageExporter, int4: LanguageCandidate, name: str
) -> None:
    plain, calibrated = exporter.make(INT4), exporter.make(name)
    weights = "openvino_model.bin"
    assert plain.files[weights].read_bytes() != calibrated.files[weights].read_bytes()
    assert calibrated.size_bytes < 1.1 * plain.size_bytes


def test_groups_are_those_that_are_asked_for(
    exporter: LanguageExporter, int4: LanguageCandidate, tmp_path: Path
) -> None:
    (tmp_path / EXACT_VARIANT).symlink_to(exporter.make(EXACT_VARIANT).path)
    rows = replace(exporter, groups=Groups(size=-1), folder=tmp_path).make(INT4)
    assert rows.files["openvino_model.bin"].stat().st_size < weights(int4)


def test_four_bits_that_no_layer_gets_are_a_row_with_the_reason(
    exporter: LanguageExporter, exact: LanguageCandidate, tmp_path: Path
) -> None:
    (tmp_path / EXACT_VARIANT).symlink_to(exporter.make(EXACT_VARIANT).path)
    few = replace(exporter, groups=Groups(size=32, ratio=0.01), folder=tmp_path)
    reason = few.measure_one(INT4, REFERENCE).reason or ""
    assert "no layer gets 4 bits with a group size of 32 and a ratio of 0.01" in reason


BAD = {
    "hangs": "its conversion did not end within 5 s",
    "crashes": "its conversion crashed: SIGABRT",
    "killed": "its conversion was killed",
    "writes_nothing": "the conversion wrote no model",
    "eats": "MemoryError",
}


@pytest.mark.parametrize("kind", BAD)
def test_a_conversion_that_goes_wrong_is_a_row_with_its_reason(
    exporter: LanguageExporter,
    exact: LanguageCandidate,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad = LanguageVariant(f"tests.unit.export.bad.{kind}")
    monkeypatch.setitem(language_variants.LANGUAGE_VARIANTS, kind, bad)  # type: ignore[arg-type]
    limits = Limits(5, 2**30) if kind in ("hangs", "eats") else LIMITS
    exporter = replace(exporter, candidates=(kind,), limits=limits)
    row = exporter.measure_one(kind, REFERENCE)
    assert BAD[kind] in (row.reason or "")
    assert not (exporter.folder / f"{kind}.draft").exists()


def test_a_form_that_does_not_answer_in_time_is_a_row(
    exporter: LanguageExporter, int8: LanguageCandidate
) -> None:
    row = replace(exporter, limits=Limits(0.2, 2**34)).measure_one(INT8, REFERENCE)
    assert row.reason == "its measurement did not end within 0.2 s"


def test_a_decoder_that_is_refused_is_a_row_and_so_is_what_is_made_of_it(
    exporter: LanguageExporter, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoint"
    model = language_models.decoder(
        *("gemma2",),
        **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64},
    )
    model.save_pretrained(folder)
    language_models.tokenizer().save_pretrained(folder)
    refused = replace(exporter, checkpoint=folder, folder=tmp_path / "forms")
    for name in (EXACT_VARIANT, INT8):
        assert "soft-capped" in (refused.measure_one(name, REFERENCE).reason or "")


def test_text_that_is_away_fails_the_run(
    exporter: LanguageExporter, exact: LanguageCandidate, tmp_path: Path
) -> None:
    def away() -> TokenPieces:
        raise TransientError("the table cannot be read")

    (tmp_path / EXACT_VARIANT).symlink_to(exporter.make(EXACT_VARIANT).path)
    exporter = replace(exporter, calibration=away, folder=tmp_path)
    with pytest.raises(TransientError, match="the table cannot be read"):
        exporter.measure_one(AWQ, REFERENCE)


def test_forms_that_cannot_be_made_here_are_rows_and_the_reference_is_not_left(
    exporter: LanguageExporter, reference: Reference
) -> None:
    assert (exporter.folder / REFERENCE_FOLDER).is_dir()
    lacking, unknown = exporter.measure_candidates()
    assert lacking.reason == (
        "the package onnxruntime-genai is not installed: pip install onnxruntime-genai"
    )
    assert unknown.reason == "there is no variant 'no-such-variant'"
    assert not (exporter.folder / REFERENCE_FOLDER).exists()
