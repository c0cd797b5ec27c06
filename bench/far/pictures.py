"""Photographs as a network is trained on them: a random crop of each file, mirrored at random, as float32.

All loaders get their pictures from here, so only the loaders differ.
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from bench.core import jpegs

SIZE = 224
BYTES = 3 * SIZE * SIZE * 4  # of a picture
TRIES = 10  # before the whole picture is taken


class Pictures(Dataset[torch.Tensor]):
    """A crop of each file, 3x224x224 float32 from 0 to 1, decoded by PIL.  The files repeat, each time another crop.

    Args:
        folder: Where the files are.
        length: Samples in an epoch.
    """

    def __init__(self, folder: str, length: int) -> None:
        self._files = jpegs.files(Path(folder))
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self.pixels(index))

    def pixels(self, index: int) -> Any:
        """A sample as an array.  Its crop depends on its number alone, so all loaders have the same work."""
        from PIL import Image

        draw = random.Random(index)
        with Image.open(self._files[index % len(self._files)]) as opened:
            picture = opened.convert("RGB")
        box = _crop(picture.width, picture.height, draw)
        picture = picture.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box)
        if draw.random() < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        rows = np.ascontiguousarray(np.asarray(picture).transpose(2, 0, 1), np.float32)
        rows /= 255
        return rows


def _crop(width: int, height: int, draw: random.Random) -> tuple[int, int, int, int]:
    """A box as RandomResizedCrop draws it, 8 to 100 % of the area: left, top, right, bottom."""
    for _ in range(TRIES):
        area = width * height * draw.uniform(0.08, 1.0)
        shape = math.exp(draw.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, tall = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < wide <= width and 0 < tall <= height:
            left, top = draw.randint(0, width - wide), draw.randint(0, height - tall)
            return left, top, left + wide, top + tall
    return 0, 0, width, height
