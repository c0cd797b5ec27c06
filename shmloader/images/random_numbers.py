"""Random numbers from torch's generator: the same, in the same order, as from torch's own functions, in half the time.
Python's and NumPy's are drawn from where they are needed; here they are only put back.

A tensor of one element serves all draws; making one a draw, as torch.rand(1) does, takes as long as the draw.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

import numpy as np
import torch

__all__ = ["NUMPY", "PYTHON", "Draws", "drawing"]

PYTHON, NUMPY = "python", "numpy"  # generators beside torch's

_MOST_SHARES = 100  # whose rounding is remembered; a transform has one or two


class Draws:
    """What can be drawn from torch's default generator.  Not for two threads at once.

    A context manager: at its end the next one may draw with it.

    Attributes:
        dtype: of torch.rand(1).
    """

    def __init__(self) -> None:
        self.dtype = torch.get_default_dtype()  # as torch.rand(1) has it
        self._real = torch.empty(1)
        self._whole = torch.empty(1, dtype=torch.int64)
        self._before = torch.default_generator.get_state()
        self._pythons: Any = None
        self._numpys: Any = None
        self._rounded: dict[float, float] = {}

    def __enter__(self) -> Draws:
        return self

    def __exit__(self, *_: Any) -> None:
        _idle.append(self)

    def begin(self, others: Collection[str] = ()) -> None:
        """Keep the generator's state for undo(), and those of others: NumPy's takes some 30 microseconds."""
        self._before = torch.default_generator.get_state()
        self._pythons = random.getstate() if PYTHON in others else None
        self._numpys = np.random.get_state() if NUMPY in others else None

    def undo(self) -> None:
        """Put the generators back to where they were at begin(): nothing was drawn."""
        torch.default_generator.set_state(self._before)
        if self._pythons is not None:
            random.setstate(self._pythons)
        if self._numpys is not None:
            np.random.set_state(self._numpys)

    def real(self) -> float:
        """torch.rand(1).item()"""
        return float(self._real.uniform_(0, 1).item())

    def is_at_most(self, share: float) -> bool:
        """torch.rand(1) <= share, which compares numbers of the tensor's dtype"""
        return bool(self._real.uniform_(0, 1).item() <= self._as_drawn(share))

    def uniform(self, low: float, high: float) -> float:
        """torch.empty(1).uniform_(low, high).item()"""
        return float(self._real.uniform_(low, high).item())

    def exponential_of_uniform(self, low: float, high: float) -> float:
        """torch.exp(torch.empty(1).uniform_(low, high)).item()"""
        return float(self._real.uniform_(low, high).exp_().item())

    def below(self, end: int) -> int:
        """torch.randint(0, end, (1,)).item()"""
        return int(self._whole.random_(0, end).item())

    def is_below(self, share: float) -> bool:
        """torch.rand(1) < share, which compares numbers of the tensor's dtype"""
        return bool(self._real.uniform_(0, 1).item() < self._as_drawn(share))

    def _as_drawn(self, share: float) -> float:
        """The number as the tensor's dtype has it."""
        if share not in self._rounded:
            if len(self._rounded) > _MOST_SHARES:
                self._rounded.clear()
            self._rounded[share] = float(torch.tensor(share, dtype=self.dtype).item())
        return self._rounded[share]


_idle: list[Draws] = []  # as with decoders: a thread, and a signal's handler, find one each


def drawing(others: Collection[str] = ()) -> Draws:
    """Draws that nobody else uses, begun: see Draws.begin()."""
    draws = _idle.pop() if _idle else Draws()
    if draws.dtype is not torch.get_default_dtype():
        draws = Draws()
    draws.begin(others)
    return draws
