"""Needs an NVIDIA GPU; `make test` leaves these out. Run on an H100 with torch 2.11."""

import pytest
import torch

from millrace.models.families.mlp import Perceptron
from millrace.models.training.network_learner import autocast_type

pytestmark = pytest.mark.gpu


def test_auto_precision_is_bf16_where_the_gpu_has_it() -> None:
    wanted = torch.bfloat16 if torch.cuda.is_bf16_supported() else None
    assert autocast_type("auto", torch.device("cuda")) is wanted


def test_a_forward_on_the_gpu_is_the_one_on_the_cpu() -> None:
    torch.manual_seed(0)
    net, rows = Perceptron(20, 3), torch.randn(64, 20)
    on_cpu = net(rows)
    on_gpu = net.cuda()(rows.cuda()).cpu()
    torch.testing.assert_close(on_gpu, on_cpu, atol=1e-4, rtol=1e-4)
