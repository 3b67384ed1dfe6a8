import pickle
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn
from torch.optim import AdamW

from millrace.models.training.checkpoint import (
    WEIGHTS,
    TrainState,
    load_progress,
    load_weights,
    save_checkpoint,
)


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def trained() -> tuple[nn.Module, AdamW]:
    made = network()
    optimizer = AdamW(made.parameters())
    made(torch.rand(8, 3)).square().sum().backward()
    optimizer.step()
    return made, optimizer


def test_weights_come_back_as_they_were(tmp_path: Path) -> None:
    saved, other = network(seed=0), network(seed=1)
    save_checkpoint(tmp_path, saved, {}, TrainState())
    load_weights(tmp_path, other)
    torch.testing.assert_close(other.state_dict(), saved.state_dict(), rtol=0, atol=0)


def test_the_optimizer_comes_back_as_it_was(tmp_path: Path) -> None:
    made, optimizer = trained()
    save_checkpoint(tmp_path, made, {"optimizer": optimizer.state_dict()}, TrainState())
    states, _ = load_progress(tmp_path)
    torch.testing.assert_close(states["optimizer"]["state"], optimizer.state_dict()["state"])


def test_training_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    made, optimizer = trained()
    save_checkpoint(tmp_path, made, {"optimizer": optimizer.state_dict()}, TrainState())
    resumed = network(seed=1)
    load_weights(tmp_path, resumed)
    going_on = AdamW(resumed.parameters())
    going_on.load_state_dict(load_progress(tmp_path)[0]["optimizer"])
    rows = torch.rand(8, 3)
    for module, steps in ((made, optimizer), (resumed, going_on)):
        steps.zero_grad()
        module(rows).square().sum().backward()
        steps.step()
    torch.testing.assert_close(resumed.state_dict(), made.state_dict(), rtol=0, atol=0)


def test_where_the_run_stood_comes_back(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, network(), {}, TrainState(epoch=7))
    assert load_progress(tmp_path)[1] == TrainState(epoch=7)


def test_weights_are_safetensors_and_nothing_else(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, network(), {}, TrainState())
    with safe_open(tmp_path / WEIGHTS, framework="pt") as weights:
        assert set(weights.keys()) == set(network().state_dict())


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, network(), {}, TrainState())
    with pytest.raises(RuntimeError, match="size mismatch"):
        load_weights(tmp_path, nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))


def test_tied_weights_are_kept(tmp_path: Path) -> None:
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    save_checkpoint(tmp_path, tied, {}, TrainState())
    load_weights(tmp_path, tied)
    assert tied[1].weight is tied[0].weight


class _Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


def test_no_code_in_a_checkpoint_is_run(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, network(), {}, TrainState())
    torch.save({"optimizer": _Bomb(tmp_path / "exploded")}, tmp_path / "optimizer.pt")
    with pytest.raises(pickle.UnpicklingError):
        load_progress(tmp_path)
    assert not (tmp_path / "exploded").exists()
