from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from pydantic import ValidationError
from torch import nn
from torch.multiprocessing.spawn import spawn

from millrace.models.common.errors import InputError
from millrace.models.config.compression_spec import PruningSpec
from millrace.models.config.pipeline_file import load_pipeline
from millrace.models.config.training_spec import TrainingSpec
from millrace.models.families.cnn import ResNet
from millrace.models.families.mlp import Perceptron
from millrace.models.families.network import Network
from millrace.models.inference.features import Encoding, Feature
from millrace.models.training.checkpoint import (
    TrainState,
    load_progress,
    load_weights,
    save_checkpoint,
)
from millrace.models.training.compression.compression import (
    Compression,
    remove_pruned,
    require_compressible,
)
from millrace.models.training.compression.pruning import Pruner, select_kept, sparsity_at

ENCODING = Encoding((Feature("v", "vector", width=64),), "t", ("a", "b", "c"))
EPOCHS, STEPS = 5, 8
WEIGHTS = ("net.layers.0.weight", "net.layers.2.weight", "net.layers.4.weight")


def network(seed: int = 0) -> Network:
    torch.manual_seed(seed)
    return Network(ENCODING, Perceptron(64, 3, hidden=(16, 8)))


def trainer(net: Network, spec: PruningSpec) -> tuple[Compression, torch.optim.AdamW]:
    training = TrainingSpec(epochs=EPOCHS, pruning=spec)
    return Compression(training, net, STEPS), torch.optim.AdamW(net.parameters(), lr=1e-2)


def learn(net: Network, compression: Compression, optimizer: Any, epoch: int) -> dict[str, float]:
    """One epoch of the training loop, on rows that depend on the epoch alone."""
    rows = torch.Generator().manual_seed(epoch)
    compression.begin_epoch(epoch)
    for _ in range(STEPS):
        features = torch.randn(32, 64, generator=rows)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(features), features[:, :3].argmax(1)).backward()
        optimizer.step()
        compression.after_step()
    return compression.end_epoch()


def zeros(net: Network) -> list[float]:
    found = dict(net.named_parameters())
    return [float((found[name] == 0).float().mean()) for name in WEIGHTS]


def test_the_schedule_is_cubic_between_start_and_end() -> None:
    spec = PruningSpec(sparsity=0.8, start=0.2, end=0.6)
    found = [sparsity_at(progress, spec) for progress in (0.0, 0.2, 0.4, 0.6, 1.0)]
    assert found == pytest.approx([0.0, 0.0, 0.8 * (1 - 0.5**3), 0.8, 0.8])


def test_the_least_are_pruned_and_what_was_pruned_stays_so() -> None:
    scores = [torch.tensor([5.0, 1.0, 9.0]), torch.tensor([2.0, 8.0, 0.0])]
    before = [torch.tensor([True, True, False]), torch.ones(3, dtype=torch.bool)]
    first, second = select_kept(scores, before, sparsity=0.5)
    assert (first.tolist(), second.tolist()) == ([True, False, False], [True, True, False])


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_weights_become_zero_and_stay_zero_while_the_rest_goes_on_learning(scope: Any) -> None:
    net = network()
    spec = PruningSpec(sparsity=0.5, start=0.0, end=0.4, frequency=3, scope=scope)
    compression, optimizer = trainer(net, spec)
    curve = [learn(net, compression, optimizer, epoch)["sparsity"] for epoch in range(2)]
    pruned = net.net.layers[0].weight == 0
    before = net.net.layers[0].weight.clone()
    curve += [learn(net, compression, optimizer, epoch)["sparsity"] for epoch in range(2, EPOCHS)]
    after = net.net.layers[0].weight
    assert 0 < curve[0] < curve[1] == curve[-1]
    assert torch.equal(after == 0, pruned)
    assert not torch.equal(after[~pruned], before[~pruned])
    share = zeros(net)
    if scope == "layer":
        assert share == pytest.approx([0.5, 0.5, 0.5], abs=0.05)
    else:
        assert curve[-1] == pytest.approx(0.5, abs=0.01)
        assert max(share) - min(share) > 0.05


def test_pruning_goes_on_within_an_epoch_and_no_step_brings_a_weight_back() -> None:
    net = network()
    spec = PruningSpec(sparsity=0.5, start=0.0, end=0.2, frequency=2)
    compression, optimizer = trainer(net, spec)
    compression.begin_epoch(0)
    found = []
    for _ in range(STEPS):
        net(torch.randn(32, 64)).square().sum().backward()
        optimizer.step()
        compression.after_step()
        found.append(zeros(net)[0])
    assert found[0] == 0 < found[1] == found[2] < found[3] == found[4] < found[5] == found[6]
    assert found[-1] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("kind", ["magnitude", "structured"])
