"""Pictures that need no file, and what Pillow makes of a file."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import PIL
from PIL import Image

DOWN_FIRST = int(PIL.__version__.split(".")[0]) >= 13  # whether Pillow resizes a low picture down first


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth colours with edges and a little noise, which give an encoder common coefficients."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    f = rng.uniform(0.02, 0.3, (3, 2))
    waves = np.stack([127 + 110 * np.sin(x * f[c, 0] + y * f[c, 1]) for c in range(3)], -1)
    waves[(x // 16 + y // 16) % 5 == 0] = rng.integers(0, 256, 3)
    return Image.fromarray(np.clip(waves + rng.normal(0, 6, waves.shape), 0, 255).astype(np.uint8))


def saved(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    """The file of a picture."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def picture(seed: int, width: int = 60, height: int = 48, kind: str = "JPEG", **options: Any) -> bytes:
    """The file of a soft picture: a few colours, enlarged."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return saved(Image.fromarray(coarse).resize((width, height)), kind, **options)


def by_pillow(
    data: bytes,
    crop: tuple[int, int, int, int] | None = None,
    size: tuple[int, int] | None = None,
    flip: bool = False,
    resample: Image.Resampling = Image.Resampling.BILINEAR,
) -> np.ndarray[Any, Any]:
    """The planes of a file that Pillow decodes, crops (left, top, width, height), resizes and mirrors."""
    image: Image.Image = Image.open(io.BytesIO(data)).convert("RGB")
    if crop:
        image = image.crop((crop[0], crop[1], crop[0] + crop[2], crop[1] + crop[3]))
    if size:
        image = image.resize(size[::-1], resample)
    if flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(image).transpose(2, 0, 1)
