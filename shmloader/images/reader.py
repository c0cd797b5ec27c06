"""One sample from one file: drawn, decoded, changed, and finished in its row.
If a step fails, the user's transforms are called instead, with the same random numbers.  An `out` of another shape or
dtype is an error.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from shmloader.core.pixels import scale
from shmloader.images.cache import Cache
from shmloader.images.canvas import Canvas, Step
from shmloader.images.decode import Picture
from shmloader.images.finish import Finish, OnDevice
from shmloader.images.known import text_of
from shmloader.images.operations import Act, Call, Chance
from shmloader.images.random_numbers import Draws, drawing
from shmloader.images.recipe import Recipe
from shmloader.images.rows import Rows

__all__ = ["Reader", "copied"]

# Idle buffers for bytes that are about to become numbers; as with decoders, no two threads share one.
_idle: list[np.ndarray[Any, Any]] = []
_KEPT = 4 << 20  # bytes: a larger buffer is not kept for the next picture


class Reader:
    """Reads samples by a recipe.

    Args:
        recipe: how a picture becomes a sample.
        exact: whether pixels equal Pillow's bit for bit; otherwise it is faster: see decode().
        scale_on_device: samples stay bytes, and `on_device` makes numbers of whole batches.
        rows: a file of marks of the pictures' rows, or None.
        cache: a cache of decoded pictures, or None.

    Attributes:
        on_device: a function for `DataLoader(on_device=...)`; None if nothing is left for the device to do.
    """

    def __init__(
        self,
        recipe: Recipe,
        exact: bool,
        scale_on_device: bool,
        rows: Rows | None = None,
        cache: Cache | None = None,
    ) -> None:
        self._rows, self._cache = rows, cache
        self.on_device: Callable[[Any], Any] | None = None
        finish = recipe.finish
        is_last = not recipe.rest and not recipe.row_steps
        if scale_on_device and finish is not None and finish.dtype is not torch.uint8 and is_last:
            self.on_device = OnDevice(finish)
            recipe = replace(recipe, finish=Finish(channels=finish.channels))
        self._recipe = recipe
        self._exact = exact
        is_narrow = recipe.finish is not None and recipe.finish.dtype.itemsize <= 4  # as a table's items
        self._table = recipe.finish.table() if recipe.finish is not None and is_narrow else None
        self._scales = recipe.finish.scales() if recipe.finish is not None else None

    def __call__(
        self,
        source: Any,
        out: torch.Tensor | None = None,
        *,
        at: int = 0,
        must_fit: bool = True,
        is_turned: bool = False,
    ) -> Any:
        """Make the sample of a picture.

        Args:
            source: the file: its path (str or os.PathLike), or its bytes as any object with a buffer.
            out: a tensor of the sample's shape and dtype to write to.  By default a new tensor.
            at: the number of the sample in the file of marks.
            is_turned: see Picture.
            must_fit: whether an `out` of another shape or dtype is an error; otherwise a new tensor is made instead.

        Returns:
            `out`, or the sample: a contiguous tensor of shape (3, height, width), or the result of the transforms that
            could not be fused.

        Raises:
            ValueError: `out` has another shape or dtype, or the picture is smaller than a random crop.
            Exception: any exception of Pillow's for a broken file; OSError if the file cannot be read.
        """
        with Picture(source, rows=self._rows, at=at, is_turned=is_turned, cache=self._cache) as picture:
            return self.make(picture, out, must_fit)

    def make(self, picture: Picture, out: torch.Tensor | None, must_fit: bool) -> Any:
        """Make the sample of an open picture: see __call__().

        If a step fails, the transforms themselves are called, with the generators in the same states.  So a colour of
        four numbers raises torchvision's own error, and what only torchvision can make is made.
        """
        with drawing(self._recipe.draws_by) as draws, Canvas(picture, draws, self._exact) as canvas:
            try:
                return self._made(canvas, draws, out, must_fit)
            except Exception:
                if canvas.is_final or not self._recipe.transforms or self.on_device is not None:
                    raise
                draws.undo()
        return self._called(picture.image(), self._recipe.transforms, out if must_fit else None)

    def _made(self, canvas: Canvas, draws: Draws, out: torch.Tensor | None, must_fit: bool) -> Any:
        recipe = self._recipe
        for step in recipe.steps:
            step.apply(canvas, draws)
            if canvas.rest is not None:
                canvas.is_final = True
                return self._called(canvas.other, canvas.rest, out if must_fit else None)
        if recipe.finish is not None and not recipe.rest:
            return self._finished(canvas, draws, recipe.finish, out, must_fit)
        if recipe.finish is None:
            sample = canvas.image()
        else:
            sample = self._finished(canvas, draws, recipe.finish, None, must_fit)
        canvas.is_final = True
        return self._called(sample, recipe.rest, out if must_fit else None)

    def _called(self, sample: Any, rest: Sequence[Callable[[Any], Any]], out: torch.Tensor | None) -> Any:
        for transform in rest:
            sample = transform(sample)
        return sample if out is None else copied(sample, out)

    def _finished(
        self, canvas: Canvas, draws: Draws, finish: Finish, out: torch.Tensor | None, must_fit: bool = True
    ) -> Any:
        if canvas.channels != finish.channels:
            raise ValueError(
                f"the picture has {canvas.channels} channels. Its transform needs {finish.channels}. Convert it first."
            )
        shape = (finish.channels, canvas.height, canvas.width)
        if not must_fit and out is not None and (out.shape != shape or out.dtype != finish.dtype or finish.is_array):
            out = None
        if out is None and finish.is_lying and (self._recipe.rest or finish.is_array):
            out = torch.empty((*shape[1:], shape[0]), dtype=finish.dtype, device="cpu").permute(2, 0, 1)
        elif out is None:
            out = torch.empty(shape, dtype=finish.dtype, device="cpu")
        elif out.shape != shape or out.dtype != finish.dtype:
            canvas.is_final = True
            raise ValueError(
                f"out is {out.dtype} of shape {tuple(out.shape)}. The sample is {finish.dtype} of shape {shape}. Give "
                "an `out` of that shape and dtype."
            )
        if finish.dtype is torch.uint8:
            canvas.write(out.numpy())
        elif self._table is not None and canvas.view is None:
            row = out.view(torch.int16) if finish.dtype is torch.bfloat16 else out
            canvas.write(row.numpy(), self._table, self._scales)
        else:
            self._calculate(canvas, finish, shape, out)
        for step in self._recipe.row_steps:
            step.apply(out, draws)
        return finish.wrapped(out)

    def _calculate(self, canvas: Canvas, finish: Finish, shape: tuple[int, int, int], out: torch.Tensor) -> None:
        """Decode plane by plane, and calculate: quicker than by way of the buffer of pixels and a table."""
        size = math.prod(shape)
        room = _idle.pop() if _idle else None
        if room is None or room.size < size:
            room = np.empty(size, np.uint8)
        pixels = room[:size].reshape(shape)
        canvas.write(pixels)
        if self._scales is None or not scale(pixels, out.numpy(), self._scales):
            out.copy_(torch.from_numpy(pixels))
            finish.calculate(out)
        if room.size <= _KEPT:
            _idle.append(room)

    def costs(self, sources: Sequence[Any]) -> list[tuple[str, float]]:
        """The cost of each part of a sample: its name, and microseconds of this thread's CPU a sample.

        Look-ups are applied at once here, instead of together with the next step, so they seem dearer than they are.
        """
        recipe, totals = self._recipe, [0.0] * (len(self._recipe.steps) + 2)
        for source in sources:
            begin = time.thread_time()
            with (
                Picture(source, cache=self._cache) as picture,
                drawing(recipe.draws_by) as draws,
                Canvas(picture, draws, self._exact) as canvas,
            ):
                totals[0] -= begin - (begin := time.thread_time())
                for at, step in enumerate(recipe.steps):
                    step.apply(canvas, draws)
                    if canvas.view is None and canvas.rest is None:
                        canvas.picture.apply_pending()
                    totals[at + 1] -= begin - (begin := time.thread_time())
                    if canvas.rest is not None:
                        break
                else:
                    if recipe.finish is not None:
                        self._called(self._finished(canvas, draws, recipe.finish, None), recipe.rest, None)
                    else:
                        self._called(canvas.image(), recipe.rest, None)
            totals[-1] -= begin - time.thread_time()
        names = ["read the file", *map(_name, recipe.steps), "finish"]
        return [(name, total / max(1, len(sources)) * 1e6) for name, total in zip(names, totals, strict=True)]


def _name(step: Step) -> str:
    """The name of a step in the list of costs."""
    if isinstance(step, Chance):
        return f"by chance: {', '.join(map(_name, step.steps))}"
    if isinstance(step, Act):
        return step.name
    return text_of(step.transform) if isinstance(step, Call) else type(step).__name__


def copied(sample: Any, out: torch.Tensor) -> torch.Tensor:
    if not isinstance(sample, torch.Tensor) or sample.shape != out.shape or sample.dtype != out.dtype:
        kind = f"{sample.dtype} of {tuple(sample.shape)}" if isinstance(sample, torch.Tensor) else type(sample).__name__
        raise ValueError(
            f"out is {out.dtype} of shape {tuple(out.shape)}. The sample is {kind}. Give an `out` like it."
        )
    return out.copy_(sample)
