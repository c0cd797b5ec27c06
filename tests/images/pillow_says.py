"""Random pictures and parameters for operations on pixels, and the results of torchvision on PIL images."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
from PIL import Image

MANY = 2000


def any_picture(draw: random.Random, size: tuple[int, int] | None = None, mode: str | None = None) -> Image.Image:
    """Noise, a soft picture, few colours, one colour, or black; RGB, sometimes L; 1 x 1 to 300 x 300."""
    if size is None:
        most = draw.choice([3, 40, 40, 300])
        size = draw.randint(1, most), draw.randint(1, most)
    mode = mode or draw.choice(["RGB", "RGB", "RGB", "L"])
    shape = (size[1], size[0], 3)
    noise = np.random.default_rng(draw.getrandbits(32))
    kind = draw.randrange(6)
    if kind == 0:
        pixels = np.zeros(shape, np.uint8)
    elif kind == 1:
        pixels = np.broadcast_to(noise.integers(0, 256, 3, np.uint8), shape)
    elif kind == 2:
        pixels = noise.choice(np.array([0, 1, 127, 128, 254, 255], np.uint8), shape)
    elif kind == 3:
        few = noise.integers(0, 256, shape, np.uint8)
        small = Image.fromarray(few).resize((1 + size[0] // 9, 1 + size[1] // 9))
        return small.resize(size, Image.Resampling.BICUBIC).convert(mode)
    else:
        pixels = noise.integers(0, 256, shape, np.uint8)
    return Image.fromarray(np.ascontiguousarray(pixels)).convert(mode)


def fill_of(draw: random.Random, image: Image.Image) -> Any:
    if draw.random() < 0.3:
        return None
    colour = tuple(draw.randrange(256) for _ in range(3))
    return colour if image.mode == "RGB" else colour[0]


def affine_matrix(draw: random.Random, size: tuple[int, int]) -> tuple[float, ...]:
    """A rotation, a shear, a move by whole pixels or not, a scale, any matrix, or places far outside."""
    kind, width, height = draw.randrange(8), *size
    by = draw.uniform(-1, 1)
    if kind == 0:
        return (1.0, by, draw.choice([0.0, -by * height / 2]), 0.0, 1.0, 0.0)
    if kind == 1:
        return (1.0, 0.0, 0.0, by, 1.0, draw.choice([0.0, -by * width / 2]))
    if kind == 2:
        return (1.0, 0.0, float(draw.randint(-width, width)), 0.0, 1.0, float(draw.randint(-height, height)))
    if kind == 3:
        return (1.0, 0.0, draw.uniform(-width, width), 0.0, 1.0, draw.choice([0.0, draw.uniform(-height, height)]))
    if kind == 4:
        return (draw.uniform(-3, 3), 0.0, draw.uniform(0, width), 0.0, draw.uniform(-3, 3), draw.uniform(0, height))
    if kind == 5:
        large = 10.0 ** draw.randint(1, 7)
        return tuple(draw.uniform(-large, large) for _ in range(6))
    angle, scale = draw.uniform(-math.pi, math.pi), draw.uniform(0.3, 3)
    a, b = scale * math.cos(angle), scale * math.sin(angle)
    return (a, b, width / 2 - (a * width + b * height) / 2, -b, a, height / 2 - (-b * width + a * height) / 2)


def perspective_of(draw: random.Random, size: tuple[int, int]) -> tuple[float, ...]:
    """Coefficients that move the corners by up to half of the picture."""
    width, height = size
    start = [(0, 0), (width, 0), (width, height), (0, height)]
    end = [(x + draw.uniform(-0.5, 0.5) * width, y + draw.uniform(-0.5, 0.5) * height) for x, y in start]
    equations = []
    for (x, y), (u, v) in zip(end, start, strict=True):
        equations.append([x, y, 1, 0, 0, 0, -u * x, -u * y])
        equations.append([0, 0, 0, x, y, 1, -v * x, -v * y])
    solved = np.linalg.lstsq(np.array(equations, float), np.array(start, float).reshape(8), rcond=None)[0]
    return tuple(float(value) for value in solved)


def turned_hue(image: Image.Image, factor: float) -> Image.Image:
    """torchvision's adjust_hue."""
    if image.mode == "L":
        return image
    h, s, v = image.convert("HSV").split()
    turned = (np.asarray(h).astype(np.int32) + int(factor * 255)).astype(np.uint8)
    return Image.merge("HSV", (Image.fromarray(turned), s, v)).convert("RGB")
