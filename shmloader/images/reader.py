"""One sample out of one file: drawn, decoded, and finished in its row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import torch

from shmloader.images.decode import Picture
from shmloader.images.finish import Finish, OnDevice
from shmloader.images.random_numbers import drawing
from shmloader.images.recipe import Recipe
from shmloader.images.rows import Rows
from shmloader.images.view import View

__all__ = ["Reader"]


class Reader:
    """Reads samples as a recipe says.

    Args:
        recipe: what a sample is made by.
        exact: pixels as Pillow's, to the bit; else faster: see decode().
        scale_on_device: samples stay bytes, and `on_device` makes numbers of a batch of them.
        rows: where marks of the pictures' rows are kept, if they are.

    Attributes:
        on_device: a function for `DataLoader(on_device=...)`; None where nothing is left for the device to do.
    """

    def __init__(self, recipe: Recipe, exact: bool, scale_on_device: bool, rows: Rows | None = None) -> None:
        self._rows = rows
        self.on_device: Callable[[Any], Any] | None = None
        finish = recipe.finish
        if scale_on_device and finish is not None and finish.dtype is not torch.uint8 and not recipe.rest:
            self.on_device = OnDevice(finish)
            recipe = replace(recipe, finish=Finish())
        self._recipe = recipe
        self._exact = exact

    def __call__(self, source: Any, out: torch.Tensor | None = None, *, at: int = 0, must_fit: bool = True) -> Any:
        """Make the sample of a picture.

        Args:
            source: the file: its path (str or os.PathLike), or its bytes as any object with a buffer.
            out: a tensor of the sample's shape and dtype, which it is written to.  By default a new tensor.
            at: which sample it is, of those whose marks are kept.
            must_fit: whether `out` must be like the sample; else it is written to where it is.

        Returns:
            `out`, or the sample: a contiguous tensor of shape (3, height, width), or whatever transforms that could
            not be fused make of it.

        Raises:
            ValueError: `out` has another shape or dtype, or the picture is smaller than a random crop.
            Exception: whatever Pillow raises for a broken file; OSError where it cannot be read.
        """
        recipe = self._recipe
        if recipe.rest or recipe.finish is None:
            sample = self._image(source, at) if recipe.finish is None else self._tensor(source, at, recipe.finish, None)
            for transform in recipe.rest:
                sample = transform(sample)
            return sample if out is None or not must_fit else _copied(sample, out)
        return self._tensor(source, at, recipe.finish, out, must_fit)

    def _tensor(
        self, source: Any, at: int, finish: Finish, out: torch.Tensor | None, must_fit: bool = True
    ) -> torch.Tensor:
        def row(height: int, width: int) -> np.ndarray[Any, Any]:
            nonlocal out
            shape = (3, height, width)
            if not must_fit and out is not None and (out.shape != shape or out.dtype != finish.dtype):
                out = None
            if out is None and finish.is_lying and self._recipe.rest:
                out = torch.empty((height, width, 3), dtype=finish.dtype).permute(2, 0, 1)
            elif out is None:
                out = torch.empty(shape, dtype=finish.dtype)
            elif out.shape != shape or out.dtype != finish.dtype:
                raise ValueError(
                    f"out is {out.dtype} of shape {tuple(out.shape)}, and the sample {finish.dtype} of {shape}: give "
                    "an `out` of that shape and dtype"
                )
            return out.numpy() if finish.dtype is torch.uint8 else np.empty(shape, np.uint8)

        pixels = self._decoded(source, at, row)
        assert out is not None
        if finish.dtype is not torch.uint8:
            out.copy_(torch.from_numpy(pixels))
            finish.calculate(out)
        return finish.wrapped(out)

    def _image(self, source: Any, at: int) -> Any:
        """A PIL image, for what is not fused."""
        pixels = self._decoded(source, at, _lying)
        return import_module("PIL.Image").fromarray(pixels.transpose(1, 2, 0))

    def _decoded(self, source: Any, at: int, row: Callable[[int, int], np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        with Picture(source, rows=self._rows, at=at) as picture, drawing() as draws:
            view = View(picture.width, picture.height)
            for step in self._recipe.steps:
                step.apply(view, draws)
            pixels = row(view.height, view.width)
            try:
                view.read_into(pixels, picture, self._exact)
            except BaseException:
                draws.undo()  # torchvision would have drawn nothing, for it decodes first
                raise
            return pixels


def _lying(height: int, width: int) -> np.ndarray[Any, Any]:
    """Room for a picture whose pixels have their three channels side by side."""
    pixels: np.ndarray[Any, Any] = np.empty((height, width, 3), np.uint8).transpose(2, 0, 1)
    return pixels


def _copied(sample: Any, out: torch.Tensor) -> torch.Tensor:
    if not isinstance(sample, torch.Tensor) or sample.shape != out.shape or sample.dtype != out.dtype:
        of = f"{sample.dtype} of {tuple(sample.shape)}" if isinstance(sample, torch.Tensor) else type(sample).__name__
        raise ValueError(f"out is {out.dtype} of shape {tuple(out.shape)}, and the sample {of}: give an `out` like it")
    return out.copy_(sample)
