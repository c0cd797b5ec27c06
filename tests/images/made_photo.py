"""Pictures like photographs, which need no file."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image


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
