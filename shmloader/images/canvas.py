"""A picture on its way from a file to a sample, and the moment at which it is decoded.
Crops, flips and the first resize only change the view of it, and the first operation on pixels decodes the view.

So the decoder makes no more pixels than the view needs.  They go into a buffer that serves one sample after another
(shmloader.core.pixels).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from shmloader.core.pixels import Picture as Pixels
from shmloader.images.decode import LARGEST, LEFT_RIGHT, Picture, goes_down_first
from shmloader.images.filters import BILINEAR
from shmloader.images.random_numbers import Draws
from shmloader.images.view import View

__all__ = ["Canvas", "Step"]

# Idle buffers.  As with decoders, two threads, or a signal handler and what it interrupts, never share one.
_idle: list[Any] = []


class _Around(NamedTuple):
    """What lies around the pixels: a larger picture of one colour, which is not made yet.

    Attributes:
        width, height: of the larger picture.
        left, top: the place of the pixels on it.
        fill: its colour, a number for each channel.
        is_mirrored: whether all of it is mirrored then.
    """

    width: int
    height: int
    left: int
    top: int
    fill: tuple[int, ...]
    is_mirrored: bool = False


class Canvas:
    """The picture that a sample is made of.  A context manager: its buffer goes back at the end.

    Args:
        opened: the picture in its file.
        draws: the generators; if the file turns out to be broken, their states are restored.
        exact: see decode().

    Attributes:
        rest: functions that are still to be called with `other`; None unless leave() was called.
        other: the result of a transform that returned no picture.
        is_final: whether an error that is raised now reaches the user as it is, because a transform that we call, or
            the file, raised it.  For any other error the transforms themselves have the right text: see Reader.
    """

    def __init__(self, opened: Picture, draws: Draws, exact: bool) -> None:
        self._opened, self._draws, self._exact = opened, draws, exact
        self._view: View | None = View(opened.width, opened.height)  # None: the pixels are decoded
        self._image: Any = None  # a PIL image with the pixels; None: the buffer has them
        self._buffer: Any = None
        self._around: _Around | None = None
        self.rest: Sequence[Callable[[Any], Any]] | None = None
        self.other: Any = None
        self.is_final = False

    def __enter__(self) -> Canvas:
        return self

    def __exit__(self, *_: Any) -> None:
        buffer, self._buffer = self._buffer, None
        # An exception that is kept keeps the frames of its traceback, and these may hold the buffer: then no other
        # sample could write to it.
        if buffer is not None and not buffer.views:
            _idle.append(buffer)

    @property
    def view(self) -> View | None:
        """The view, as long as nothing is decoded."""
        return self._view

    @property
    def width(self) -> int:
        return int(self._there.width)

    @property
    def height(self) -> int:
        return int(self._there.height)

    @property
    def channels(self) -> int:
        """3, or 1 if the picture is grey."""
        if self._image is not None:
            return len(self._image.getbands())
        return int(self._buffer.channels) if self._view is None else 3

    @property
    def _there(self) -> Any:
        return self._view or self._image or self._around or self._buffer

    def cut(self, left: int, top: int, width: int, height: int) -> None:
        """Crop to a part; what lies outside the picture is black."""
        if width < 1 or height < 1:
            raise ValueError(
                f"a transform crops the picture to {width} x {height} pixels. Each side needs at least 1. Change the "
                "transform, or leave this picture out."
            )
        if self._view is not None and self._view.can_be_cut(left, top, width, height):
            self._view.cut(left, top, width, height)
        elif self._is_too_large:
            self.replace(self._image.crop((left, top, left + width, top + height)))
        else:
            self.picture.crop(left, top, width, height)

    def flip(self) -> None:
        """Mirror left and right."""
        if self._view is not None:
            self._view.flip()
        elif self._is_too_large:
            self.replace(self._image.transpose(LEFT_RIGHT))
        elif self._around is not None:
            self._around = self._around._replace(is_mirrored=not self._around.is_mirrored)
        else:
            self.picture.flip_left_right()

    def pad(self, left: int, top: int, right: int, bottom: int, fill: tuple[int, ...]) -> None:
        """Pad with one colour, by no negative number of pixels.  A resize that follows does not need the whole."""
        if not any(fill):
            self.cut(-left, -top, self.width + left + right, self.height + top + bottom)
            return
        picture = self.picture
        width, height = picture.width + left + right, picture.height + top + bottom
        if max(width, height) <= LARGEST:
            self._around = _Around(width, height, left, top, fill)
        else:
            picture.pad(left, top, right, bottom, "constant", fill)  # raises

    def resize(self, height: int, width: int, resample: int = BILINEAR) -> None:
        """Resize by the filter of Pillow's number, while decoding where that gives the same pixels."""
        if width < 1 or height < 1:
            raise ValueError(
                f"a transform resizes the picture to {width} x {height} pixels. Each side needs at least 1. Change "
                "the transform, or leave this picture out."
            )
        if max(width, height) > LARGEST or self._is_too_large:
            self.replace(self.image().resize((width, height), resample))
        elif self._view is not None and self._view.can_be_resized:
            self._view.resize(height, width, resample)
        else:
            around = self._decode_inside() if self._view is not None else self._around
            buffer = self.picture if around is None else self._buffer
            canvas = None if around is None else around[:4]
            fill, is_mirrored = (0, False) if around is None else around[4:]
            buffer.resize(width, height, resample, goes_down_first(), None, canvas, fill, is_mirrored)
            self._around = None

    def _decode_inside(self) -> _Around | None:
        """Decode what a view that was not resized shows of the picture; returns what lies around that."""
        view = self._view
        assert view is not None
        left, top, width, height = view.inside
        if view.size is not None or width < 1 or height < 1:
            return None
        around = _Around(view.width, view.height, left - view.window[0], top - view.window[1], (0,), view.is_flipped)
        view.window, view.is_flipped = view.inside, False
        self._start()
        return around

    @property
    def _is_too_large(self) -> bool:
        """Whether the pixels are in a PIL image that no buffer can hold: a panorama whose shorter side was resized."""
        return self._image is not None and max(self._image.size) > LARGEST

    @property
    def picture(self) -> Any:
        """The pixels, to change in place: a shmloader.core.pixels.Picture."""
        if self._buffer is None or self._view is not None or self._image is not None:
            self._start()
        elif self._around is not None:
            width, height, left, top, fill, is_mirrored = self._around
            right, bottom = width - left - self._buffer.width, height - top - self._buffer.height
            self._buffer.pad(left, top, right, bottom, "constant", fill)
            if is_mirrored:
                self._buffer.flip_left_right()
            self._around = None
        return self._buffer

    def _start(self) -> None:
        """Put the pixels into the buffer."""
        if self._buffer is None:
            self._buffer = _idle.pop() if _idle else Pixels()
        if self._view is not None:
            self._buffer.start(self._view.width, self._view.height)
            self._decode(np.asarray(self._buffer))
        elif self._image is not None:
            self._buffer.load_image(self._image)
            self._image = None

    def image(self) -> Any:
        """The pixels as a PIL image."""
        return self.picture.image() if self._image is None else self._image

    def copy(self) -> Canvas:
        """A copy with a buffer of its own.  A context manager, too."""
        other = Canvas(self._opened, self._draws, self._exact)
        picture = self.picture
        other._view, other._buffer = None, _idle.pop() if _idle else Pixels()
        other._buffer.load_picture(picture)
        return other

    def image_of_file(self) -> Any:
        """The PIL image with what Pillow reads from the file beside the pixels, such as EXIF."""
        image = self.image()
        if not image.info:
            image.info.update(self._opened.info())
        return image

    def replace(self, image: Any) -> None:
        """Continue with another PIL image, of mode RGB or L."""
        self._view, self._around, self._image = None, None, image

    def leave(self, other: Any, rest: Sequence[Callable[[Any], Any]]) -> None:
        """Continue with something that is no picture: what a transform returned, and the functions to call with it."""
        self.other, self.rest = other, rest

    def write(
        self,
        row: np.ndarray[Any, Any],
        table: np.ndarray[Any, Any] | None = None,
        scales: np.ndarray[Any, Any] | None = None,
    ) -> None:
        """Write the pixels as numbers.

        Args:
            row: of shape (channels, height, width), with any strides.
            table: the value of each byte in each channel, of shape (channels, 256), with the row's item size; None:
                write the bytes themselves.
            scales: see Finish.scales().
        """
        if self._view is not None and table is None:
            self._decode(row)
        elif self._is_too_large and table is None:
            row[...] = np.moveaxis(np.atleast_3d(np.asarray(self._image)), 2, 0)
        else:
            self.picture.write(row, table, scales)

    def _decode(self, pixels: np.ndarray[Any, Any]) -> None:
        assert self._view is not None
        try:
            self._view.draw(self._opened, pixels, self._exact)
        except BaseException:
            self._draws.undo()  # torchvision decodes first, so for a broken file it would have drawn nothing
            self.is_final = True
            raise
        self._view = None


class Step(Protocol):
    """One change of a picture."""

    def apply(self, canvas: Canvas, draws: Draws) -> None:
        """Draw the parameters as the transform itself does, and change the picture."""
