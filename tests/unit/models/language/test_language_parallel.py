import dataclasses
from typing import Any

import pytest
import torch

from millrace.models.common.errors import InputError
from millrace.models.language.causal_lm import build_decoder
from millrace.models.language.decoder_loop import threads_of
from millrace.models.language.parallel import Strategy, layers_of, require_splittable, strategy_of
from millrace.models.language.recipe import DecoderSpec


def decoder(tiny: DecoderSpec, **params: Any) -> Any:
    return build_decoder(dataclasses.replace(tiny, params={**tiny.params, **params}), 0)


def test_the_layers_are_found_whatever_they_are_called(tiny: DecoderSpec) -> None:
    assert [type(each).__name__ for each in layers_of(decoder(tiny))] == ["LlamaDecoderLayer"] * 2
    gpt2 = {"architecture": "gpt2", "n_embd": 32, "n_layer": 3, "n_head": 2}
    found = layers_of(build_decoder(dataclasses.replace(tiny, params=gpt2), 0))
    assert [type(each).__name__ for each in found] == ["GPT2Block"] * 3


def test_heads_that_do_not_divide_are_told(tiny: DecoderSpec) -> None:
    require_splittable(decoder(tiny), 2)
    with pytest.raises(InputError) as told:
        require_splittable(decoder(tiny), 4)
    assert told.value.seen == "2 key-value heads, 4 workers"


def test_an_architecture_without_a_plan_is_told(tiny: DecoderSpec) -> None:
    gpt2 = {"architecture": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2}
    with pytest.raises(InputError, match="no tensor-parallel plan"):
        require_splittable(build_decoder(dataclasses.replace(tiny, params=gpt2), 0), 2)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp", "tp"])
def test_one_worker_alone_needs_no_group(parallel: Any) -> None:
    strategy = strategy_of(parallel, torch.device("cpu"))
    assert type(strategy) is Strategy
    assert (strategy.rank, strategy.world_size, strategy.gradient_scale) == (0, 1, 1.0)


@pytest.mark.parametrize(("cores", "workers", "threads"), [(2, 1, 2), (2, 2, 1), (1, 4, 1)])
def test_workers_share_the_cores(cores: int, workers: int, threads: int) -> None:
    assert threads_of(cores, workers) == threads
