import copy

import pytest
import torch
from torch import Tensor, nn

from millrace.models.families.cnn import ResNet
from millrace.models.families.mlp import Perceptron
from millrace.models.families.units import Units, can_shrink, shrink

NETS = {
    "mlp": (Perceptron(12, 3, hidden=(8, 6), dropout=0.1), torch.randn(5, 12)),
    "cnn": (ResNet(64, 10, [1, 8, 8], channels=(4, 8), blocks=2), torch.randn(5, 64)),
}


def disturbed(net: nn.Module) -> nn.Module:
    """A copy whose batch norms are not at their first values."""
    twin = copy.deepcopy(net)
    for each in twin.modules():
        if isinstance(each, nn.BatchNorm2d):
            nn.init.normal_(each.running_mean)
            nn.init.uniform_(each.running_var, 0.5, 2.0)
            nn.init.normal_(each.bias)
    return twin.eval()


@pytest.mark.parametrize("family", NETS)
@torch.no_grad()
def test_without_units_that_are_zero_a_network_is_smaller_and_answers_alike(family: str) -> None:
    net, rows = NETS[family]
    net = disturbed(net)
    for units in net.removable_units():
        units.keep(torch.arange(len(units.scores())) % 4 == 0)
    before, size = net(rows), sum(each.numel() for each in net.parameters())
    shrink(net)
    torch.testing.assert_close(net(rows), before, atol=1e-5, rtol=1e-5)
    assert sum(each.numel() for each in net.parameters()) < 0.6 * size
    assert all(bool(units.live().all()) for units in net.removable_units())


def test_a_layer_whose_units_are_all_zero_keeps_one() -> None:
    net = Perceptron(4, 2, hidden=(3,))
    (units,) = net.removable_units()
    units.keep(torch.zeros(3, dtype=torch.bool))
    shrink(net)
    assert [each.out_features for each in net.layers if isinstance(each, nn.Linear)] == [1, 2]


def test_units_that_have_no_bias_and_no_norm_can_go() -> None:
    first, second = nn.Conv2d(1, 4, 3, bias=False), nn.Conv2d(4, 2, 3)
    units = Units(first, second)
    units.remove(torch.tensor([True, False, True, False]))
    assert second(first(torch.randn(1, 1, 8, 8))).shape == (1, 2, 4, 4)


def test_a_unit_scores_the_l1_norm_of_its_weights() -> None:
    first = nn.Linear(2, 2)
    first.weight.data = torch.tensor([[1.0, -2.0], [0.5, 0.0]])
    assert Units(first, nn.Linear(2, 2)).scores().tolist() == [3.0, 0.5]


class Squashed(Perceptron):
    """Its units give 0.5 where their weights are zero, which taking them out would lose."""

    def __init__(self) -> None:
        super().__init__(12, 3, hidden=(8,))
        self.layers[1] = nn.Sigmoid()


class Flattened(nn.Module):
    """The consumer reads four values of each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(1, 4, 3), nn.Linear(40, 3)

    def forward(self, rows: Tensor) -> Tensor:
        return self.second(self.first(rows[:, None]).relu().flatten(1))

    def removable_units(self) -> list[Units]:
        return [Units(self.first, self.second)]


@pytest.mark.parametrize(
    ("net", "can"),
    [(NETS["mlp"][0], True), (Squashed(), False), (Flattened(), False)],
    ids=["right", "sigmoid", "flattened"],
)
def test_what_cannot_be_taken_out_is_known_beforehand(net: nn.Module, can: bool) -> None:
    before = [each.clone() for each in net.parameters()]
    assert can_shrink(net, torch.randn(5, 12)) is can
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
