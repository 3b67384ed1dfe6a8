"""What a network costs, beside what one counts by hand."""

import numpy as np
import pytest
import torch
from torch import nn

from millrace.models.families.cnn import ResNet
from millrace.models.families.count_network import count_network
from millrace.models.families.mlp import Perceptron
from millrace.models.families.text_classifier import TextClassifier


def example(width, rows=2):
    return np.ones((rows, width), np.float32)


def test_two_layers_cost_what_their_matrices_say():
    cost = count_network(
        (nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 2))), example(30)
    )
    assert cost.parameters == cost.trained == 31 * 64 + 65 * 2
    assert cost.forward_flops == 2 * (30 * 64 + 64 * 2)
    # backward: both matrices' gradients, and the gradient of the hidden layer, not of the input
    assert cost.training_flops == 3 * cost.forward_flops - 2 * 30 * 64
    assert cost.input_bytes == 120


def test_what_is_kept_grows_with_the_layers_outputs():
    narrow, wide = (
        count_network((nn.Sequential(nn.Linear(8, n), nn.Tanh(), nn.Linear(n, 4))), example(8))
        for n in (16, 160)
    )
    assert wide.saved_bytes - narrow.saved_bytes == pytest.approx(4 * 144)


def test_a_convolution_counts_every_place():
    cost = count_network(
        (nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3, padding=1))),
        example(64),
    )
    assert cost.forward_flops == 2 * 64 * 9 * 4


def test_attention_is_products_of_activations_and_a_softmax():
    class Attention(nn.Module):
        def __init__(self, fused):
            super().__init__()
            self.enter, self.fused = nn.Linear(16, 3 * 16), fused

        def forward(self, rows):
            queries, keys, values = self.enter(rows.reshape(-1, 1, 6, 16)).chunk(3, -1)
            if self.fused:
                return nn.functional.scaled_dot_product_attention(queries, keys, values)
            return (queries @ keys.transpose(-1, -2)).softmax(-1) @ values

    for fused, device in ((False, "cpu"), (True, "cpu"), (True, "meta")):
        cost = count_network(Attention(fused).to(device), example(6 * 16))
        assert cost.activation_flops == 2 * (2 * 6 * 6 * 16)
        assert cost.forward_flops == 2 * 6 * 16 * 48 + cost.activation_flops
        assert cost.function_elements == 6 * 6
        assert cost.training_flops >= 3 * cost.forward_flops - 2 * 6 * 16 * 48


def test_what_the_export_folds_into_weights_is_no_function():
    layers = (nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.LayerNorm(12), nn.GELU())
    cost = count_network(nn.Sequential(*layers), example(8))
    assert (cost.function_elements, cost.activation_flops) == (2 * 12, 0)


def test_a_frozen_layer_is_not_trained():
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    net[0].requires_grad_(False)
    cost = count_network((net), example(8))
    assert (cost.parameters, cost.trained) == (90, 18)


def test_counting_changes_nothing():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 1))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    chance = torch.get_rng_state()
    count_network(network, example(4))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), chance)
    assert all(each.grad is None for each in network.parameters())
    assert network.training


def test_more_layers_start_more_kernels():
    counts = [
        count_network((nn.Sequential(*[nn.Linear(4, 4) for _ in range(n)])), example(4))
        for n in (1, 5)
    ]
    assert counts[1].forward_kernels - counts[0].forward_kernels == 4
    assert counts[1].training_kernels > counts[1].forward_kernels


@pytest.mark.parametrize(
    "make",
    [
        lambda: Perceptron(64, 4, [32, 16], dropout=0.1),
        lambda: ResNet(64, 4, image_shape=[1, 8, 8], channels=[8, 16]),
    ],
)
def test_the_counts_are_the_same_without_memory(make):
    with torch.device("meta"):
        weightless = make()
    assert count_network(weightless, example(64)) == count_network(make(), example(64))


def test_a_text_is_counted_without_memory_as_with_it():
    """The mask of a text asks whether all tokens are real ones."""

    def make():
        return TextClassifier(num_classes=3, vocab_size=50, padding=0, max_tokens=16)

    with torch.device("meta"):
        weightless = make()
    tokens = np.ones((2, 16), np.int64)
    assert count_network(weightless, tokens) == count_network(make(), tokens)


def test_a_network_that_no_machine_holds_is_counted():
    with torch.device("meta"):
        huge = Perceptron(10, 2, [2_000_000, 2_000_000])
    assert count_network(huge, example(10)).parameters > 4e12