def test_a_run_that_goes_on_from_a_checkpoint_ends_as_one_that_was_not_stopped(
    kind: Any, tmp_path: Path
) -> None:
    spec = PruningSpec(kind=kind, sparsity=0.5, start=0.1, end=0.7, frequency=3)
    whole = network()
    compression, optimizer = trainer(whole, spec)
    for epoch in range(EPOCHS):
        learn(whole, compression, optimizer, epoch)
        if epoch == 2:
            states = {"optimizer": optimizer.state_dict(), "compression": compression.state_dict()}
            save_checkpoint(tmp_path, whole, states, TrainState(epoch + 1))
    resumed = network(seed=1)
    compression, optimizer = trainer(resumed, spec)
    load_weights(tmp_path, resumed)
    states, state = load_progress(tmp_path)
    optimizer.load_state_dict(states["optimizer"])
    compression.load_state_dict(states["compression"])
    for epoch in range(state.epoch, EPOCHS):
        learn(resumed, compression, optimizer, epoch)
    assert min(zeros(whole)[:2]) > 0.4
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_what_a_checkpoint_says_is_pruned_stays_so_though_it_is_not_the_least() -> None:
    net = network()
    spec = PruningSpec(sparsity=0.5, start=0.0, end=0.2)
    compression, _ = trainer(net, spec)
    masks = [torch.ones(each, dtype=torch.bool) for each in (64 * 16, 16 * 8, 8 * 3)]
    masks[0][:3] = False
    compression.load_state_dict({"pruning": {"masks": masks}})
    net.net.layers[0].weight.data[0, :3] = 100.0
    compression.begin_epoch(1)
    compression.end_epoch()
    assert net.net.layers[0].weight[0, :3].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("family", ["mlp", "cnn"])
def test_structured_pruning_leaves_a_smaller_network_with_the_same_answers(family: str) -> None:
    torch.manual_seed(0)
    nets = {
        "mlp": Perceptron(64, 3, hidden=(16, 8)),
        "cnn": ResNet(64, 3, [1, 8, 8], channels=(4, 8)),
    }
    net = Network(ENCODING, nets[family])
    compression, optimizer = trainer(net, PruningSpec(kind="structured", sparsity=0.5))
    metrics = [learn(net, compression, optimizer, epoch) for epoch in range(EPOCHS)]
    assert metrics[-1]["sparsity"] == 0.5
    net.eval()
    rows, widths = torch.randn(8, 64), [len(u.scores()) for u in nets[family].removable_units()]
    with torch.no_grad():
        before = net(rows)
        spec = TrainingSpec(pruning=PruningSpec(kind="structured"))
        remove_pruned(spec, net)
        torch.testing.assert_close(net(rows), before, atol=1e-5, rtol=1e-5)
    assert [len(u.scores()) for u in nets[family].removable_units()] == [w // 2 for w in widths]


def test_weights_that_two_layers_share_are_pruned_once() -> None:
    net = network()
    net.net.layers[2] = nn.Linear(16, 16)
    net.net.layers.append(nn.Linear(16, 16))
    net.net.layers[-1].weight = net.net.layers[2].weight
    pruner = Pruner(PruningSpec(), net, EPOCHS, STEPS)
    assert len(pruner.state_dict()["masks"]) == 3


def _rank(rank: int, folder: str) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2
    )
    net = network(seed=rank)  # other weights, as far apart as can be
    pruner = Pruner(PruningSpec(sparsity=0.5, start=0.0, end=0.2), net, EPOCHS, STEPS)
    pruner.begin_epoch(1)
    pruner.end_epoch()
    torch.save(pruner.state_dict(), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_the_masks_are_those_of_rank_0(tmp_path: Path) -> None:
    spawn(_rank, args=(str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt")["masks"] for rank in (0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not bool(first[0].all())


class Plain(nn.Module):
    """A module of the user's that says nothing of units."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))


class NoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(64, 3))


class Squashed(Perceptron):
    def __init__(self) -> None:
        super().__init__(64, 3, hidden=(8,))
        self.layers[1] = nn.Sigmoid()


@pytest.mark.parametrize(
    ("net", "kind", "what"),
    [
        (Plain(), "structured", "has no method removable_units"),
        (Perceptron(64, 3, hidden=()), "structured", "has no layers that structured pruning"),
        (NoLayers(), "magnitude", "has no layers that magnitude pruning"),
        (Squashed(), "structured", "cannot be removed"),
    ],
)
def test_a_network_that_cannot_be_pruned_so_is_refused(
    net: nn.Module, kind: Any, what: str
) -> None:
    spec = TrainingSpec(pruning=PruningSpec(kind=kind))
    with pytest.raises(InputError, match=what) as caught:
        require_compressible(spec, Network(ENCODING, net), ENCODING.input)
    assert caught.value.hint


@pytest.mark.parametrize("kind", ["magnitude", "structured"])
def test_the_families_can_be_pruned(kind: Any) -> None:
    for net in (Perceptron(64, 3), ResNet(64, 3, [1, 8, 8])):
        require_compressible(
            TrainingSpec(pruning=PruningSpec(kind=kind)), Network(ENCODING, net), ENCODING.input
        )


@pytest.mark.parametrize(
    "wrong",
    [
        {"sparsity": 0.0},
        {"sparsity": 1.0},
        {"start": 0.8, "end": 0.2},
        {"start": 0.5, "end": 0.5},
        {"frequency": 0},
        {"kind": "structured", "scope": "global"},
        {"kind": "random"},
    ],
)
def test_a_spec_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PruningSpec(**wrong)


@pytest.mark.parametrize(
    ("pruning", "told"),
    [
        ("{sparsity: 1.5}", "training.pruning.sparsity: input should be less than 1; seen 1.5"),
        ("{sparsty: 0.5}", "did you mean 'sparsity'?"),
        ("{start: 0.9}", "start 0.9 must be before end 0.8"),
    ],
)
def test_a_pipeline_file_that_prunes_wrongly_is_told(
    pruning: str, told: str, tmp_path: Path
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        f"name: m\ndataset: {{source: a.csv, target: y}}\ntraining: {{pruning: {pruning}}}\n"
    )
    with pytest.raises(InputError) as caught:
        load_pipeline(file)
    assert told in str(caught.value)
