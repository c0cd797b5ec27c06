"""TrivialAugmentWide without torchvision: the same draws, operations and pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from shmloader.images.filters import BICUBIC, BILINEAR, NEAREST
from shmloader.images.policies import Space, TrivialAugment

__all__ = ["OwnTrivialAugment"]


class OwnTrivialAugment(TrivialAugment):
    """torchvision's TrivialAugmentWide, with its defaults.

    Args:
        resample: Pillow's number of the filter for operations that move pixels.  Only nearest, bilinear and bicubic can
            move pixels; for any other filter bilinear is used.
    """

    def __init__(self, resample: int) -> None:
        moved_by = resample if resample in (NEAREST, BILINEAR, BICUBIC) else BILINEAR
        super().__init__(_Bins(), 1, moved_by, None)

    def __repr__(self) -> str:
        return f"TrivialAugmentWide(resample={self.resample})"

    def _asked(self, bins: int, height: int, width: int) -> Space:
        """The magnitudes of the paper (arXiv 2103.10158), in torchvision's order and torch's precision."""
        lighter, moves = _evenly(0.0, 0.99, bins), _evenly(0.0, 32.0, bins)
        numbers = torch.arange(bins, dtype=torch.int64, device="cpu")
        bits = (8 - (numbers / ((bins - 1) / 6)).round()).tolist()
        return [
            ("Identity", None, False),
            ("ShearX", lighter, True),
            ("ShearY", lighter, True),
            ("TranslateX", moves, True),
            ("TranslateY", moves, True),
            ("Rotate", _evenly(0.0, 135.0, bins), True),
            *((name, lighter, True) for name in ("Brightness", "Color", "Contrast", "Sharpness")),
            ("Posterize", bits, False),
            ("Solarize", _evenly(255.0, 0.0, bins), False),
            ("AutoContrast", None, False),
            ("Equalize", None, False),
        ]

    def _matrix(
        self, width: int, height: int, translate: Sequence[float], shear: Sequence[float], center: Any
    ) -> list[float]:
        """torchvision's matrix, with the same roundings."""
        across, down = math.radians(shear[0]), math.radians(shear[1])
        x, y = (width * 0.5, height * 0.5) if center is None else center
        sine, cosine = math.sin(-down) / math.cos(down), math.cos(-down) / math.cos(down)
        a, b = -sine * math.tan(across) + 1.0, cosine * math.tan(across)
        left, above = -x - translate[0], -y - translate[1]
        return [a, b, a * left + b * above + x, -sine, cosine, -sine * left + cosine * above + y]


def _evenly(first: float, last: float, count: int) -> list[float]:
    """Numbers of torch's default dtype, as torchvision's are."""
    values = torch.linspace(first, last, count, dtype=torch.get_default_dtype(), device="cpu")
    made: list[float] = values.tolist()
    return made


class _Bins:
    """The attributes that a policy reads of its transform."""

    num_magnitude_bins = 31
