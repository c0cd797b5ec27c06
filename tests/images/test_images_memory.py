"""The memory that decoding keeps: none of a large file's, and after a million pictures no more than after a few."""

from __future__ import annotations

import ctypes
import gc
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from made_photo import picture
from PIL import Image

from shmloader import images
from shmloader.core.jpeg import Decoder

PICTURES, SETTLED = 1_000_000, 100_000
PR_SET_THP_DISABLE = 41
ROOM = 2 << 20  # bytes: what an allocator may come to use otherwise; a byte lost a picture is half of it


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


LARGE = 100 << 20  # bytes of a file


@pytest.fixture
def large(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A file of this kind, enlarged by zeros after the picture."""
    file = tmp_path / f"large.{request.param}"
    Image.new("RGB", (40, 30), (9, 8, 7)).save(file, progressive=request.param == "jpeg")
    os.truncate(file, LARGE)
    return file


@pytest.mark.parametrize("large", ["tiff", "png", "jpeg", "jpg"], indirect=True)
def test_a_large_file_does_not_cost_its_size_for_good(large: Path) -> None:
    images.decode(picture(1, 40, 30))
    before = resident()
    for _ in range(2):
        images.decode(large)
    assert resident() - before < LARGE // 4


@pytest.mark.parametrize("large", ["tiff", "png"], indirect=True)
def test_what_is_no_jpeg_is_not_read_whole(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, got = os.readv, 0

    def readv(*arguments: Any) -> int:
        nonlocal got
        got += (read := reads(*arguments))
        return read

    monkeypatch.setattr(os, "readv", readv)
    images.decode(large)
    assert 0 < got <= 1 << 20


@pytest.mark.parametrize("size", [0, 1, 2, 3, 700, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_files_of_any_size_are_read_whole(size: int, tmp_path: Path) -> None:
    data = (picture(1, 40, 30) + bytes(2 << 20))[:size]
    (tmp_path / "a.jpg").write_bytes(data)
    decoder = Decoder()
    for _ in range(2):
        assert decoder.read(tmp_path / "a.jpg") == Decoder().open(data)


@pytest.fixture
def small_pages() -> Iterator[None]:
    """Huge pages, which malloc has in `make test-long`, are as large as ROOM.  The kernel puts them together later."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0, os.strerror(ctypes.get_errno())
    yield
    prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("small_pages")
def test_memory_stays_flat() -> None:
    choose = random.Random(4)
    files = [picture(k, choose.randint(1, 70), choose.randint(1, 70)) for k in range(300)]
    broken = [file[: len(file) // 2] for file in files[:20]]
    row = torch.empty(3, 16, 16, dtype=torch.uint8)
    settled = 0
    for k in range(PICTURES):
        if k == SETTLED:
            settled = resident()
        if k % 1000 == 0:
            with pytest.raises(OSError, match="a picture of"):
                images.decode(broken[k // 1000 % len(broken)], size=(16, 16))
        images.decode(files[k % len(files)], size=(16, 16), out=row, flip=k % 2 == 0, exact=k % 3 > 0)
    assert resident() - settled < ROOM
