"""The part of a picture that a sample shows, and its size: the sum of its crops, its flips and its resize.
Decides which crop and resize the decoder can do: no second resize, and none of more than the picture.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shmloader.images.decode import Crop, Picture
from shmloader.images.filters import BILINEAR

__all__ = ["View"]


class View:
    """A view of a picture: the whole picture, until it is cropped, resized or flipped.

    It is resized at most once.  A later crop may extend beyond the edges, and is black there.

    Args:
        width, height: of the picture, in pixels.
    """

    def __init__(self, width: int, height: int) -> None:
        self.crop: Crop = (0, 0, width, height)  # in the picture
        self.size: tuple[int, int] | None = None  # height and width to which the crop is resized
        self.resample = BILINEAR  # the filter for that
        self.window: Crop = self.crop  # the visible part of the resized crop
        self.is_mirrored = False  # the crop, before it is resized, which gives other roundings than afterwards
        self.is_flipped = False  # the visible part

    @property
    def width(self) -> int:
        return self.window[2]

    @property
    def height(self) -> int:
        return self.window[3]

    def cut(self, left: int, top: int, width: int, height: int) -> None:
        """Crop the view; the numbers are pixels of the view as it is now."""
        if self.is_flipped:
            left = self.width - left - width
        self.window = (self.window[0] + left, self.window[1] + top, width, height)

    def resize(self, height: int, width: int, resample: int = BILINEAR) -> None:
        """Resize the view, by the filter of Pillow's number."""
        self.crop, self.size, self.window = self.window, (height, width), (0, 0, width, height)
        self.is_mirrored, self.is_flipped = self.is_flipped, False
        self.resample = resample

    @property
    def can_be_resized(self) -> bool:
        """Whether the decoder can do a resize now: only the first one, and only within the picture."""
        return self.size is None and self.inside == self.window

    @property
    def inside(self) -> Crop:
        """The visible part without what lies outside the picture.  Its width or height may be 0, or less."""
        left, top, width, height = self.window
        all_high, all_wide = self.size or (self.crop[3], self.crop[2])
        begin, above = max(left, 0), max(top, 0)
        return begin, above, min(left + width, all_wide) - begin, min(top + height, all_high) - above

    def can_be_cut(self, left: int, top: int, width: int, height: int) -> bool:
        """Whether the pixels beyond the edges would be black, because no earlier crop has cut them away."""
        all_high, all_wide = self.size or (self.crop[3], self.crop[2])
        if self.is_flipped:
            left = self.width - left - width
        from_left, from_top, wide, high = self.window
        return (
            (left >= 0 or from_left <= 0)
            and (top >= 0 or from_top <= 0)
            and (left + width <= wide or from_left + wide >= all_wide)
            and (top + height <= high or from_top + high >= all_high)
        )

    def flip(self) -> None:
        """Mirror left and right."""
        self.is_flipped = not self.is_flipped

    def draw(self, picture: Picture, pixels: np.ndarray[Any, Any], exact: bool) -> None:
        """Write the pixels of the view.

        Args:
            picture: of the size that the view was made for.
            pixels: uint8 of shape (3, height, width), with any strides.
            exact: see decode().
        """
        if self.is_flipped:
            pixels = pixels[:, :, ::-1]
        left, top, width, height = self.window
        begin, above, wide, high = self.inside
        if (wide, high) != (width, height):
            pixels[...] = 0
            if wide < 1 or high < 1:  # no pixel of the picture is visible, but a broken file must still raise
                picture.read_part((0, 0, 1, 1), np.empty((3, 1, 1), np.uint8), exact)
                return
            pixels = pixels[:, above - top : above - top + high, begin - left : begin - left + wide]
        if self.size is None:
            picture.read_part((begin, above, wide, high), pixels, exact)
            return
        all_high, all_wide = self.size
        window = None if (wide, high) == (all_wide, all_high) else (begin, above, all_wide, all_high)
        picture.read_part(self.crop, pixels, exact, window, self.resample, self.is_mirrored)
