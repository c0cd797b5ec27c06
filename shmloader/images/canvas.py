"""A picture on its way from a file to a sample: looked at, decoded where its pixels are needed, changed in place.

Crops, flips and the first resize only change what is looked at, so the decoder makes no more than that.  The first
operation on pixels decodes them into a buffer that serves one sample after another (shmloader.core.pixels).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from shmloader.core.pixels import Picture as Pixels
from shmloader.images.decode import Picture
from shmloader.images.filters import BILINEAR
from shmloader.images.random_numbers import Draws
from shmloader.images.view import View

__all__ = ["Canvas", "Step"]

# Buffers that nobody uses now, as with decoders: two threads, or a signal's handler, never have the same one.
_idle: list[Any] = []


class Canvas:
    """What a sample is made on.  A context manager: its buffer goes back at the end.

    Args:
        opened: the picture in its file.
        draws: the generators, which are put back where the file turns out to be broken.
        exact: see decode().

    Attributes:
        rest: functions that are yet to be called with `other`; None unless leave() was called.
        other: what a transform made that is no picture.
        is_final: whether an error that is raised now is to be seen as it is: one of a transform that is called, or of
            the file.  Of any other error the transforms themselves have the right text: see Reader.
    """

    def __init__(self, opened: Picture, draws: Draws, exact: bool) -> None:
        self._opened, self._draws, self._exact = opened, draws, exact
        self._view: View | None = View(opened.width, opened.height)  # None: it is decoded
        self._image: Any = None  # a PIL image that has the pixels; None: the buffer has them
        self._buffer: Any = None
        self.rest: Sequence[Callable[[Any], Any]] | None = None
        self.other: Any = None
        self.is_final = False

    def __enter__(self) -> Canvas:
        return self

    def __exit__(self, *_: Any) -> None:
        buffer, self._buffer = self._buffer, None
        # Whoever keeps an exception keeps the frames of its traceback, and these may hold the buffer: no other sample
        # could write to it.
        if buffer is not None and not buffer.views:
            _idle.append(buffer)

    @property
    def view(self) -> View | None:
        """What is looked at, while nothing is decoded."""
        return self._view

    @property
    def width(self) -> int:
        return int(self._there.width)

    @property
    def height(self) -> int:
        return int(self._there.height)

    @property
    def channels(self) -> int:
        """3, or 1 of a picture in shades of grey."""
        if self._image is not None:
            return len(self._image.getbands())
        return int(self._buffer.channels) if self._view is None else 3

    @property
    def _there(self) -> Any:
        return self._view or self._image or self._buffer

    def cut(self, left: int, top: int, width: int, height: int) -> None:
        """Crop to a part; what lies outside the picture is black."""
        if width < 1 or height < 1:
            raise ValueError(f"a transform crops the picture to {width} x {height} pixels. Each side needs at least 1.")
        if self._view is not None and self._view.can_be_cut(left, top, width, height):
            self._view.cut(left, top, width, height)
        else:
            self.picture.crop(left, top, width, height)

    def flip(self) -> None:
        """Exchange left and right."""
        if self._view is not None:
            self._view.flip()
        else:
            self.picture.flip_left_right()

    def resize(self, height: int, width: int, resample: int = BILINEAR) -> None:
        """Resize by the filter of Pillow's number, while decoding where that gives the same pixels."""
        if width < 1 or height < 1:
            raise ValueError(
                f"a transform resizes the picture to {width} x {height} pixels. Each side needs at least 1."
            )
        if self._view is not None and self._view.can_be_resized(self._exact):
            self._view.resize(height, width, resample)
        else:
            self.replace(self.image().resize((width, height), resample))

    @property
    def picture(self) -> Any:
        """Its pixels, to change in place: a shmloader.core.pixels.Picture."""
        if self._buffer is None:
            self._buffer = _idle.pop() if _idle else Pixels()
        if self._view is not None:
            self._buffer.start(self._view.width, self._view.height)
            self._decode(np.asarray(self._buffer))
        elif self._image is not None:
            self._buffer.load_image(self._image)
            self._image = None
        return self._buffer

    def image(self) -> Any:
        """The same as a PIL image."""
        return self.picture.image() if self._image is None else self._image

    def copy(self) -> Canvas:
        """The same pixels in a buffer of their own, to change apart.  A context manager, too."""
        other = Canvas(self._opened, self._draws, self._exact)
        picture = self.picture
        other._view, other._buffer = None, _idle.pop() if _idle else Pixels()
        other._buffer.load_picture(picture)
        return other

    def image_of_file(self) -> Any:
        """The same with what Pillow has of the file beside the pixels, such as EXIF."""
        image = self.image()
        if not image.info:
            image.info.update(self._opened.info())
        return image

    def replace(self, image: Any) -> None:
        """Go on with another PIL image, of mode RGB or L."""
        self._view, self._image = None, image

    def leave(self, other: Any, rest: Sequence[Callable[[Any], Any]]) -> None:
        """Go on without pictures: with what a transform made, and what is to be called with it."""
        self.other, self.rest = other, rest

    def write(
        self,
        row: np.ndarray[Any, Any],
        table: np.ndarray[Any, Any] | None = None,
        scales: np.ndarray[Any, Any] | None = None,
    ) -> None:
        """Write it.

        Args:
            row: of shape (channels, height, width), with any strides.
            table: what becomes of each byte of each channel, of shape (channels, 256), with the row's item size; None:
                bytes as they are.
            scales: see Finish.scales().
        """
        if self._view is not None and table is None:
            self._decode(row)
        else:
            self.picture.write(row, table, scales)

    def _decode(self, pixels: np.ndarray[Any, Any]) -> None:
        assert self._view is not None
        try:
            self._view.draw(self._opened, pixels, self._exact)
        except BaseException:
            self._draws.undo()  # torchvision would have drawn nothing, because it decodes first
            self.is_final = True
            raise
        self._view = None


class Step(Protocol):
    """One change of a picture."""

    def apply(self, canvas: Canvas, draws: Draws) -> None:
        """Draw its parameters, as the transform that it stands for does, and change the picture."""
