"""RandomResizedCrop, RandomCrop, CenterCrop, Resize and RandomHorizontalFlip: their draws, boxes and roundings.
They only change the view of a picture.

Each draws what torchvision's transform (0.29) draws, in the same order, and computes the same box with the same
roundings.  The draws themselves are torch's own, made by random_numbers.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch

from shmloader.images.filters import BILINEAR
from shmloader.images.random_numbers import Draws

__all__ = ["CenterCrop", "RandomCrop", "RandomHorizontalFlip", "RandomResizedCrop", "Resize", "Seen"]

_TRIES = 10  # of RandomResizedCrop, before it takes the centre


class Seen(Protocol):
    """What can be cropped, resized and flipped: a View, or a Canvas."""

    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...
    def cut(self, left: int, top: int, width: int, height: int) -> None: ...
    def resize(self, height: int, width: int, resample: int = BILINEAR) -> None: ...
    def flip(self) -> None: ...


@dataclass(frozen=True)
class RandomResizedCrop:
    """A box of random area and shape, resized.

    Args:
        size: height and width of the result.
        scale: the smallest and the largest area of the box, as a fraction of the picture's area.
        ratio: the smallest and the largest ratio of the box's width to its height.
        resample: Pillow's number of the filter.
    """

    size: tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    resample: int = BILINEAR

    def apply(self, view: Seen, draws: Draws) -> None:
        view.cut(*self._box(view.width, view.height, draws))
        view.resize(*self.size, self.resample)

    def _box(self, width: int, height: int, draws: Draws) -> tuple[int, int, int, int]:
        area = height * width
        logarithms = _logarithms(tuple(self.ratio), draws.dtype)
        for _ in range(_TRIES):
            target = area * draws.uniform(*self.scale)
            shape = draws.exponential_of_uniform(*logarithms)
            wide, tall = round(math.sqrt(target * shape)), round(math.sqrt(target / shape))
            if 0 < wide <= width and 0 < tall <= height:
                top = draws.below(height - tall + 1)
                left = draws.below(width - wide + 1)
                return left, top, wide, tall
        wide, tall = width, height
        if width / height < min(self.ratio):
            tall = round(width / min(self.ratio))
        elif width / height > max(self.ratio):
            wide = round(height * max(self.ratio))
        return (width - wide) // 2, (height - tall) // 2, wide, tall


@lru_cache(maxsize=100)
def _logarithms(ratio: tuple[float, ...], dtype: torch.dtype) -> list[float]:
    """In the precision of torch's default dtype, which may change after the step was made."""
    made: list[float] = torch.log(torch.tensor(ratio, dtype=dtype, device="cpu")).tolist()
    return made


@dataclass(frozen=True)
class Resize:
    """Resizes.

    Args:
        size: height and width; or only the shorter side, and the shape stays.
        longest: the longer side at most, if `size` is the shorter side.
        resample: Pillow's number of the filter.
    """

    size: tuple[int, int] | int
    longest: int | None = None
    resample: int = BILINEAR

    def apply(self, view: Seen, draws: Draws) -> None:
        if not isinstance(self.size, int):
            view.resize(*self.size, self.resample)
            return
        short, long = sorted((view.width, view.height))
        shorter, longer = self.size, int(self.size * long / short)
        if self.longest is not None and longer > self.longest:
            shorter, longer = int(self.longest * shorter / longer), self.longest
        size = (longer, shorter) if view.width <= view.height else (shorter, longer)
        view.resize(*size, self.resample)


@dataclass(frozen=True)
class CenterCrop:
    """Crops to the centre; black where the picture is smaller."""

    size: tuple[int, int]  # height and width

    def apply(self, view: Seen, draws: Draws) -> None:
        top, left = (
            round((side - wanted) / 2.0) if wanted <= side else -((wanted - side) // 2)
            for side, wanted in zip((view.height, view.width), self.size, strict=True)
        )
        view.cut(left, top, self.size[1], self.size[0])


@dataclass(frozen=True)
class RandomCrop:
    """Crops to a box of a given size at a random place.

    Args:
        size: height and width of the box.
        draws_all: whether to draw both coordinates if only one is undetermined: torchvision's v1 does, v2 does not.
    """

    size: tuple[int, int]
    draws_all: bool = True

    def apply(self, view: Seen, draws: Draws) -> None:
        (height, width), size = self.size, (view.height, view.width)
        if size[0] < height or size[1] < width:
            end = "" if self.draws_all else "."
            raise ValueError(f"Required crop size {self.size} is larger than input image size {size}{end}")
        both = self.draws_all and size != self.size
        top = draws.below(size[0] - height + 1) if both or size[0] > height else 0
        left = draws.below(size[1] - width + 1) if both or size[1] > width else 0
        view.cut(left, top, width, height)


@dataclass(frozen=True)
class RandomHorizontalFlip:
    """Mirrors left and right, with a given probability."""

    p: float = 0.5

    def apply(self, view: Seen, draws: Draws) -> None:
        if draws.is_below(self.p):
            view.flip()
