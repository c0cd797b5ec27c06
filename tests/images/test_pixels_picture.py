"""A Picture keeps its memory, refuses what it cannot do, and is a buffer that a decoder writes to."""

from __future__ import annotations

import gc
import random
import resource
from collections.abc import Callable

import numpy as np
import pytest
import torch

from shmloader.core import pixels

pytest.importorskip("PIL")
from PIL import Image
from pillow_says import any_picture

WRONG: list[tuple[Callable[[pixels.Picture], object], str]] = [
    (lambda p: p.start(0, 5), "each side may be 1 to 65535"),
    (lambda p: p.start(5, 65536), "each side may be 1 to 65535"),
    (lambda p: p.start(5, 5, 2), "2 channels"),
    (lambda p: p.load(np.zeros((4, 4, 2), np.uint8)), "no array of bytes"),
    (lambda p: p.load(np.zeros((4, 4), np.float32)), "no array of bytes"),
    (lambda p: p.load_image(Image.new("CMYK", (4, 4))), "mode CMYK"),
    (lambda p: p.write(np.zeros((3, 4, 5), np.uint8)), "no array of shape"),
    (lambda p: p.write(np.zeros((3, 4, 4), np.float32)), "items of 4 bytes"),
    (lambda p: p.write(np.zeros((3, 4, 4), np.float32), np.zeros((3, 256), np.int16)), "items of 4 bytes"),
    (lambda p: p.write(np.zeros((3, 4, 4), np.float32), np.zeros((1, 256), np.float32)), "3 x 256"),
    (lambda p: p.look_up(bytes(300)), "256 or 768"),
    (lambda p: p.posterize(9), "bits=9"),
    (lambda p: p.hue(float("nan")), "hue by nan"),
    (lambda p: p.grayscale(2), "2 channels"),
    (lambda p: p.permute((0, 1, 3)), "channels 0, 1 and 2"),
    (lambda p: p.gaussian_blur(float("inf")), "blur by inf"),
    (lambda p: p.convolve(np.zeros(2, np.float32), np.ones(1, np.float32)), "odd"),
    (lambda p: p.convolve_window(np.ones((3, 2), np.float32)), "odd"),
    (lambda p: p.affine((1, 2, 3), 0), "3 coefficients"),
    (lambda p: p.affine((1, 0, 0, 0, 1, 0), 1), "interpolation 1"),
    (lambda p: p.affine((1, 0, 0, 0, 1, 0), 0, (1, 2)), "colour of 2"),
    (lambda p: p.affine((1, 0, 0, 0, 1, 0), 0, None, (0, 4)), "each side"),
    (lambda p: p.crop(0, 0, 0, 4), "each side"),
    (lambda p: p.crop(1 << 40, 0, 4, 4), "each side"),
    (lambda p: p.pad(1, 1, 1, 1, "mirror"), "mode='mirror'"),
    (lambda p: p.pad(-4, 0, 0, 0, "edge"), "each side"),
    (lambda p: p.erase((0, 0, 5, 1)), "not inside"),
    (lambda p: pixels.Picture("sse9"), "sse9"),
]


