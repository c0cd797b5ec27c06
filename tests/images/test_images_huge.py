"""Pictures with more pixels than Pillow takes give its warning and its error, and take no gigabytes of memory."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from made_photo import picture
from PIL import Image

from shmloader import images


def claiming(width: int, height: int) -> bytes:
    """A small file whose header claims this size."""
    data = bytearray(picture(1, 40, 30))
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(data)


@pytest.mark.parametrize("as_file", [False, True])
def test_what_pillow_refuses(as_file: bool, tmp_path: Path) -> None:
    source: Any = claiming(40000, 30000)
    if as_file:
        file = tmp_path / "bomb.jpg"
        file.write_bytes(source)
        source = str(file)
    with pytest.raises(Image.DecompressionBombError, match=r"1200000000 pixels.*: (.*bomb.jpg|a picture of)"):
        images.decode(source, crop=(0, 0, 8, 8))


def test_the_limit_is_pillows(monkeypatch: pytest.MonkeyPatch) -> None:
    data, (before, whole) = picture(1, 40, 30), (images.counts(), images.decode(picture(1, 40, 30)))
    for limit, by_pillow in ((1200, 0), (None, 0), (1199, 1)):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        if by_pillow:
            with pytest.warns(Image.DecompressionBombWarning):
                got = images.decode(data)
        else:
            got = images.decode(data)
        assert got.equal(whole)
        assert images.counts()["pillow"] - before["pillow"] == by_pillow
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 599)
    with pytest.raises(Image.DecompressionBombError, match="1200 pixels"):
        images.decode(data)


def test_one_that_nobody_has_imported_has_its_own_limit() -> None:
    from shmloader.images.decode import _MOST_PIXELS

    assert _MOST_PIXELS == Image.MAX_IMAGE_PIXELS
