"""A picture in memory, a canvas on which it lies, and a mirrored one are resized as Pillow does it, byte for byte."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import pytest

from shmloader.core import jpeg, pixels
from shmloader.images.canvas import Canvas
from shmloader.images.decode import Picture, goes_down_first
from shmloader.images.random_numbers import drawing

pytest.importorskip("PIL")
from made_photo import photo, saved
from PIL import Image

SIDES = (1, 2, 15, 16, 17, 31, 32, 33, 64, 100)
MIRROR = Image.Transpose.FLIP_LEFT_RIGHT


def any_side(chance: random.Random) -> int:
    return chance.choice((*SIDES, chance.randint(1, 300)))


def any_pixels(chance: random.Random, mode: str) -> Any:
    width, height = any_side(chance), any_side(chance)
    shape = (height, width) if mode == "L" else (height, width, 3)
    values = np.random.default_rng(chance.randrange(1 << 32)).integers(0, 256, shape, np.uint8)
    return values // 255 * 255 if chance.random() < 0.3 else values  # filters that overshoot meet black and white


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("path", pixels.paths())
def test_a_canvas_is_resized_as_by_pillow(path: str, seed: int) -> None:
    chance, picture = random.Random(seed), pixels.Picture(path)
    for _ in range(40):
        mode = chance.choice(("RGB", "RGB", "L"))
        values = any_pixels(chance, mode)
        image = Image.fromarray(values)
        fill = tuple(chance.randrange(256) for _ in range(len(image.getbands())))
        canvas = None
        if chance.random() < 0.5:
            wide, high = image.width + chance.randint(0, 200), image.height + chance.randint(0, 200)
            place = chance.randint(0, wide - image.width), chance.randint(0, high - image.height)
            canvas, around = (wide, high, *place), Image.new(mode, (wide, high), fill)
            around.paste(image, place)
            image = around
        mirrored, flipped = chance.random() < 0.5, chance.random() < 0.5
        size, number = (any_side(chance), any_side(chance)), chance.randint(0, 5)
        said = (image.transpose(MIRROR) if mirrored else image).resize(size, number)
        window = None
        if chance.random() < 0.5:
            left, top = chance.randrange(size[0]), chance.randrange(size[1])
            window = left, top, chance.randint(1, size[0] - left), chance.randint(1, size[1] - top)
            said = said.crop((left, top, left + window[2], top + window[3]))
        picture.load(values)
        picture.resize(*size, number, goes_down_first(), window, canvas, fill, mirrored, flipped)
        assert picture.image().tobytes() == (said.transpose(MIRROR) if flipped else said).tobytes()


@pytest.mark.parametrize("is_flipped", [False, True])
@pytest.mark.parametrize("path", jpeg.paths())
def test_a_mirrored_crop_is_resized_as_by_pillow(path: str, is_flipped: bool) -> None:
    chance, decoder = random.Random(7), jpeg.Decoder(path)
    for subsampling in (0, 1, 2):
        file = saved(photo(97, 61), subsampling=subsampling)
        image = Image.open(io.BytesIO(file)).convert("RGB")
        decoder.open(file)
        for size in ((97, 61), (40, 61), (97, 30), (200, 150), (33, 7), (1, 1)):
            left, top = chance.randrange(90), chance.randrange(50)
            crop = left, top, chance.randint(1, 97 - left), chance.randint(1, 61 - top)
            if size == (97, 61):
                crop = 0, 0, 97, 61
            whole = image.crop((left, top, left + crop[2], top + crop[3])) if size != (97, 61) else image
            said = np.asarray(whole.transpose(MIRROR).resize(size, Image.Resampling.BILINEAR)).transpose(2, 0, 1)
            out = np.zeros(said.shape, np.uint8)
            row = out[:, :, ::-1] if is_flipped else out
            assert decoder.decode(crop, row, True, goes_down_first(), mirrored=True)
            np.testing.assert_array_equal(row, said)


def any_change(chance: random.Random, canvas: Canvas, image: Any) -> Any:
    """Change both alike; returns what Pillow made."""
    kind = chance.choice(("flip", "cut", "pad", "pad", "resize"))
    if kind == "flip":
        canvas.flip()
        return image.transpose(MIRROR)
    if kind == "cut":
        left, top = chance.randint(-20, image.width - 1), chance.randint(-20, image.height - 1)
        width, height = chance.randint(1, 120), chance.randint(1, 120)
        canvas.cut(left, top, width, height)
        return image.crop((left, top, left + width, top + height))
    if kind == "pad":
        left, top, right, bottom = (chance.randint(0, 30) for _ in range(4))
        fill = chance.choice(((0, 0, 0), (123, 117, 104)))
        canvas.pad(left, top, right, bottom, fill)
        padded = Image.new("RGB", (image.width + left + right, image.height + top + bottom), fill)
        padded.paste(image, (left, top))
        return padded
    size, number = (any_side(chance), any_side(chance)), chance.randint(0, 5)
    canvas.resize(size[1], size[0], number)
    return image.resize(size, number)


@pytest.mark.parametrize("seed", range(60))
def test_any_changes_give_pillows_pixels(seed: int) -> None:
    chance = random.Random(seed)
    file = saved(photo(any_side(chance), any_side(chance)), quality=90)
    image = Image.open(io.BytesIO(file)).convert("RGB")
    with Picture(file) as opened, drawing() as draws, Canvas(opened, draws, exact=True) as canvas:
        for _ in range(chance.randint(1, 6)):
            image = any_change(chance, canvas, image)
            assert (canvas.width, canvas.height) == image.size
        row = np.zeros((3, image.height, image.width), np.uint8)
        canvas.write(row)
    np.testing.assert_array_equal(row, np.asarray(image).transpose(2, 0, 1))


WRONG = (
    ({"width": 0, "height": 4}, "each side may be 1 to 65535"),
    ({"width": 4, "height": 4, "filter": 6}, "no filter 6"),
    ({"width": 4, "height": 4, "window": (2, 0, 3, 4)}, "not inside a picture of 4 x 4"),
    ({"width": 4, "height": 4, "canvas": (4, 6, 0, 3)}, "not inside the canvas"),
)


@pytest.mark.parametrize(("wrong", "says"), WRONG)
def test_what_cannot_be_resized_is_said(wrong: Any, says: str) -> None:
    picture = pixels.Picture()
    picture.load(np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(ValueError, match=says):
        picture.resize(**wrong)
