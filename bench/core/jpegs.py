"""Photographs: the JPEG files of --data, or those that the bench makes, and a dataset that decodes and crops them."""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

SIZE = 224
WIDTH, HEIGHT, QUALITY = 500, 375, 93  # of the generated files; with their grain, about 110 KB
SUFFIXES = (".jpg", ".jpeg")


def make(folder: Path, count: int) -> None:
    """Write `count` pictures that cost a decoder as much as photographs: shades, edges and grain, about 110 KB each."""
    from PIL import Image, ImageDraw, ImageFilter

    for k in range(count):
        draw_from = random.Random(k)
        noise = np.random.default_rng(k)
        coarse = noise.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        draw = ImageDraw.Draw(picture)
        for _ in range(30):
            x, y = draw_from.randrange(WIDTH), draw_from.randrange(HEIGHT)
            size = draw_from.randrange(10, 120)
            draw.ellipse((x, y, x + size, y + size), fill=tuple(draw_from.randrange(256) for _ in range(3)))
        soft = np.asarray(picture.filter(ImageFilter.GaussianBlur(1)), dtype=np.int16)
        grain = noise.normal(0, 14, (*soft.shape[:2], 1)).astype(np.int16)
        Image.fromarray(np.clip(soft + grain, 0, 255).astype(np.uint8)).save(folder / f"{k}.jpg", quality=QUALITY)


def files(folder: Path) -> list[str]:
    """The JPEG files of a folder and its subfolders, sorted."""
    return sorted(str(path) for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)


@contextmanager
def given_or_made(given: Path | None, count: int) -> Iterator[tuple[str, list[str]]]:
    """A folder of JPEG files, and the files in it.  It is the given one, or a temporary one with `count` made files."""
    with tempfile.TemporaryDirectory() as made:
        folder = given.absolute() if given else Path(made)
        if given is None:
            make(folder, count)
        found = files(folder)
        if not found:
            sys.exit("--data: there are no JPEG files in that folder")
        yield str(folder), found


def described(found: list[str], given: Path | None) -> str:
    """How many files there are, where they come from, and their mean size."""
    size = sum(Path(path).stat().st_size for path in found) / len(found) / 1000
    return f"{len(found)} {'given' if given else 'made by the bench'}, mean {size:.0f} KB"


class Jpegs(Dataset[torch.Tensor]):
    """A crop of each file, 3x224x224 uint8.  The files repeat, each time with another crop.

    Args:
        folder: where the files are.
        decoder: "pil" or "simplejpeg" (which resizes with OpenCV).
        length: samples in an epoch.
    """

    def __init__(self, folder: str, decoder: str, length: int) -> None:
        self._files = files(Path(folder))
        if not self._files:
            raise FileNotFoundError("the folder of JPEG files has none")
        self._length = length
        self._decode = {"pil": _by_pil, "simplejpeg": _by_simplejpeg}[decoder]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        # The crop depends on the index alone, so that all loaders have the same work and the same batches.
        pixels = self._decode(self._files[index % len(self._files)], random.Random(index))
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def _crop(width: int, height: int, draw: random.Random) -> tuple[int, int, int, int]:
    """A box of half to all of the shorter side, anywhere: left, top, right, bottom."""
    side = int(min(width, height) * draw.uniform(0.5, 1.0))
    left, top = draw.randint(0, width - side), draw.randint(0, height - side)
    return left, top, left + side, top + side


def _by_pil(path: str, draw: random.Random) -> Any:
    from PIL import Image

    with Image.open(path) as opened:
        picture = opened.convert("RGB")
    box = _crop(picture.width, picture.height, draw)
    return np.array(picture.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box))


def _by_simplejpeg(path: str, draw: random.Random) -> Any:
    import cv2
    import simplejpeg

    cv2.setNumThreads(1)  # a worker has one core, and a fork must not inherit a pool of threads
    with open(path, "rb") as opened:
        pixels = simplejpeg.decode_jpeg(opened.read(), "RGB")
    left, top, right, bottom = _crop(pixels.shape[1], pixels.shape[0], draw)
    return cv2.resize(pixels[top:bottom, left:right], (SIZE, SIZE), interpolation=cv2.INTER_AREA)
