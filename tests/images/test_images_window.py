"""A window of a resized crop has the same pixels as the whole, whatever is left out."""

from __future__ import annotations

import random

import numpy as np
import pytest
from jpeg_writer import SAMPLINGS, Noise, write
from made_photo import DOWN_FIRST, by_pillow
from PIL import Image

from shmloader.core import jpeg


@pytest.mark.parametrize("sampling", list(SAMPLINGS))
@pytest.mark.parametrize("path", jpeg.paths())
def test_a_window_is_a_part_of_the_whole(path: str, sampling: str) -> None:
    decoder, draw = jpeg.Decoder(path), random.Random(sampling)
    for _ in range(12):
        width, height = draw.randint(1, 130), draw.randint(1, 130)
        data = write(Noise(draw.randrange(99), width, height, SAMPLINGS[sampling]))
        assert decoder.open(data) is not None
        for _ in range(6):
            wide, high = draw.randint(1, width), draw.randint(1, height)
            left, top = draw.randint(0, width - wide), draw.randint(0, height - high)
            # as it is, larger, smaller, and so much lower that Pillow goes down first
            all_wide = draw.choice((wide, draw.randint(1, 90), draw.randint(1, wide)))
            all_high = draw.choice((high, draw.randint(1, 90), draw.randint(1, max(1, high // 6))))
            across, down = draw.randint(0, all_wide - 1), draw.randint(0, all_high - 1)
            out = np.zeros((3, draw.randint(1, all_high - down), draw.randint(1, all_wide - across)), np.uint8)
            pixels = out[:, :, ::-1] if draw.random() < 0.5 else out
            crop, window = (left, top, wide, high), (across, down, all_wide, all_high)
            exact = draw.random() < 0.5  # it always is
            resample = Image.Resampling(draw.randrange(6))
            assert decoder.decode(crop, pixels, exact, DOWN_FIRST, window=window, filter=int(resample))
            whole = by_pillow(data, crop, (all_high, all_wide), resample=resample)
            expected = whole[:, down:, across:][:, : out.shape[1], : out.shape[2]]
            assert np.array_equal(pixels, expected), (sampling, width, height, crop, window, out.shape)


def test_only_what_the_window_needs_is_read() -> None:
    """The rest of the file may contain anything, because blocks that are read past do not become pixels."""
    decoder = jpeg.Decoder()
    data = write(Noise(3, 640, 640, SAMPLINGS["4:4:4"]))
    out = np.zeros((3, 10, 10), np.uint8)
    assert decoder.open(data) is not None
    assert decoder.decode((0, 0, 640, 640), out, marking=True, window=(40, 50, 80, 80))
    marks, expected = decoder.marks, out.copy()
    assert marks is not None
    begin = data.index(b"\xff\xda")
    begin += 2 + int.from_bytes(data[begin + 2 : begin + 4], "big")
    at = int.from_bytes(marks[12 * 48 : 12 * 48 + 4], "little")  # the row at the pixel 384: above all that is seen
    assert decoder.open(data[:begin] + bytes(at) + data[begin + at :]) is not None
    out[...] = 0
    assert decoder.decode((0, 0, 640, 640), out, marks=marks, window=(40, 50, 80, 80))
    assert np.array_equal(out, expected)


@pytest.mark.parametrize("window", [(-1, 0, 20, 20), (0, -1, 20, 20), (11, 0, 20, 20), (0, 11, 20, 20), (0, 0, 9, 20)])
def test_a_window_that_cannot_be(window: tuple[int, int, int, int]) -> None:
    decoder = jpeg.Decoder()
    assert decoder.open(write(Noise(3, 40, 40))) is not None
    with pytest.raises(ValueError, match="not inside the window"):
        decoder.decode((0, 0, 40, 40), np.zeros((3, 10, 10), np.uint8), window=window)
    with pytest.raises(ValueError, match="not inside the window"):
        decoder.decode((0, 0, 40, 40), np.zeros((3, 10, 10), np.uint8), window=(0, 0, 65536, 20))
