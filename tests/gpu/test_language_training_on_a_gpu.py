"""Decoders on an NVIDIA GPU; `make test` leaves these out. Run on an H100 with torch 2.11."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from millrace.models.language.decoder_loop import LanguageJob, train
from millrace.models.language.learner import Learner
from millrace.models.language.micro_batches import micro_batch
from millrace.models.language.parallel import ShardedStrategy, Strategy, strategy_of
from millrace.models.language.recipe import DecoderSpec, Recipe
from millrace.models.planner.catalogue import device_named
from millrace.models.planner.worker_memory import Load, memory_of
from tests.integration.ports import free_ports
from tests.sequences_in_memory import SequencesInMemory

pytestmark = pytest.mark.gpu
VOCAB, CONTEXT = 8192, 1024
SPEC = DecoderSpec(
    VOCAB,
    CONTEXT,
    {
        "architecture": "llama",
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
    },
    pad_token_id=0,
)
RECIPE = Recipe(batch_size=8, log_steps=5, precision="bf16")


@pytest.fixture
def group() -> Iterator[None]:
    given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0]), "LOCAL_RANK": "0"}
    before = dict(os.environ)
    os.environ.update(given)
    dist.init_process_group("nccl", rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    os.environ.clear()
    os.environ.update(before)


def sequences(n: int) -> SequencesInMemory:
    starts = np.random.default_rng(0).integers(VOCAB, size=n)
    steps = 3 * np.arange(CONTEXT // 2)
    halves = [((start + steps) % VOCAB).astype(np.int32) for start in starts]
    lengths = [CONTEXT // 2, CONTEXT // 2]
    return SequencesInMemory(tuple((np.concatenate([h, h]), lengths, None) for h in halves))


def reports(strategy: Strategy, folder: Path) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []

    def report(metrics: dict[str, Any], write: Any) -> None:
        told.append(metrics)
        if write is not None:
            folder.mkdir(parents=True, exist_ok=True)
            write(folder)

    train(LanguageJob(SPEC, RECIPE, sequences(240), sequences(8)), strategy, None, report)
    return told


def cuda() -> torch.device:
    return torch.device("cuda", 0)


def test_bf16_learns_and_tells_its_share_of_the_peak(tmp_path: Path) -> None:
    told = reports(strategy_of("ddp", cuda(), torch.bfloat16), tmp_path)
    assert told[-1]["loss"] < told[0]["loss"]
    assert device_named(torch.cuda.get_device_name(0)) is not None
    # No claim of speed: a share that is none, or more than a device can do, is a wrong formula.
    assert 0.02 < told[-1]["mfu"] < 1.0


def test_the_formula_of_memory_is_near_what_was_taken(tmp_path: Path) -> None:
    learner = Learner(SPEC, RECIPE, strategy_of("ddp", cuda(), torch.bfloat16))
    torch.cuda.reset_peak_memory_stats()
    rows = sequences(RECIPE.batch_size)
    batch = micro_batch([rows.sequence(each) for each in range(len(rows))], padding=0)
    for _ in range(2):
        learner.step([batch], 1e-4)
    told = memory_of(learner.shape, Load(RECIPE.batch_size, CONTEXT, half=True)).total
    assert torch.cuda.max_memory_allocated() == pytest.approx(told, rel=0.35)


@pytest.mark.usefixtures("group")
def test_fsdp_on_one_gpu_has_the_curve_of_no_fsdp(tmp_path: Path) -> None:
    alone = reports(Strategy(cuda(), torch.bfloat16), tmp_path / "alone")
    strategy = strategy_of("fsdp", cuda(), torch.bfloat16)
    assert isinstance(strategy, ShardedStrategy)
    sharded = reports(strategy, tmp_path / "sharded")
    assert [each["loss"] for each in sharded] == pytest.approx(
        [each["loss"] for each in alone], rel=0.02
    )
    assert (tmp_path / "sharded" / "model" / "model.safetensors").is_file()
