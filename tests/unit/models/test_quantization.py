from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from millrace.models.common.errors import InputError
from millrace.models.config.compression_spec import PruningSpec, QuantizationAwareSpec
from millrace.models.config.training_spec import TrainingSpec
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
    WEIGHT_LEVELS,
    Compression,
    FakeQuantization,
    Range,
    require_compressible,
    round_weight,
)

ENCODING = Encoding((Feature("v", "vector", width=64),), "t", ("a", "b", "c"))
EPOCHS, STEPS = 4, 6


def network(seed: int = 0) -> Network:
    torch.manual_seed(seed)
    return Network(ENCODING, Perceptron(64, 3, hidden=(16, 8)))


def trainer(net: Network, **spec: Any) -> tuple[Compression, torch.optim.AdamW]:
    training = TrainingSpec(epochs=EPOCHS, **spec)
    return Compression(training, net, STEPS), torch.optim.AdamW(net.parameters(), lr=1e-2)


def learn(net: Network, compression: Compression, optimizer: Any, epoch: int) -> dict[str, float]:
    rows = torch.Generator().manual_seed(epoch)
    net.train()
    compression.begin_epoch(epoch)
    for _ in range(STEPS):
        features = torch.randn(32, 64, generator=rows)
        optimizer.zero_grad()
        with compression.forward():
            logits = net(features)
        nn.functional.cross_entropy(logits, features[:, :3].argmax(1)).backward()
        optimizer.step()
        compression.after_step()
    return compression.end_epoch()


def test_weights_are_rounded_to_seven_bits_for_each_output() -> None:
    weight = torch.tensor([[1.0, -0.5, 0.008], [100.0, 30.0, -3.0]])
    found = round_weight(weight)
    steps = found / (weight.abs().amax(1, keepdim=True) / WEIGHT_LEVELS)
    torch.testing.assert_close(steps, torch.tensor([[64.0, -32.0, 1.0], [64.0, 19.0, -2.0]]))


def test_what_is_zero_stays_zero() -> None:
    weight = torch.tensor([[0.0, 0.7], [0.0, 0.0]])
    assert round_weight(weight).eq(0).tolist() == [[True, False], [True, True]]


def test_the_range_of_activations_is_a_moving_average_around_zero() -> None:
    kept = Range(torch.device("cpu"))
    kept.see(torch.tensor([1.0, 3.0]), 0.25)
    assert kept.ends.tolist() == [0.0, 3.0]
    kept.see(torch.tensor([-4.0, 7.0]), 0.25)
    assert kept.ends.tolist() == [-1.0, 4.0]
    assert kept.rounded(torch.tensor([100.0]))[0] == pytest.approx(4.0, abs=5 / 255)


def test_gradients_pass_through_the_rounding() -> None:
    net = network()
    compression, _ = trainer(net, quantization_aware=QuantizationAwareSpec(start=0.0))
    compression.begin_epoch(0)
    with compression.forward():
        net(torch.randn(8, 64)).sum().backward()
    assert all(each.grad is not None and bool(each.grad.any()) for each in net.parameters())


def test_rounding_begins_at_its_share_of_training_and_leaves_the_network_as_it_is() -> None:
    net, rows = network(), torch.randn(8, 64)
    names = list(net.state_dict())
    compression, _ = trainer(net, quantization_aware=QuantizationAwareSpec(start=0.5))
    net.eval()
    exact, found = net(rows), []
    for epoch in range(EPOCHS):
        compression.begin_epoch(epoch)
        with compression.forward():
            is_rounded = not torch.equal(net(rows), exact)
        found.append((is_rounded, compression.end_epoch()["quantized"]))
    assert found == [(False, 0.0), (False, 0.0), (True, 1.0), (True, 1.0)]
    assert list(net.state_dict()) == names
    assert torch.equal(net(rows), exact)


def test_a_convolution_is_rounded_too_and_a_parameter_of_ones_own_is_not() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.own = nn.Conv1d(1, 2, 3), nn.Parameter(torch.randn(3, 124))

        def forward(self, rows: Any) -> Any:
            return nn.functional.linear(self.conv(rows[:, None]).flatten(1), self.own)

    net = Network(ENCODING, Net())
    rounding = FakeQuantization(QuantizationAwareSpec(start=0.0), net, EPOCHS)
    rounding.begin_epoch(0)
    with rounding:
        net(torch.randn(4, 64))
    assert len(rounding.state_dict()["ranges"]) == 1
    assert not rounding.state_dict()["ranges"][0].isnan().any()


def test_a_run_that_goes_on_from_a_checkpoint_ends_as_one_that_was_not_stopped(
    tmp_path: Path,
) -> None:
    spec = {"quantization_aware": QuantizationAwareSpec(start=0.25)}
    whole, resumed = network(), network(seed=1)
    compression, optimizer = trainer(whole, **spec)
    for epoch in range(EPOCHS):
        learn(whole, compression, optimizer, epoch)
        if epoch == 1:
            states = {"optimizer": optimizer.state_dict(), "compression": compression.state_dict()}
            save_checkpoint(tmp_path, whole, states, TrainState(epoch + 1))
    compression, optimizer = trainer(resumed, **spec)
    load_weights(tmp_path, resumed)
    states, state = load_progress(tmp_path)
    optimizer.load_state_dict(states["optimizer"])
    compression.load_state_dict(states["compression"])
    for epoch in range(state.epoch, EPOCHS):
        learn(resumed, compression, optimizer, epoch)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_pruning_and_rounding_go_together() -> None:
    net = network()
    compression, optimizer = trainer(
        net, pruning=PruningSpec(sparsity=0.5), quantization_aware=QuantizationAwareSpec()
    )
    metrics = [learn(net, compression, optimizer, epoch) for epoch in range(EPOCHS)]
    assert metrics[-1] == {"sparsity": pytest.approx(0.5, abs=0.01), "quantized": 1.0}
    weight = net.net.layers[0].weight
    assert float((weight == 0).float().mean()) == pytest.approx(0.5, abs=0.01)
    assert bool((round_weight(weight)[weight == 0] == 0).all())


def test_a_network_without_layers_to_round_is_refused() -> None:
    class Net(nn.Module):
        pass

    spec = TrainingSpec(quantization_aware=QuantizationAwareSpec())
    with pytest.raises(InputError, match="no layer that can be quantized"):
        require_compressible(spec, Network(ENCODING, Net()), ENCODING.input)


@pytest.mark.parametrize("wrong", [{"start": 1.0}, {"start": -0.1}, {"averaging_constant": 0.0}])
def test_a_spec_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        QuantizationAwareSpec(**wrong)
