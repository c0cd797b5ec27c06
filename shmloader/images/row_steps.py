"""RandomErasing of torchvision and of timm: changes a sample in its row, after the picture has become numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from shmloader.images.random_numbers import Draws

__all__ = ["CallInPlace", "Erase", "RowStep"]


class RowStep(Protocol):
    def apply(self, row: torch.Tensor, draws: Draws) -> None:
        """Draw as the transform does, and change the row."""


@dataclass(frozen=True)
class Erase:
    """torchvision's RandomErasing."""

    transform: Any

    def apply(self, row: torch.Tensor, draws: Draws) -> None:
        transform = self.transform
        if not draws.is_below(transform.p):
            return
        value = transform.value
        if isinstance(value, (int, float)):
            value = [float(value)]
        elif isinstance(value, str):
            value = None
        elif value is not None:
            value = [float(part) for part in value]
        if value is not None and len(value) not in (1, row.shape[-3]):
            raise ValueError(
                "If value is a sequence, it should have either a single value or "
                f"{row.shape[-3]} (number of input channels)"
            )
        top, left, height, width, values = transform.get_params(row, transform.scale, transform.ratio, value)
        if values is not row:  # it returns the row itself if no box fits
            row[..., top : top + height, left : left + width] = values


@dataclass(frozen=True)
class CallInPlace:
    """A transform that changes the tensor that it gets, and returns it: timm's RandomErasing."""

    transform: Any

    def apply(self, row: torch.Tensor, draws: Draws) -> None:
        self.transform(row)
