"""The filters for resizing: their names, and Pillow's numbers for them.

cython_ext/jpeg/picture.c resizes (resize_across() and resize_down()), and Pillow resizes the pictures that are not
decoded there.  A new filter, which is a new interpolation mode, is a function and a row of `kernels` in
cython_ext/resize/weights.c, a number of weights.h, and a name and a number in `_NUMBERS` here.
"""

from __future__ import annotations

from typing import Any

__all__ = ["BICUBIC", "BILINEAR", "NEAREST", "filter_number"]

NEAREST, LANCZOS, BILINEAR, BICUBIC, BOX, HAMMING = range(6)
_NUMBERS = {
    "nearest": NEAREST,
    "box": BOX,
    "bilinear": BILINEAR,
    "hamming": HAMMING,
    "bicubic": BICUBIC,
    "lanczos": LANCZOS,
}


def filter_number(interpolation: Any) -> int:
    """Pillow's number of a filter.

    Args:
        interpolation: its name in any case; Pillow's Resampling, or its number; torchvision's InterpolationMode.

    Raises:
        ValueError: there is no such filter.
    """
    value = getattr(interpolation, "value", interpolation)
    number = _NUMBERS.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(number, int) or isinstance(number, bool) or number not in _NUMBERS.values():
        raise ValueError(f"interpolation={interpolation!r} is no filter. Use one of: {', '.join(_NUMBERS)}.")
    return number
