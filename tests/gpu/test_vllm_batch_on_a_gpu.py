"""A night of prompts on a GPU; `make test` leaves it out.

Run on an H100 with vLLM 0.26.0, torch 2.11 and Ray 2.60 (VLLM_USE_FLASHINFER_SAMPLER=0, FlashInfer
was not there), and on a CPU, by vLLM 0.32.0 built for one and a GPU that Ray only believed in.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from millrace.export.language.language_variants import lacking_vllm
from millrace.models.config.language_spec import GenerationSpec
from millrace.models.ray.cluster import connect_to_ray
from millrace.serving.batch.input.find_input import open_input
from millrace.serving.batch.prompts.prompt_rows import Sampling
from millrace.serving.batch.prompts.vllm_engines import (
    engine_arguments_of,
    engines_of,
    gpus_of_ray,
    vllm_version,
)
from millrace.serving.batch.prompts.vllm_job import VllmJob
from millrace.serving.batch.scoring import RunOptions, Target, score
from tests.language_model import byte_tokenizer

PYTHON = Path(os.environ["MILLRACE_VLLM_PYTHON"]) if "MILLRACE_VLLM_PYTHON" in os.environ else None
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(lacking_vllm(PYTHON) is not None, reason=str(lacking_vllm(PYTHON))),
    pytest.mark.timeout(900),
]
TEXT = "the old mill by the river turned its wheel all day and all night long. " * 40
CONTEXT, NEW, MANY = 256, 16, 600


@pytest.fixture(scope="module", autouse=True)
def ray_is_there() -> Iterator[None]:
    with connect_to_ray("local", 1):
        yield


@pytest.fixture(scope="module")
def variant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of random weights whose answers differ, with heads of a size that GPUs take."""
    folder, tokenizer = tmp_path_factory.mktemp("vllm") / "form", byte_tokenizer(TEXT)
    torch.manual_seed(0)
    config = LlamaConfig(
        **{"vocab_size": len(tokenizer), "eos_token_id": 0, "bos_token_id": None},
        **{"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3},
        max_position_embeddings=CONTEXT,
    )
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def scored(
    variant: Path, folder: Path, prompts: list[str], **sampling: Any
) -> list[dict[str, Any]]:
    """Return the rows of the output, in the order of the prompts."""
    (folder / "prompts.jsonl").write_text("\n".join(json.dumps({"prompt": p}) for p in prompts))
    job = VllmJob(
        *("lm", 1, "d", variant),
        sampling=Sampling(max_tokens=NEW, **sampling),
        arguments=engine_arguments_of(variant, GenerationSpec()),
        vllm=vllm_version(PYTHON),
        python=PYTHON,
        engines=engines_of(None, gpus_of_ray(), 1),
    )
    target = Target(str(folder / "table"), str(folder / "dead"), "2026-01-05")
    report = score(open_input(str(folder / "prompts.jsonl"), job), job, target, RunOptions())
    rows = deltalake.DeltaTable(folder / "table").to_pyarrow_table().sort_by("_row").to_pylist()
    assert report.scored == len(rows)
    assert report.tokens_out == sum(row["completion_tokens"] for row in rows)
    return rows  # type: ignore[no-any-return]


def test_a_night_of_prompts_is_answered_once_each(variant: Path, tmp_path: Path) -> None:
    prompts = [TEXT[n % 70 : n % 70 + 10 + n % 50] for n in range(MANY)]
    rows = scored(variant, tmp_path, [*prompts, TEXT, ""])
    assert [row["_row"] for row in rows] == list(range(MANY))
    assert len({row["completion"] for row in rows}) > MANY / 20
    assert {row["finish_reason"] for row in rows} <= {"stop", "length"}
    assert all(row["completion_tokens"] == NEW or row["finish_reason"] == "stop" for row in rows)
    dead = deltalake.DeltaTable(tmp_path / "dead").to_pyarrow_table().sort_by("_row")
    assert dead["_row"].to_pylist() == [MANY, MANY + 1]


def test_what_is_drawn_is_drawn_again_by_the_same_seed(variant: Path, tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        found.append(scored(variant, tmp_path / name, [TEXT[:20]] * 8, temperature=1.0, seed=3))
    once, again = ([row["completion"] for row in rows] for rows in found)
    assert once == again
    assert len(set(once)) > 1
