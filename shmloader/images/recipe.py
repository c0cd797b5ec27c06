"""images.training() and images.evaluation(), with their defaults, and the recipe of a sample that they return.
A recipe has the part of the picture that is used, what its bytes become, and what is called after that.

A recipe comes from torchvision's transforms (recognise.py), or from the two functions here, which need no torchvision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shmloader.images.canvas import Step
from shmloader.images.crops import CenterCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from shmloader.images.filters import filter_number
from shmloader.images.finish import Divide, Finish, Normalize, RowStep
from shmloader.images.trivial_augment import OwnTrivialAugment

__all__ = ["Recipe", "evaluation", "training"]

_BYTES = Finish()


@dataclass(frozen=True)
class Recipe:
    """How a picture becomes a sample.

    Args:
        steps: crop, resize and change the pixels.
        finish: turns the bytes into numbers; None: they become a PIL image.
        rest: functions that are called with the result, one after the other.
        notes: what each transform is, and whether it is fused or called.
        row_steps: change the numbers in their row, after `finish` and before `rest`.
        draws_by: the other generators that it may draw from, beside torch's: PYTHON and NUMPY.
        transforms: all transforms as the user gave them, one after the other; empty if the recipe is not made of any.
    """

    steps: tuple[Step, ...] = ()
    finish: Finish | None = _BYTES
    rest: tuple[Callable[[Any], Any], ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    row_steps: tuple[RowStep, ...] = ()
    draws_by: frozenset[str] = frozenset()
    transforms: tuple[Callable[[Any], Any], ...] = ()


def training(
    size: int | tuple[int, int] = 224,
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    flip: float = 0.5,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    interpolation: Any = "bilinear",
    augment: str | None = None,
) -> Recipe:
    """The usual recipe for training: a random box, resized, mirrored at random, and augmented.

    The draws come from torch's generator, and are those of torchvision's RandomResizedCrop, RandomHorizontalFlip and
    TrivialAugmentWide.

    Args:
        size: height and width of a sample in pixels, or one number for both.
        scale: the smallest and the largest area of the box, as a fraction of the picture's area.
        ratio: the smallest and the largest ratio of the box's width to its height.
        flip: the probability that left and right are exchanged, 0 to 1; at 0 nothing is drawn for it.
        mean, std: of each channel, for values between 0 and 1.  With them a sample is float32 and normalised, as by
            torchvision's ToTensor and Normalize; without them it is uint8.
        interpolation: the filter for resizing the box, "bilinear" by default: see decode().
        augment: "trivial": one operation on the pixels, of random kind and strength, as TrivialAugmentWide draws it.
            It uses `interpolation` if that is nearest, bilinear or bicubic, and otherwise bilinear.  None: no
            augmentation.

    Returns:
        A recipe, for ImageFolder and from_bytes.

    Raises:
        ValueError: only one of mean and std is given, they do not have three values, or a std is 0; there is no such
            filter or augmentation.

    Example:
        >>> dataset = images.ImageFolder("train", images.training(224))
    """
    if augment not in (None, "trivial"):
        raise ValueError(f'augment={augment!r} is no augmentation. Use "trivial" or None.')
    resample = filter_number(interpolation)
    steps: list[Step] = [RandomResizedCrop(_both(size), scale, ratio, resample)]
    if flip:
        steps.append(RandomHorizontalFlip(flip))
    if augment:
        steps.append(OwnTrivialAugment(resample))
    return Recipe(tuple(steps), _finish(mean, std))


def evaluation(
    size: int | tuple[int, int] = 224,
    *,
    resize: int | tuple[int, int] | None = 256,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    interpolation: Any = "bilinear",
) -> Recipe:
    """The usual recipe for validation: the centre of the resized picture.  It draws nothing.

    Args:
        size: height and width of a sample in pixels, or one number for both.
        resize: the length of the shorter side after resizing, in pixels, or height and width; None: no resizing.
        mean, std, interpolation: as for training().

    Returns:
        A recipe, for ImageFolder and from_bytes.

    Raises:
        ValueError: as training().

    Example:
        >>> dataset = images.ImageFolder("val", images.evaluation(224, resize=256))
    """
    resample = filter_number(interpolation)
    steps: list[Step] = [] if resize is None else [Resize(resize, resample=resample)]
    return Recipe((*steps, CenterCrop(_both(size))), _finish(mean, std))


def _both(size: int | tuple[int, int]) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise ValueError(f"size={size!r} (height, width) should be at least 1 each.")
    return height, width


def _finish(mean: Sequence[float] | None, std: Sequence[float] | None) -> Finish:
    if mean is None and std is None:
        return Finish()
    if mean is None or std is None or len(mean) != 3 or len(std) != 3 or not all(std):
        raise ValueError(
            f"mean and std should have one value for each of 3 channels, and no std may be 0, but got mean={mean!r}, "
            f"std={std!r}."
        )
    return Finish(torch.float32, (Divide(255.0), Normalize(mean, std, torch.float32)))
