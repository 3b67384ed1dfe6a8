import copy

import pytest
import torch

from millrace.models.language.optimizers import clip, grad_norm


@pytest.mark.parametrize("most", [0.5, 1e6])
def test_gradients_are_clipped_as_torch_does(most: float) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    net(torch.randn(32, 8)).square().sum().backward()
    other = copy.deepcopy(net)
    for ours, theirs in zip(net.parameters(), other.parameters(), strict=True):
        theirs.grad = ours.grad.clone()
    norm = grad_norm(net.parameters())
    clip(net.parameters(), norm, most)
    wanted = torch.nn.utils.clip_grad_norm_(other.parameters(), most)
    assert norm == pytest.approx(float(wanted), rel=1e-6)
    for ours, theirs in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_parameter_without_a_gradient_is_left_out() -> None:
    frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    assert grad_norm([frozen]) == 0.0
