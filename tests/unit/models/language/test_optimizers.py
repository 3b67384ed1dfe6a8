"""Which weights each optimizer steps."""

import dataclasses

import pytest
from torch.optim import AdamW, Muon

from millrace.models.common.errors import InputError
from millrace.models.language.causal_lm import build_decoder
from millrace.models.language.optimizers import moments_of, optimizers_of
from millrace.models.language.recipe import DecoderSpec, Recipe

RECIPE = Recipe(optimizer="muon")


def test_muon_has_the_matrices_inside_and_adamw_the_rest(tiny: DecoderSpec) -> None:
    decoder = build_decoder(tiny, seed=0)
    muon, adamw = optimizers_of(decoder, RECIPE)
    assert isinstance(muon, Muon)
    assert isinstance(adamw, AdamW)
    names = {id(each): name for name, each in decoder.named_parameters()}
    inside = {names[id(each)] for group in muon.param_groups for each in group["params"]}
    rest = {names[id(each)] for group in adamw.param_groups for each in group["params"]}
    assert all(name.startswith("model.layers") and "proj" in name for name in inside)
    assert not any("proj" in name for name in rest)
    assert inside | rest == set(names.values())
    assert not inside & rest
    assert 1 < moments_of((muon, adamw)) < 2
    assert moments_of(optimizers_of(decoder, Recipe())) == 2


@pytest.mark.parametrize("parallel", ["fsdp", "tp"])
def test_muon_wants_whole_matrices(tiny: DecoderSpec, parallel: str) -> None:
    recipe = dataclasses.replace(RECIPE, parallel=parallel)
    with pytest.raises(InputError, match="muon needs whole matrices"):
        optimizers_of(build_decoder(tiny, seed=0), recipe)
