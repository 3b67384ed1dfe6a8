"""The family `mlp`: a multilayer perceptron."""

from collections.abc import Sequence
from typing import cast

from torch import Tensor, nn

from millrace.models.families.units import Units


class Perceptron(nn.Module):
    """Linear layers with ReLU and optional dropout.

    Args:
        in_features: width of the input.
        num_classes: width of the output.
        hidden: widths of the hidden layers.
        dropout: share of activations dropped in training.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        hidden: Sequence[int] | int = (64, 64),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        widths = [in_features, *([hidden] if isinstance(hidden, int) else hidden)]
        layers: list[nn.Module] = []
        for narrow, wide in zip(widths, widths[1:], strict=False):
            layers += [nn.Linear(narrow, wide), nn.ReLU()]
            if dropout:
                layers.append(nn.Dropout(dropout))
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))

    def forward(self, rows: Tensor) -> Tensor:
        """Map `[rows, in_features]` to logits `[rows, num_classes]`."""
        return cast(Tensor, self.layers(rows))

    def removable_units(self) -> list[Units]:
        """Return the neurons of every hidden layer."""
        linear = [each for each in self.layers if isinstance(each, nn.Linear)]
        return [Units(*pair) for pair in zip(linear, linear[1:], strict=False)]
