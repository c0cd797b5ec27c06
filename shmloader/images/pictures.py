"""A dataset of pictures and their classes: what a fused dataset and a folder have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import Dataset

from shmloader.images.reader import Reader
from shmloader.images.recipe import Recipe

__all__ = ["Pictures", "explained"]


class Pictures(Dataset[Any]):
    """Samples (image, target) by a Reader.

    Args:
        reader: what makes images.
    """

    is_fused = True

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    @property
    def _of(self) -> Any:
        """What has the samples (paths and targets), and a target_transform where there is one."""
        return self

    @property
    def on_device(self) -> Callable[[Any], Any] | None:
        """For `DataLoader(device=..., on_device=...)`: makes of batches what samples did not become; None: nothing."""
        return self._reader.on_device

    def __len__(self) -> int:
        return len(self._of.samples)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        path, target = self._of.samples[index]
        return self._reader(path, at=index), self._target(target)

    def __getitem_into__(self, index: int, row: Any) -> tuple[Any, Any]:
        """The sample, its image written in its place in a batch where that has its shape: see docs/images.md."""
        path, target = self._of.samples[index]
        return self._reader(path, row[0], at=index, must_fit=False), self._target(target)

    def read_into(self, index: int, out: torch.Tensor) -> Any:
        """Write a sample's image where it is to be.

        Args:
            index: of the sample.
            out: a tensor of the image's shape and dtype, with any strides.

        Returns:
            The sample's target.

        Raises:
            ValueError: `out` has another shape or dtype than the image.
            Exception: as __getitem__.
        """
        path, target = self._of.samples[index]
        self._reader(path, out, at=index)
        return self._target(target)

    def _target(self, target: Any) -> Any:
        transform = getattr(self._of, "target_transform", None)
        return target if transform is None else transform(target)


def explained(heading: str, recipe: Recipe) -> str:
    """A heading, and a line for each transform: what it is, and what is done about it."""
    return "\n".join([heading, *(f"  {transform}: {said}" for transform, said in recipe.notes)])
