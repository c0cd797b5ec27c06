"""What becomes of decoded bytes: numbers in a row, or bytes that travel and become numbers on the device.

The same operations in the same order as torchvision's, so that every number is the same to the bit (on a CPU; a GPU may
divide in another way).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch

from shmloader.transforms import OfImages

__all__ = ["Divide", "Finish", "Multiply", "Normalize", "OnDevice"]

_CHANNELS = 3


@dataclass(frozen=True)
class Divide:
    by: float

    def apply(self, numbers: torch.Tensor) -> None:
        numbers.div_(self.by)


@dataclass(frozen=True)
class Multiply:
    by: float

    def apply(self, numbers: torch.Tensor) -> None:
        numbers.mul_(self.by)


class Normalize:
    """Less a mean, by a standard deviation: a value of each for each channel, or one for all."""

    def __init__(self, mean: Sequence[float] | float, std: Sequence[float] | float, dtype: torch.dtype) -> None:
        self._mean, self._std = (torch.as_tensor(values, dtype=dtype).reshape(-1, 1, 1) for values in (mean, std))
        # By device and stream: memory that was allocated on one stream may not be in use on another when it is freed.
        self._there: dict[tuple[torch.device, Any], tuple[torch.Tensor, torch.Tensor]] = {}

    def apply(self, numbers: torch.Tensor) -> None:
        mean, std = self._mean, self._std
        device = numbers.device
        if device.type != "cpu":
            at = device, torch.accelerator.current_stream(device)
            if at not in self._there:
                self._there[at] = mean.to(device), std.to(device)
            mean, std = self._there[at]
        numbers.sub_(mean).div_(std)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Normalize):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return self._mean.dtype, tuple(self._mean.flatten().tolist()), tuple(self._std.flatten().tolist())

    def by_channel(self, channels: int) -> tuple[list[float], list[float]]:
        """Mean and deviation of each channel."""
        mean, std = (values.flatten().expand(channels).tolist() for values in (self._mean, self._std))
        return mean, std

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_there": {}}  # a dataset is pickled with it, and sent where there is no such device


@dataclass(frozen=True)
class Finish:
    """How bytes become what a sample has.

    Args:
        dtype: of the sample; torch.uint8: they stay as they are.
        operations: on the numbers, in this order; none for bytes.
        is_image: whether the sample is a torchvision.tv_tensors.Image.
        is_lying: whether what comes after it gets a pixel's three channels side by side in memory, as PIL has them:
            torch may compute in another way where they are not, with other roundings.
        is_array: whether the sample is a NumPy array.
        channels: of the sample, 3 or 1.
    """

    dtype: torch.dtype = torch.uint8
    operations: tuple[Divide | Multiply | Normalize, ...] = ()
    is_image: bool = False
    is_lying: bool = False
    is_array: bool = False
    channels: int = _CHANNELS

    def calculate(self, row: torch.Tensor) -> None:
        """Do the operations on a row that has the bytes already, as numbers."""
        for operation in self.operations:
            operation.apply(row)

    def table(self) -> np.ndarray[Any, Any] | None:
        """What becomes of each byte of each channel: of shape (channels, 256), with the dtype's size; None of bytes.

        All operations work on one element at a time, so this is the same to the bit as doing them on a row.
        """
        if self.dtype is torch.uint8:
            return None
        numbers = torch.arange(256, dtype=torch.uint8).repeat(self.channels, 1)[:, :, None].to(self.dtype)
        self.calculate(numbers)
        table = numbers.reshape(self.channels, 256).contiguous()
        return (table.view(torch.int16) if self.dtype is torch.bfloat16 else table).numpy()

    def scales(self) -> np.ndarray[Any, Any] | None:
        """What scale() of shmloader.core.pixels makes the same numbers by; None where these operations are others."""
        first, *rest = self.operations or (None,)
        if self.dtype is not torch.float32 or not isinstance(first, (Divide, Multiply)) or len(rest) > 1:
            return None
        times, by = (first.by, 1.0) if isinstance(first, Multiply) else (1.0, first.by)
        scales = np.array([[times, by, 0.0, 1.0]] * _CHANNELS, np.float32)
        if rest:
            if not isinstance(rest[0], Normalize):
                return None
            scales[:, 2], scales[:, 3] = rest[0].by_channel(_CHANNELS)
        numbers = np.arange(256, dtype=np.float32)[None] * scales[:, :1] / scales[:, 1:2]
        numbers = (numbers - scales[:, 2:3]) / scales[:, 3:]
        table = self.table()
        is_same = table is not None and np.array_equal(numbers[: self.channels].view(np.int32), table.view(np.int32))
        return scales if is_same else None

    def wrapped(self, row: torch.Tensor) -> Any:
        if self.is_array:
            return row.numpy()
        return row.as_subclass(import_module("torchvision.tv_tensors").Image) if self.is_image else row


class OnDevice(OfImages):
    """A function for `DataLoader(on_device=...)`: makes of images that travelled as bytes what a Finish says.

    Every uint8 tensor of the batch of shape N x 3 x H x W is an image; everything else is left as it is.  Pictures of
    one channel are of shape N x 1 x H x W.
    """

    def __init__(self, finish: Finish) -> None:
        super().__init__(finish.channels)
        self._finish = finish

    def __eq__(self, other: object) -> bool:
        return self._finish == other._finish if isinstance(other, OnDevice) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._finish)

    def calculate(self, images: torch.Tensor) -> torch.Tensor:
        numbers = images.to(self._finish.dtype)
        self._finish.calculate(numbers)
        return numbers
