import pytest
import torch

from millrace.models.families.cnn import Augment


def test_an_image_is_moved_by_no_more_than_it_may_be_and_zeros_come_in() -> None:
    torch.manual_seed(0)
    image = torch.zeros(400, 2, 5, 5)
    image[:, :, 2, 2] = torch.tensor([1.0, 2.0])
    moved = Augment(shift=1)(image)
    assert moved.shape == image.shape
    assert torch.equal(moved.sum(dim=(2, 3)), torch.tensor([[1.0, 2.0]]).expand(400, 2))
    shifts = {(int(y), int(x)) for _, y, x in moved[:, 0].nonzero()}
    assert shifts == {(y, x) for y in (1, 2, 3) for x in (1, 2, 3)}


def test_channels_of_an_image_move_together() -> None:
    torch.manual_seed(0)
    images = torch.rand(20, 1, 6, 6).expand(20, 3, 6, 6)
    moved = Augment(shift=2)(images)
    assert torch.equal(moved[:, 0], moved[:, 2])


def test_about_half_of_the_images_are_mirrored() -> None:
    torch.manual_seed(0)
    images = torch.rand(400, 1, 3, 4)
    mirrored = (Augment(flip=True)(images) == images.flip(3)).all(dim=(1, 2, 3)).sum()
    assert 150 < int(mirrored) < 250


def test_in_evaluation_nothing_is_changed() -> None:
    images = torch.rand(4, 1, 3, 3)
    assert Augment(shift=1, flip=True).eval()(images) is images


def test_a_negative_shift_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        Augment(shift=-1)
