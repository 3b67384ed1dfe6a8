"""The family `cnn`: a residual network for images in one vector column.

He, Zhang, Ren, Sun 2016, "Deep Residual Learning for Image Recognition", the variant of section 4.2
for small images: a 3 × 3 stem, stages of basic blocks that halve the size and widen, global average
pooling, one linear layer. Shortcuts that change shape are 1 × 1 projections (option B).
"""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from millrace.models.families.units import Units


class Augment(nn.Module):
    """Shifts and mirrors images at random in training; does nothing in evaluation.

    As in He et al. 2016, section 4.2: an image is padded by `shift` pixels on each side, and a
    random crop of the original size is taken.

    Args:
        shift: largest shift, in pixels.
        flip: whether half of the images are mirrored left to right.

    Raises:
        ValueError: `shift` is negative.
    """

    def __init__(self, shift: int = 0, flip: bool = False) -> None:
        super().__init__()
        if shift < 0:
            raise ValueError(f"shift {shift} is negative; it must be 0 or more pixels")
        self.shift, self.flip = shift, flip

    def forward(self, images: Tensor) -> Tensor:
        """Map `[rows, channels, height, width]` to the same shape."""
        if not self.training:
            return images
        if self.shift:
            images = _shift(images, self.shift)
        if self.flip:
            is_mirrored = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
            images = torch.where(is_mirrored, images.flip(3), images)
        return images


def _shift(images: Tensor, shift: int) -> Tensor:
    """Shift each image at random by up to `shift` pixels in both directions; fill with zeros."""
    rows, _, height, width = images.shape
    padded = functional.pad(images, (shift, shift, shift, shift))
    offsets = torch.randint(0, 2 * shift + 1, (2, rows, 1), device=images.device)
    down = offsets[0] + torch.arange(height, device=images.device)
    right = offsets[1] + torch.arange(width, device=images.device)
    row = torch.arange(rows, device=images.device)[:, None, None]
    crops = padded.permute(0, 2, 3, 1)[row, down[:, :, None], right[:, None, :]]
    return crops.permute(0, 3, 1, 2)


class ResNet(nn.Module):
    """A residual network.

    Args:
        in_features: values of an image: pixels times channels.
        num_classes: width of the output.
        image_shape: `[channels, height, width]`, whose product is `in_features`.
        channels: output channels of each stage; each stage but the first halves the image size.
        blocks: number of basic blocks, of two convolutions each, in each stage.
        dropout: share of the pooled features dropped in training.
        shift: largest random shift of images in training, in pixels.
        flip: whether images are mirrored left to right, at random, in training.

    Raises:
        ValueError: the product of `image_shape` is not `in_features`, images are too small for the
            number of stages, or there are no blocks.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        image_shape: Sequence[int],
        channels: Sequence[int] = (16, 32, 64),
        blocks: int = 1,
        dropout: float = 0.1,
        shift: int = 0,
        flip: bool = False,
    ) -> None:
        super().__init__()
        if len(image_shape) != 3 or math.prod(image_shape) != in_features:
            raise ValueError(
                f"image_shape {list(image_shape)} is not [channels, height, width] with "
                f"{in_features} values"
            )
        if min(image_shape[1:]) < 2 ** (len(channels) - 1):
            raise ValueError(
                f"images of {list(image_shape)} are too small for {len(channels)} stages"
            )
        if blocks < 1:
            raise ValueError(f"blocks is {blocks}; it must be 1 or more")
        self.image_shape = tuple(image_shape)
        self.augment = Augment(shift, flip)
        self.stem = nn.Sequential(*_convolution(image_shape[0], channels[0]), nn.ReLU())
        layers: list[nn.Module] = []
        depth = channels[0]
        for stage, width in enumerate(channels):
            for block in range(blocks):
                halves = stage > 0 and block == 0
                layers.append(BasicBlock(depth, width, stride=2 if halves else 1))
                depth = width
        self.blocks = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(depth, num_classes),
        )

    def forward(self, rows: Tensor) -> Tensor:
        """Map `[rows, in_features]` to logits `[rows, num_classes]`."""
        images = self.augment(rows.reshape(-1, *self.image_shape))
        return cast(Tensor, self.head(self.blocks(self.stem(images))))

    def removable_units(self) -> list[Units]:
        """Return the channels inside each block; the shortcut fixes a block's output channels."""
        return [each.units for each in self.blocks if isinstance(each, BasicBlock)]


class BasicBlock(nn.Module):
    """Two convolutions, and a shortcut that adds the input to their output.

    Args:
        depth: channels of the input.
        width: channels of the output.
        stride: stride of the first convolution.
    """

    def __init__(self, depth: int, width: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *_convolution(depth, width, stride=stride), nn.ReLU(), *_convolution(width, width)
        )
        is_same = stride == 1 and depth == width
        projection = _convolution(depth, width, kernel_size=1, stride=stride)
        self.shortcut = nn.Identity() if is_same else nn.Sequential(*projection)
        self.relu = nn.ReLU()

    def forward(self, images: Tensor) -> Tensor:
        """Map `[rows, depth, …]` to `[rows, width, …]`, with the image size divided by stride."""
        return cast(Tensor, self.relu(self.residual(images) + self.shortcut(images)))

    @property
    def units(self) -> Units:
        """The channels between the two convolutions."""
        first, norm, _, second, _ = cast(Any, self.residual)
        return Units(first, second, norm)


def _convolution(
    depth: int, width: int, *, kernel_size: int = 3, stride: int = 1
) -> tuple[nn.Module, nn.Module]:
    """Return a convolution without bias, padded to keep the size, and its batch norm."""
    padding = kernel_size // 2
    convolution = nn.Conv2d(depth, width, kernel_size, stride=stride, padding=padding, bias=False)
    return convolution, nn.BatchNorm2d(width)
