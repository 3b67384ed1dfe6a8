import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from millrace.models.common.errors import InputError
from millrace.models.config.model_kind import all_families
from millrace.models.config.training_spec import ModelSpec
from millrace.models.families.family import FAMILIES, build_network, family_of
from millrace.models.families.network import Network
from millrace.models.families.objective import objective_of
from millrace.models.inference.features import Encoding, Feature

ENCODING = Encoding(
    (Feature("v", "vector", width=12), Feature("c", "category", categories=("x", "y", "z", "w"))),
    "t",
    ("no", "yes"),
)

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, in_features, num_classes, width=8):
        super().__init__()
        if width == 0:
            raise KeyError("width")
        self.layers = nn.Sequential(nn.Linear(in_features, width), nn.Linear(width, num_classes))

    def forward(self, rows):
        return self.layers(rows)

class Flat(Net):
    def forward(self, rows):
        return self.layers(rows).flatten()

class Wide(Net):
    def forward(self, rows):
        return self.layers(rows).mean(dim=3)

class Pair(Net):
    def forward(self, rows):
        return self.layers(rows), rows

def make(in_features, num_classes):
    return Net(in_features, num_classes, width=3)

WIDTH = 8
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(NET)
    return tmp_path


def build(family: str, folder: Path = Path(), **params: Any) -> Network:
    spec = ModelSpec(family=family, params=params)
    return build_network(spec, folder, ENCODING, objective_of(ENCODING))


def told(family: str, folder: Path = Path(), **params: Any) -> str:
    with pytest.raises(InputError) as caught:
        build(family, folder, **params)
    return str(caught.value)


def logits(network: Network, rows: int = 5) -> torch.Tensor:
    return network(torch.rand(rows, ENCODING.raw_width))  # type: ignore[no-any-return]


def linear_widths(network: Network) -> list[tuple[int, int]]:
    layers = [layer for layer in network.net.modules() if isinstance(layer, nn.Linear)]
    return [(layer.in_features, layer.out_features) for layer in layers]


def test_a_pipeline_file_may_name_the_families_that_there_are() -> None:
    # a decoder of transformers is no module of rows
    assert {*FAMILIES, "causal_lm", "gradient_boosting"} <= set(all_families())


def test_an_unknown_family_suggests_the_nearest() -> None:
    assert "did you mean 'mlp'?" in told("mpl")


def test_a_family_like_no_other_is_told_how_to_bring_its_own() -> None:
    message = told("transformer")
    assert "mlp, cnn, text_classifier or module:Class" in message
    assert "use your own class" in message


@pytest.mark.parametrize("family", ["mlp", "cnn"])
def test_params_that_do_not_fit_are_answered_with_the_signature(family: str) -> None:
    message = told(family, hiden=[3])
    assert f"the family '{family}' takes no hiden, which model.params has" in message
    assert f"seen: {family}(in_features: int, num_classes: int, " in message
    assert ("did you mean 'hidden'?" in message) == (family == "mlp")


@pytest.mark.parametrize("hidden", ["64", [-3], [2.5], None])
def test_hidden_layers_that_cannot_be_made_are_the_users_mistake(hidden: Any) -> None:
    assert "could not be built" in told("mlp", hidden=hidden)


def test_a_perceptron_has_the_hidden_widths_that_are_asked_for() -> None:
    assert linear_widths(build("mlp", hidden=[7, 5])) == [(16, 7), (7, 5), (5, 2)]


def test_one_hidden_layer_may_be_given_as_a_number() -> None:
    assert linear_widths(build("mlp", hidden=7)) == [(16, 7), (7, 2)]


def test_a_perceptron_without_hidden_layers_is_linear() -> None:
    assert linear_widths(build("mlp", hidden=[])) == [(16, 2)]


@pytest.mark.parametrize(("dropout", "layers"), [(0.0, 0), (0.5, 2)])
def test_a_perceptron_drops_out_where_asked_for(dropout: float, layers: int) -> None:
    network = build("mlp", dropout=dropout)
    assert sum(isinstance(layer, nn.Dropout) for layer in network.modules()) == layers


@pytest.mark.parametrize("shape", [[1, 4, 4], [2, 2, 4]])
def test_a_convolutional_network_answers_images(shape: list[int]) -> None:
    assert logits(build("cnn", image_shape=shape, channels=[4, 8])).shape == (5, 2)


@pytest.mark.parametrize("shape", [[1, 4, 5], [16], [1, 1, 4, 4]])
def test_an_image_shape_must_hold_the_input(shape: list[int]) -> None:
    assert "with 16 values" in told("cnn", image_shape=shape)


def test_an_image_must_be_large_enough_to_be_halved() -> None:
    message = told("cnn", image_shape=[4, 2, 2], channels=[2, 2, 2])
    assert "too small for 3 stages" in message


