"""Random numbers from torch's generator: those of torch's own functions, in the same order, in half the time.

The steps of a sample draw their parameters by these: crops and flips in crops.py, single operations in operations.py,
and RandAugment and its like in policies.py.  They make the calls that torchvision makes, in its order, and round as it
does.  So the parameters are equal.

Other files draw from Python's and NumPy's generators; this one only restores their states.

One tensor of one element serves all draws, because making a tensor for each, as torch.rand(1) does, takes as long as
the draw itself.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

import numpy as np
import torch

__all__ = ["NUMPY", "PYTHON", "Draws", "drawing"]

PYTHON, NUMPY = "python", "numpy"  # the other generators

_MOST_SHARES = 100  # whose rounded values are kept; a transform has one or two


class Draws:
    """Draws from torch's default generator.  Not for two threads at once.

    A context manager: at its end the object is free for the next picture.

    Attributes:
        dtype: of torch.rand(1).
    """

    def __init__(self) -> None:
        self.dtype = torch.get_default_dtype()  # the dtype of torch.rand(1)
        self._real = torch.empty(1, dtype=self.dtype, device="cpu")
        self._whole = torch.empty(1, dtype=torch.int64, device="cpu")
        self._before = torch.default_generator.get_state()
        self._pythons: Any = None
        self._numpys: Any = None
        self._rounded: dict[float, float] = {}

    def __enter__(self) -> Draws:
        return self

    def __exit__(self, *_: Any) -> None:
        _idle.append(self)

    def begin(self, others: Collection[str] = ()) -> None:
        """Save the generator's state for undo(), and those of the others: NumPy's takes some 30 microseconds."""
        self._before = torch.default_generator.get_state()
        self._pythons = random.getstate() if PYTHON in others else None
        self._numpys = np.random.get_state() if NUMPY in others else None

    def undo(self) -> None:
        """Restore the states of the generators at begin(), as if nothing had been drawn."""
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
        """The number, rounded to the tensor's dtype."""
        if share not in self._rounded:
            if len(self._rounded) > _MOST_SHARES:
                self._rounded.clear()
            self._rounded[share] = float(torch.tensor(share, dtype=self.dtype, device="cpu").item())
        return self._rounded[share]


_idle: list[Draws] = []  # as with decoders, a thread and a signal handler get one each


def drawing(others: Collection[str] = ()) -> Draws:
    """An idle Draws, after begin()."""
    draws = _idle.pop() if _idle else Draws()
    if draws.dtype is not torch.get_default_dtype():
        draws = Draws()
    draws.begin(others)
    return draws
