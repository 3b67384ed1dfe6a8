import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

from millrace.models.families.network import Network
from millrace.models.inference.features import Encoding, Feature
from millrace.models.training.network_learner import (
    WARM_UP,
    has_changing_buffers,
    leaves_parameters_unused,
)

NUMBERS = Encoding((Feature("a", "number"), Feature("b", "number")), "t", ("no", "yes"))


class _WithSpareLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, rows: Tensor) -> Tensor:
        answer: Tensor = self.used(rows)
        return answer


class _Frozen(_WithSpareLayer):
    def __init__(self) -> None:
        super().__init__()
        self.spare.requires_grad_(False)


@pytest.mark.parametrize(
    ("net", "unused"), [(_WithSpareLayer(), True), (_Frozen(), False), (nn.Linear(2, 2), False)]
)
def test_a_layer_that_gets_no_gradient_is_found(net: nn.Module, unused: bool) -> None:
    assert leaves_parameters_unused(Network(NUMBERS, net), NUMBERS.input.example(2)) is unused


def test_trying_changes_neither_the_network_nor_the_random_state() -> None:
    network = Network(NUMBERS, nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(), nn.Linear(2, 2)))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    state = torch.get_rng_state()
    leaves_parameters_unused(network, NUMBERS.input.example(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())


def test_ddp_sends_buffers_only_if_a_step_can_change_one() -> None:
    """The mean and the scale of the columns are buffers too, and never change."""
    assert not has_changing_buffers(Network(NUMBERS, nn.Linear(2, 1)))
    normed = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    assert has_changing_buffers(Network(NUMBERS, normed))


@pytest.mark.parametrize("steps", range(1, 40))
def test_the_schedule_of_any_number_of_steps_can_be_followed(steps: int) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    schedule = OneCycleLR(optimizer, max_lr=1.0, total_steps=steps + 1, pct_start=WARM_UP)
    for _ in range(steps):
        optimizer.step()
        schedule.step()
    assert schedule.get_last_lr()[0] < 0.01
