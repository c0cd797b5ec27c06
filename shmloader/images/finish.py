"""The last step of a sample (ToTensor, Normalize): bytes become numbers in a row, or on the device.
With `scale_on_device` they travel as bytes.  scales() decides whether C can calculate the same numbers.

The operations and their order are torchvision's, so each number is the same bit for bit (on a CPU; a GPU may divide
differently).

Reader._finished (reader.py) applies it to each sample.  The bytes have the shape (channels, height, width) already:
`Picture.read_part` in decode.py writes them so.  `_becomes` in recognise.py sets `dtype` as ToTensor, ToDtype or
ConvertImageDtype would.

RandomErasing of torchvision and of timm changes a sample in its row, after the picture has become numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import numpy as np
import torch

from shmloader.images.random_numbers import Draws
from shmloader.transforms import OfImages

__all__ = ["CallInPlace", "Divide", "Erase", "Finish", "Multiply", "Normalize", "OnDevice", "RowStep"]

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
    """Subtracts a mean and divides by a standard deviation: one value of each for each channel, or one for all."""

    def __init__(self, mean: Sequence[float] | float, std: Sequence[float] | float, dtype: torch.dtype) -> None:
        self._mean, self._std = (
            torch.as_tensor(values, dtype=dtype, device="cpu").reshape(-1, 1, 1) for values in (mean, std)
        )
        # By device and stream: if memory was allocated on one stream, no other may still use it when it is freed.
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
        """Mean and standard deviation of each channel."""
        mean, std = (values.flatten().expand(channels).tolist() for values in (self._mean, self._std))
        return mean, std

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_there": {}}  # it is pickled with a dataset, and may arrive where there is no device


@dataclass(frozen=True)
class Finish:
    """How bytes become the numbers of a sample.

    Args:
        dtype: of the sample; torch.uint8: the bytes stay as they are.
        operations: on the numbers, in this order; none for bytes.
        is_image: whether the sample is a torchvision.tv_tensors.Image.
        is_lying: whether the transforms that follow get the three channels of a pixel side by side in memory, as PIL
            stores them: for another layout torch may compute differently, with other roundings.
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
        """Apply the operations to a row that has the bytes as numbers."""
        for operation in self.operations:
            operation.apply(row)

    def table(self) -> np.ndarray[Any, Any] | None:
        """The number for each byte in each channel: of shape (channels, 256), in the sample's dtype; None for bytes.

        All operations are elementwise, so a look-up gives the same number bit for bit as the operations themselves.
        """
        if self.dtype is torch.uint8:
            return None
        bytes_ = torch.arange(256, dtype=torch.uint8, device="cpu")
        numbers = bytes_.repeat(self.channels, 1)[:, :, None].to(self.dtype)
        self.calculate(numbers)
        table = numbers.reshape(self.channels, 256).contiguous()
        return (table.view(torch.int16) if self.dtype is torch.bfloat16 else table).numpy()

    def scales(self) -> np.ndarray[Any, Any] | None:
        """Arguments with which scale() of shmloader.core.pixels computes the same numbers; None if it cannot."""
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
    """A function for `DataLoader(on_device=...)`: turns images that travelled as bytes into numbers, as a Finish does.

    Every uint8 tensor of shape N x 3 x H x W in the batch is a stack of images (N x 1 x H x W if these are grey).
    Everything else stays as it is.
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
