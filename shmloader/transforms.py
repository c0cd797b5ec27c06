"""Functions for `DataLoader(on_device=...)`, for work that is cheaper on the device, such as normalising images.
They decide which tensors of a batch are images.

device/to_device.py calls them.  images.fuse and images.ImageFolder have one of their own: OnDevice in images/finish.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from shmloader.batch.replace_tensors import replaced

__all__ = ["normalize_on_device"]


class OfImages:
    """A function of a batch that computes on its images, and leaves everything else as it is.

    Args:
        channels: Of an image: every uint8 tensor of shape (N, channels, H, W) is a batch of images.
    """

    def __init__(self, channels: int) -> None:
        self._channels = channels

    def __call__(self, batch: Any) -> Any:
        return replaced(batch, self._numbers_of, lambda movable: movable)

    def _numbers_of(self, tensor: torch.Tensor) -> torch.Tensor:
        is_image = tensor.dtype == torch.uint8 and tensor.ndim == 4 and tensor.shape[1] == self._channels
        return self.calculate(tensor) if is_image else tensor

    def calculate(self, images: torch.Tensor) -> torch.Tensor:
        """The images as numbers."""
        raise NotImplementedError


class _Normalize(OfImages):
    def __init__(
        self, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype, memory_format: torch.memory_format
    ) -> None:
        super().__init__(len(mean))
        self._scale = _by_channel([1 / (255 * s) for s in std])
        self._shift = _by_channel([-m / s for m, s in zip(mean, std, strict=True)])
        self._dtype = dtype
        self._memory_format = memory_format
        # by device and stream, because memory that one stream allocated may be in use on another when it is freed
        self._constants: dict[tuple[torch.device, Any], tuple[torch.Tensor, torch.Tensor]] = {}

    def calculate(self, images: torch.Tensor) -> torch.Tensor:
        device = images.device
        at = device, None if device.type == "cpu" else torch.accelerator.current_stream(device)
        if at not in self._constants:
            self._constants[at] = self._scale.to(device), self._shift.to(device)
        scale, shift = self._constants[at]
        return (images * scale).add_(shift).to(self._dtype, memory_format=self._memory_format)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_constants": {}}  # a loader is pickled with it, and may be sent to another machine


def _by_channel(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device="cpu").view(1, -1, 1, 1)


def normalize_on_device(
    mean: Sequence[float],
    std: Sequence[float],
    dtype: torch.dtype = torch.float16,
    memory_format: torch.memory_format = torch.channels_last,
) -> Any:
    """Make a function for `on_device` that normalises images on the device: `(x / 255 - mean) / std`.

    Images then travel as bytes, which take a quarter of float32's memory.  The function computes in float32 and rounds
    once.  It treats every uint8 tensor of shape (N, C, H, W) in the batch as images, if C is the number of means, and
    leaves everything else unchanged.

    Args:
        mean, std: One value for each channel, of pixels between 0 and 1.
        dtype: The dtype of the images that come out (default float16).
        memory_format: Their memory format (default torch.channels_last).

    Returns:
        A function of a batch, which can be pickled.

    Raises:
        ValueError: There are not as many means as standard deviations, or a standard deviation is 0.

    Example:
        >>> normalize = normalize_on_device((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        >>> loader = shmloader.DataLoader(images, num_workers=4, device="cuda", on_device=normalize)
    """
    if len(mean) != len(std) or not all(std):
        raise ValueError(
            f"mean and std should have one value for each channel, and no std may be 0, but got mean={mean!r}, "
            f"std={std!r}."
        )
    return _Normalize(mean, std, dtype, memory_format)
