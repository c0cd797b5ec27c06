"""Our hue needs fewer divisions than Pillow's: all colours show that the bytes are the same."""

from __future__ import annotations

import numpy as np
import pytest

from shmloader.core import pixels

pytest.importorskip("PIL")
from PIL import Image


def colours() -> np.ndarray:
    """All 2^24 colours, 4096 a row."""
    numbers = np.arange(1 << 24, dtype=np.uint32).reshape(-1, 4096)
    return np.stack([numbers & 255, numbers >> 8 & 255, numbers >> 16], axis=-1).astype(np.uint8)


def compare(values: np.ndarray, shifts: list[int], path: str) -> None:
    h, s, v = Image.fromarray(values).convert("HSV").split()
    hues = np.asarray(h)
    start, picture = pixels.Picture(path), pixels.Picture(path)
    start.load(values)
    for shift in shifts:
        turned = Image.fromarray(hues + np.uint8(shift))
        expected = np.asarray(Image.merge("HSV", (turned, s, v)).convert("RGB"))
        picture.load_picture(start)
        picture.hue((shift + 0.5) / 255 if shift < 255 else 1.0)
        assert np.array_equal(np.asarray(picture).transpose(1, 2, 0), expected), (shift, path)


@pytest.mark.parametrize("path", pixels.paths())
def test_hue_of_one_colour_in_ninety_seven(path: str) -> None:
    compare(colours()[:, ::97].copy(), [0, 1, 25, 127, 200, 255], path)


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 256, 32))
@pytest.mark.parametrize("path", pixels.paths())
def test_hue_of_all_colours(path: str, first: int) -> None:
    """2^24 colours by 64 shifts, 8 at a time."""
    compare(colours(), [*range(first, first + 32, 4)], path)
