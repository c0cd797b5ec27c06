"""Files that libjpeg reads in an unexpected way: our decoder leaves them to Pillow."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from jpeg_writer import SAMPLINGS, Noise, write
from PIL import Image

from shmloader import images
from shmloader.core import jpeg


@pytest.mark.parametrize("path", jpeg.paths())
@pytest.mark.parametrize("restart", [0, 3])
@pytest.mark.parametrize("which", [0, -1])
def test_fill_bytes_in_the_data(path: str, restart: int, which: int) -> None:
    """0xff 0xff 0 instead of 0xff 0: in such an MCU, libjpeg-turbo keeps coefficients of a first attempt."""
    data = write(Noise(5, 150, 130, SAMPLINGS["4:2:0"], restart=restart, is_wild=True))
    scan = data.index(b"\xff\xda") + 14
    at = [k for k in range(scan, len(data)) if data[k : k + 2] == b"\xff\0"][which]
    filled = data[:at] + b"\xff" + data[at:]
    decoder = jpeg.Decoder(path)
    for crop in ((0, 0, 150, 130), (20, 60, 8, 8)):
        out = np.zeros((3, crop[3], crop[2]), np.uint8)
        for is_marking in (False, True):
            assert decoder.open(data) and decoder.decode(crop, out, marking=is_marking)
            assert decoder.open(filled) and not decoder.decode(crop, out, marking=is_marking)
            assert decoder.marks is None
    expected = np.asarray(Image.open(io.BytesIO(filled)).convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(images.decode(filled), expected)


@pytest.mark.parametrize("length", [1, 11, 16])  # bits: of a code that is looked up, and of one that is not
def test_a_code_of_ones_alone(length: int) -> None:
    """No table may have this code (T.81, annex C), and libjpeg refuses the file."""

    def grey(ones: bool) -> bytes:
        # Codes 0, 10, 110 and so on, and one or two of the last length.
        dc = bytes([1] * (length - 1) + [1 + ones] + [0] * (16 - length)) + bytes(length + ones)
        tables = (b"\xc4", b"\0" + dc), (b"\xc4", b"\x10" + bytes([1] + [0] * 15) + b"\0")
        frame = struct.pack(">BHHB", 8, 8, 8, 1) + b"\1\x11\0"
        segments = (b"\xdb", b"\0" + b"\1" * 64), (b"\xc0", frame), *tables, (b"\xda", b"\1\1\0\0\x3f\0")
        parts = [b"\xff" + marker + struct.pack(">H", len(content) + 2) + content for marker, content in segments]
        return b"\xff\xd8" + b"".join(parts) + b"\0\0\0\xff\xd9"

    assert jpeg.Decoder().open(grey(ones=False)) == (8, 8, 1)
    assert jpeg.Decoder().open(grey(ones=True)) is None
    with pytest.raises(OSError, match="broken data stream"):
        images.decode(grey(ones=True))
