"""Decoding takes no more memory after a million pictures than after the first hundred thousand."""

from __future__ import annotations

import gc
import random
from pathlib import Path

import pytest
import torch
from test_images_folder import picture

from shmloader import images

PICTURES, SETTLED = 1_000_000, 100_000
ROOM = 2 << 20  # bytes: what an allocator may come to use otherwise; a byte lost a picture is half of it


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.long
@pytest.mark.timeout(3600)
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
