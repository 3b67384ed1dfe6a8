"""The family `cnn`: a small convolutional network for images in one vector column."""

import math
from collections.abc import Sequence

from torch import Tensor, nn


class ConvNet(nn.Module):
    """Blocks of convolution, batch norm and ReLU, halving the size between them.

    Args:
        in_features: pixels of an image, all channels.
        num_classes: width of the output.
        image_shape: `[channels, height, width]`; its product is `in_features`.
        channels: output channels of each block.
        dropout: share of the pooled features dropped in training.

    Raises:
        ValueError: `image_shape` does not hold `in_features` pixels, or is too small to be halved
            so often.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        image_shape: Sequence[int],
        channels: Sequence[int] = (32, 64),
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        if len(image_shape) != 3 or math.prod(image_shape) != in_features:
            raise ValueError(f"image_shape {list(image_shape)} does not hold {in_features} pixels")
        if min(image_shape[1:]) < 2 ** (len(channels) - 1):
            raise ValueError(
                f"images of {list(image_shape)} are too small for {len(channels)} blocks"
            )
        self.image_shape = tuple(image_shape)
        blocks: list[nn.Module] = []
        depth = image_shape[0]
        for index, width in enumerate(channels):
            if index:
                blocks.append(nn.MaxPool2d(2))
            blocks += [
                nn.Conv2d(depth, width, kernel_size=3, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(),
            ]
            depth = width
        halvings = len(channels) - 1
        pixels = (image_shape[1] >> halvings) * (image_shape[2] >> halvings)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(
            nn.Flatten(), nn.Dropout(dropout), nn.Linear(depth * pixels, num_classes)
        )

    def forward(self, rows: Tensor) -> Tensor:
        """Map `[rows, in_features]` to logits `[rows, num_classes]`."""
        logits: Tensor = self.head(self.blocks(rows.reshape(-1, *self.image_shape)))
        return logits
