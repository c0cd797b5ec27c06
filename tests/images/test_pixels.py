"""Operations on pixels give Pillow's bytes: each on random pictures with random parameters, on every path."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shmloader.core import pixels

pytest.importorskip("PIL")
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from pillow_says import MANY, affine_matrix, any_picture, fill_of, perspective_of, turned_hue

PATHS = pixels.paths()
FILTERS = (0, 2, 3)

# What Pillow does, and what a Picture does, for parameters drawn from a generator.
Case = Callable[[random.Random, Image.Image], tuple[Callable[[], Image.Image], Callable[[pixels.Picture], None]]]


def enhanced(kind: str, method: str) -> Case:
    def case(draw: random.Random, image: Image.Image) -> Any:
        factor = draw.choice([0.0, 1.0, 0.5, draw.uniform(0, 2), draw.uniform(-3, 6)])
        return lambda: getattr(ImageEnhance, kind)(image).enhance(factor), lambda p: getattr(p, method)(factor)

    return case


def blur(draw: random.Random, image: Image.Image) -> Any:
    radius = draw.choice([0, draw.uniform(0, 1), draw.uniform(0, 5), draw.uniform(0, 200)])
    if draw.random() < 0.3:
        down = draw.choice([0, draw.uniform(0, 9)])
        return lambda: image.filter(ImageFilter.GaussianBlur((radius, down))), lambda p: p.gaussian_blur(radius, down)
    return lambda: image.filter(ImageFilter.GaussianBlur(radius)), lambda p: p.gaussian_blur(radius)


def affine(draw: random.Random, image: Image.Image) -> Any:
    matrix, way, fill = affine_matrix(draw, image.size), draw.choice(FILTERS), fill_of(draw, image)
    size = image.size if draw.random() < 0.7 else (draw.randint(1, 300), draw.randint(1, 300))
    return (
        lambda: image.transform(size, Image.Transform.AFFINE, matrix, way, fillcolor=fill),
        lambda p: p.affine(matrix, way, fill, size),
    )


def perspective(draw: random.Random, image: Image.Image) -> Any:
    matrix, way, fill = perspective_of(draw, image.size), draw.choice(FILTERS), fill_of(draw, image)
    return (
        lambda: image.transform(image.size, Image.Transform.PERSPECTIVE, matrix, way, fillcolor=fill),
        lambda p: p.perspective(matrix, way, fill),
    )


def rotate(draw: random.Random, image: Image.Image) -> Any:
    angle = draw.choice([0, 90, 180, 270, 360, -90, draw.uniform(-360, 360), draw.randint(-30, 30)])
    way, expand, fill = draw.choice(FILTERS), draw.random() < 0.3, fill_of(draw, image)
    center = None if expand or draw.random() < 0.6 else (draw.uniform(-5, 300), draw.uniform(-5, 300))
    return (
        lambda: image.rotate(angle, way, expand, center, fillcolor=fill),
        lambda p: p.rotate(angle, way, expand, center, fill),
    )


def crop(draw: random.Random, image: Image.Image) -> Any:
    left, top = draw.randint(-50, 300), draw.randint(-50, 300)
    width, height = draw.randint(1, 300), draw.randint(1, 300)
    return (
        lambda: image.crop((left, top, left + width, top + height)),
        lambda p: p.crop(left, top, width, height),
    )


def pad(draw: random.Random, image: Image.Image) -> Any:
    mode = draw.choice(["constant", "edge", "reflect", "symmetric"])
    border = tuple(draw.choice([0, draw.randint(0, 9), draw.randint(0, 400)]) for _ in range(4))
    left, top, right, bottom = border
    fill = fill_of(draw, image)

    def pillow() -> Image.Image:
        if mode == "constant":
            return ImageOps.expand(image, border, 0 if fill is None else fill)
        pixels = np.asarray(image)
        sides = ((top, bottom), (left, right), (0, 0))[: pixels.ndim]
        return Image.fromarray(np.pad(pixels, sides, mode=mode))  # type: ignore[call-overload]

    return pillow, lambda p: p.pad(*border, mode, fill)


def hue(draw: random.Random, image: Image.Image) -> Any:
    factor = draw.choice([0.0, 0.5, -0.5, draw.uniform(-0.5, 0.5)])
    return lambda: turned_hue(image, factor), lambda p: p.hue(factor)


def gray(draw: random.Random, image: Image.Image) -> Any:
    channels = draw.choice([1, 3])
    mode = "L" if channels == 1 else "RGB"
    return lambda: image.convert("L").convert(mode), lambda p: p.grayscale(channels)


def blended(draw: random.Random, image: Image.Image) -> Any:
    other, alpha = any_picture(draw, image.size, image.mode), draw.choice([0.0, 1.0, draw.uniform(-1, 2)])

    def here(picture: pixels.Picture) -> None:
        second = pixels.Picture(picture.path)
        second.load_image(other)
        picture.blend(second, alpha)

    return lambda: Image.blend(image, other, alpha), here


def no_parameters(pillow: Callable[[Image.Image], Image.Image], method: str) -> Case:
    return lambda draw, image: (lambda: pillow(image), lambda p: getattr(p, method)())


CASES: dict[str, Case] = {
    "brightness": enhanced("Brightness", "brightness"),
    "contrast": enhanced("Contrast", "contrast"),
    "saturation": enhanced("Color", "saturation"),
    "sharpness": enhanced("Sharpness", "sharpness"),
    "hue": hue,
    "gray": gray,
    "blend": blended,
    "blur": blur,
    "affine": affine,
    "perspective": perspective,
    "rotate": rotate,
    "crop": crop,
    "pad": pad,
    "autocontrast": no_parameters(ImageOps.autocontrast, "autocontrast"),
    "equalize": no_parameters(ImageOps.equalize, "equalize"),
    "invert": no_parameters(ImageOps.invert, "invert"),
    "flip": no_parameters(ImageOps.mirror, "flip_left_right"),
    "flop": no_parameters(ImageOps.flip, "flip_top_bottom"),
}


def compare(name: str, seed: int, pictures: dict[str, pixels.Picture]) -> None:
    draw = random.Random(f"{name} {seed}")
    image = any_picture(draw)
    pillow, here = CASES[name](draw, image)
    expected = pillow()
    for path, picture in pictures.items():
        picture.load_image(image)
        here(picture)
        got = picture.image()
        assert (got.mode, got.size) == (expected.mode, expected.size), (name, seed, path)
        assert got.tobytes() == expected.tobytes(), (name, seed, path, image.size, image.mode)


@pytest.mark.parametrize("count", [40, pytest.param(MANY, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", CASES)
def test_it_gives_pillows_bytes(name: str, count: int) -> None:
    pictures = {path: pixels.Picture(path) for path in PATHS}
    for seed in range(count):
        compare(name, seed, pictures)


@pytest.mark.parametrize("seed", range(30))
def test_operations_in_a_row_give_what_pillow_gives(seed: int) -> None:
    """Pending look-ups, flips, grayscale and all other operations, in any order."""
    draw = random.Random(seed)
    image = any_picture(draw, (draw.randint(1, 90), draw.randint(1, 90)))
    pictures = [pixels.Picture(path) for path in PATHS]
    for picture in pictures:
        picture.load_image(image)
    for _ in range(draw.randint(1, 12)):
        pillow, here = CASES[draw.choice(list(CASES))](draw, image)
        image = pillow()
        for picture in pictures:
            here(picture)
    for picture in pictures:
        assert picture.image().tobytes() == image.tobytes()