@pytest.mark.parametrize(("blocks", "convolutions"), [(1, 6), (3, 14)])
def test_a_residual_network_has_the_blocks_that_are_asked_for(
    blocks: int, convolutions: int
) -> None:
    network = build("cnn", image_shape=[1, 4, 4], channels=[4, 8], blocks=blocks)
    found = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    assert len(found) == convolutions  # the stem, two in each block, and a projection
    assert "blocks is 0; it must be 1 or more" in told("cnn", image_shape=[1, 4, 4], blocks=0)


def test_images_are_moved_in_training_only() -> None:
    network = build("cnn", image_shape=[1, 4, 4], shift=1, dropout=0.0)
    rows = torch.rand(50, ENCODING.raw_width)
    network.eval()
    assert torch.equal(network(rows), network(rows))
    network.train()
    assert not torch.equal(network(rows), network(rows))


def test_a_convolutional_network_answers_a_row_alike_alone_and_in_a_batch() -> None:
    network = build("cnn", image_shape=[1, 4, 4]).eval()
    rows = torch.rand(5, ENCODING.raw_width)
    torch.testing.assert_close(network(rows)[:1], network(rows[:1]))


def test_a_users_class_is_a_family(folder: Path) -> None:
    assert linear_widths(build("net:Net", folder, width=4)) == [(16, 4), (4, 2)]


def test_a_users_function_is_a_family(folder: Path) -> None:
    assert linear_widths(build("net:make", folder)) == [(16, 3), (3, 2)]


def test_what_cannot_be_called_is_no_family(folder: Path) -> None:
    with pytest.raises(InputError, match="cannot be called"):
        family_of(ModelSpec(family="net:WIDTH"), folder)


def test_a_class_that_is_not_there_is_told_with_the_nearest(folder: Path) -> None:
    assert "did you mean 'Net'?" in told("net:Nett", folder)


def test_a_wrong_output_shape_is_told_before_training(folder: Path) -> None:
    message = told("net:Flat", folder)
    assert "seen: [4]" in message
    assert "valid: [2, 2] for two rows" in message


def test_an_output_that_is_no_tensor_is_told_by_its_type(folder: Path) -> None:
    assert "seen: tuple" in told("net:Pair", folder)


def test_a_forward_that_fails_is_the_users_mistake(folder: Path) -> None:
    message = told("net:Wide", folder)
    assert "fails on a batch of two rows" in message
    assert "IndexError" in message


def test_a_constructor_that_fails_is_the_users_mistake(folder: Path) -> None:
    assert "could not be built" in told("net:Net", folder, width=0)


@pytest.mark.parametrize(
    ("arguments", "params", "words"),
    [
        ("in_features, hidden=3", {}, "does not take num_classes; .*add num_classes to its"),
        ("hidden=3", {}, "does not take in_features and num_classes"),
        ("in_features, num_classes, hidden", {}, "needs hidden, which model.params lacks"),
        ("in_features, num_classes", {"num_classes": 3}, "has num_classes, which Millrace itself"),
        ("in_features, num_classes, depth=1", {"dept": 1}, "takes no dept, .*did you mean 'depth'"),
    ],
)
def test_a_constructor_with_other_arguments_is_told_the_contract(
    tmp_path: Path, arguments: str, params: dict[str, Any], words: str
) -> None:
    (tmp_path / "net.py").write_text(
        f"from torch import nn\nclass Net(nn.Linear):\n    def __init__(self, {arguments}):\n"
        "        super().__init__(16, 2)\n"
    )
    message = told("net:Net", tmp_path, **params).replace("\n", "; ")
    assert re.search(words, message), message


@pytest.mark.parametrize("arguments", ["in_features, num_classes, *, width=3", "**given"])
def test_a_constructor_may_take_them_by_name_alone(tmp_path: Path, arguments: str) -> None:
    (tmp_path / "net.py").write_text(
        f"from torch import nn\nclass Net(nn.Linear):\n    def __init__(self, {arguments}):\n"
        "        super().__init__(16, 2)\n"
    )
    assert linear_widths(build("net:Net", tmp_path, width=4)) == [(16, 2)]


def test_what_returns_no_module_is_told(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("def make(in_features, num_classes):\n    return 7\n")
    assert "returned no torch.nn.Module" in told("net:make", tmp_path)


def test_a_built_network_is_ready_to_train() -> None:
    assert build("mlp").training


def test_trying_a_network_out_leaves_its_running_statistics_alone() -> None:
    counts = [
        int(layer.num_batches_tracked)  # type: ignore[arg-type]
        for layer in build("cnn", image_shape=[1, 4, 4]).modules()
        if isinstance(layer, nn.BatchNorm2d)
    ]
    assert counts
    assert not any(counts)


def test_a_module_without_parameters_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none.py").write_text(
        "from torch import nn\nclass Net(nn.Module):\n"
        "    def __init__(self, in_features, num_classes):\n        super().__init__()\n"
        "    def forward(self, x):\n        return x[:, :2]\n"
    )
    spec = ModelSpec(family="none:Net")
    encoding = Encoding((Feature("a", "number"), Feature("b", "number")), "t", ("x", "y"))
    with pytest.raises(InputError, match="no parameters to train"):
        build_network(spec, tmp_path, encoding, objective_of(encoding))
