"""Small changes of training images that do not change what they show."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Augment(nn.Module):
    """Moves and mirrors images at random in training; in evaluation it does nothing.

    As in He et al. 2016, section 4.2: an image is padded by `shift` pixels on each side, and a part
    of the first size is cut out at a random place.

    Args:
        shift: pixels.
        flip: whether half of the images are mirrored left to right.

    Raises:
        ValueError: `shift` is negative.
    """

    def __init__(self, shift: int = 0, flip: bool = False) -> None:
        super().__init__()
        if shift < 0:
            raise ValueError(f"shift {shift} is negative; 0 or more pixels")
        self.shift, self.flip = shift, flip

    def forward(self, images: Tensor) -> Tensor:
        """Map `[rows, channels, height, width]` to the same shape."""
        if not self.training:
            return images
        if self.shift:
            images = _moved(images, self.shift)
        if self.flip:
            mirrored = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
            images = torch.where(mirrored, images.flip(3), images)
        return images


def _moved(images: Tensor, shift: int) -> Tensor:
    """Return each image moved by up to `shift` pixels in both directions; zeros come in."""
    rows, _, height, width = images.shape
    padded = functional.pad(images, (shift, shift, shift, shift))
    offsets = torch.randint(0, 2 * shift + 1, (2, rows, 1), device=images.device)
    down = offsets[0] + torch.arange(height, device=images.device)
    right = offsets[1] + torch.arange(width, device=images.device)
    places = torch.arange(rows, device=images.device)
    cut = padded.permute(0, 2, 3, 1)[places[:, None, None], down[:, :, None], right[:, None, :]]
    return cut.permute(0, 3, 1, 2)