@pytest.mark.parametrize(("call", "says"), WRONG)
def test_what_cannot_be_is_said(call: Callable[[pixels.Picture], object], says: str) -> None:
    picture = pixels.Picture()
    picture.load(np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(ValueError, match=says):
        call(picture)


def test_without_a_picture_nothing_can_be_done() -> None:
    picture = pixels.Picture()
    for call in (picture.invert, picture.image, picture.equalize):
        with pytest.raises(ValueError, match="no picture yet"):
            call()
    with pytest.raises((BufferError, ValueError)):
        np.asarray(memoryview(picture))


def test_it_is_a_buffer_and_cannot_change_while_one_is_held() -> None:
    picture = pixels.Picture()
    picture.load(np.arange(60, dtype=np.uint8).reshape(4, 5, 3))
    picture.invert()
    with memoryview(picture) as view:
        assert view.shape == (3, 4, 5) and view.strides == (1, 20, 4) and not view.readonly
        assert np.array_equal(np.asarray(view).transpose(1, 2, 0), 255 - np.arange(60).reshape(4, 5, 3))
        for call in (picture.invert, picture.equalize, lambda: picture.start(9, 9), lambda: picture.flip_left_right()):
            with pytest.raises(BufferError, match="views of this picture"):
                call()
    picture.invert()
    assert np.array_equal(np.asarray(picture).transpose(1, 2, 0), np.arange(60).reshape(4, 5, 3))


def test_arrays_of_any_layout_are_loaded() -> None:
    picture = pixels.Picture()
    values = np.random.default_rng(0).integers(0, 256, (7, 9, 4), np.uint8)
    for array in (values, values[::-1, ::2], values[..., :3], np.asfortranarray(values[..., 2::-1])):
        picture.load(array)
        assert np.array_equal(np.asarray(picture), array[..., :3].transpose(2, 0, 1))
    picture.load(values[..., 0])
    assert picture.channels == 1 and picture.image().mode == "L"
    assert np.array_equal(np.asarray(picture.image()), values[..., 0])
    picture.load(torch.from_numpy(values[..., :3]).permute(0, 1, 2).numpy())
    assert picture.channels == 3


def test_permute_and_erase() -> None:
    picture = pixels.Picture()
    values = np.random.default_rng(1).integers(0, 256, (6, 5, 3), np.uint8)
    picture.load(values)
    picture.permute((2, 0, 0))
    picture.invert()
    picture.erase((1, 2, 3, 4), (1, 2, 3))
    expected = 255 - values[..., [2, 0, 0]]
    expected[2:6, 1:4] = (1, 2, 3)
    assert np.array_equal(np.asarray(picture).transpose(1, 2, 0), expected)


def test_convolution_is_within_one_of_a_sum_in_double() -> None:
    for seed in range(12):
        draw = random.Random(seed)
        image = any_picture(draw, (draw.randint(12, 60), draw.randint(12, 60)), "RGB")
        sides = []
        for _ in range(2):
            n = draw.choice([1, 3, 9, 23])
            at = np.arange(n) - n // 2
            weights = np.exp(-0.5 * (at / draw.uniform(0.1, 2)) ** 2)
            sides.append((weights / weights.sum()).astype(np.float32))
        array = np.asarray(image).astype(float)
        halves = [(len(weights) // 2,) * 2 for weights in sides]
        expected = np.pad(array, (halves[1], halves[0], (0, 0)), mode="reflect")
        expected = sum(w * expected[:, k : k + array.shape[1]] for k, w in enumerate(sides[0]))  # type: ignore[assignment]
        expected = sum(w * expected[k : k + array.shape[0]] for k, w in enumerate(sides[1]))  # type: ignore[assignment]
        for path in pixels.paths():
            picture = pixels.Picture(path)
            picture.load_image(image)
            picture.convolve(*sides)
            assert np.abs(np.asarray(picture).transpose(1, 2, 0) - np.rint(expected)).max() <= 1


def test_memory_stays_after_the_largest_picture() -> None:
    picture, draw = pixels.Picture(), random.Random(0)
    sizes = [(400, 300)] + [(draw.randint(1, 400), draw.randint(1, 300)) for _ in range(300)]
    images = [any_picture(draw, size) for size in sizes[:20]]
    peak = 0
    for turn in range(60):
        picture.load_image(images[turn % 20])
        picture.gaussian_blur(2)
        picture.affine((0.9, 0.1, 0, 0.1, 0.9, 0), 3)
        picture.sharpness(2)
        if turn == 20:
            gc.collect()
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 8 << 10


def test_a_window_of_weights_is_added_up_row_by_row() -> None:
    """With one rounding for each weight, as a fused multiply-add has it; some paths have none."""
    random = np.random.default_rng(5)
    did = []
    sizes = [(7, 9, 3, 5), (33, 40, 9, 9), (1, 20, 1, 3), (4, 4, 7, 7), (50, 70, 1, 1), (12, 3, 23, 5), (4, 4, 9, 1)]
    for height, width, down, across in sizes:
        weights = random.uniform(-1, 1, (down, across)).astype(np.float32)
        weights *= np.float32(1) / weights.sum() if abs(weights.sum()) > 1 else np.float32(0.5)
        array = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
        rows, columns = (np.pad(np.arange(n), k // 2, mode="reflect") for n, k in ((height, down), (width, across)))
        sums = np.zeros((height, width, 3), np.float32)
        for y in range(down):
            for x in range(across):
                part = array[rows[y : y + height]][:, columns[x : x + width]].astype(np.float64)
                sums = (part * np.float64(weights[y, x]) + sums).astype(np.float32)  # exact, and rounded once
        picture = pixels.Picture()
        picture.load(array)
        did.append(picture.convolve_window(weights))
        is_mirrored = down // 2 < height and across // 2 < width
        assert is_mirrored or not did[-1]
        expected = np.clip(np.rint(sums), 0, 255) if did[-1] else array
        np.testing.assert_array_equal(np.asarray(picture).transpose(1, 2, 0), expected)
    assert did == [True] * 6 + [False] or not any(did)
    plain = pixels.Picture("plain")
    plain.load(array)
    assert not plain.convolve_window(np.ones((1, 1), np.float32))
