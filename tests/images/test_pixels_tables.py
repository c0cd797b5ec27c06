"""Look-ups: all bytes with many parameters, any number of them combined, and the row that they end in."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from shmloader.core import pixels

pytest.importorskip("PIL")
from PIL import Image, ImageEnhance, ImageOps
from pillow_says import any_picture

RAMP = Image.fromarray(np.arange(256, dtype=np.uint8)[None].repeat(3, 0).T.reshape(16, 16, 3).copy())
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def solarize_add(image: Image.Image, add: int, threshold: int) -> Image.Image:
    return image.point([min(255, v + add) if v < threshold else v for v in range(256)] * 3)


def cases(draw: random.Random) -> list[Any]:
    factor, threshold = (
        draw.choice([draw.uniform(0, 2), draw.uniform(-9, 9)]),
        draw.choice([draw.uniform(-1, 257), 128]),
    )
    bits, add = draw.randint(1, 8), draw.randint(0, 128)
    table = [draw.randrange(256) for _ in range(768)]
    return [
        (ImageEnhance.Brightness(RAMP).enhance(factor), lambda p: p.brightness(factor)),
        (ImageEnhance.Contrast(RAMP).enhance(factor), lambda p: p.contrast(factor)),
        (ImageOps.solarize(RAMP, threshold), lambda p: p.solarize(threshold)),  # type: ignore[arg-type]
        (ImageOps.posterize(RAMP, bits), lambda p: p.posterize(bits)),
        (solarize_add(RAMP, add, int(threshold)), lambda p: p.solarize_add(add, int(threshold))),
        (RAMP.point(table), lambda p: p.look_up(bytes(table))),
        (RAMP.point(table[:256] * 3), lambda p: p.look_up(bytes(table[:256]))),
        (ImageOps.invert(RAMP), lambda p: p.invert()),
    ]


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.parametrize("path", pixels.paths())
def test_all_bytes_by_many_parameters(path: str, count: int) -> None:
    draw, picture = random.Random(0), pixels.Picture(path)
    for _ in range(count):
        for number, (expected, here) in enumerate(cases(draw)):
            picture.load_image(RAMP)
            here(picture)
            assert picture.image().tobytes() == expected.tobytes(), number


def normalize_table(channels: int) -> torch.Tensor:
    numbers = torch.arange(256, dtype=torch.float32).expand(channels, 1, 256).clone()
    mean, std = (torch.tensor(values[:channels])[:, None, None] for values in (MEAN, STD))
    return numbers.div(255).sub_(mean).div_(std)


def normalized(image: Image.Image) -> torch.Tensor:
    """The numbers that torchvision's ToTensor and Normalize calculate."""
    pixels = torch.from_numpy(np.array(image)).reshape(image.size[1], image.size[0], -1).permute(2, 0, 1).contiguous()
    mean, std = (torch.tensor(values[: len(pixels)])[:, None, None] for values in (MEAN, STD))
    return pixels.to(torch.float32).div(255).sub_(mean).div_(std)


@pytest.mark.parametrize("path", pixels.paths())
def test_look_ups_and_scaling_are_one_pass(path: str) -> None:
    picture = pixels.Picture(path)
    for seed in range(40):
        draw = random.Random(seed)
        image = any_picture(draw)
        factor, bits = draw.uniform(0, 2), draw.randint(1, 8)
        expected = normalized(ImageOps.posterize(ImageEnhance.Brightness(image).enhance(factor), bits))
        picture.load_image(image)
        picture.brightness(factor)
        picture.posterize(bits)
        row = torch.full_like(expected, 7)
        picture.write(row.numpy(), normalize_table(len(expected)).numpy())
        assert torch.equal(row, expected)


def some_scales(seed: int, trials: int) -> np.ndarray:
    """times, by, mean and deviation of each channel: usual ones, and random ones."""
    draw = np.random.default_rng(seed)
    scales = np.ones((trials, 3, 4), np.float32)
    scales[:, :, 0] = draw.choice([1, 1, np.float32(1 / 255)], (trials, 1))
    scales[:, :, 1] = np.where(scales[:, :, 0] == 1, draw.choice([255, 1, 7.3, 249.1577606201172], (trials, 1)), 1)
    scales[:, :, 2], scales[:, :, 3] = draw.uniform(-1, 1, (trials, 3)), draw.uniform(0.01, 3, (trials, 3))
    scales[0, :, :] = [[1, 255, mean, std] for mean, std in zip(MEAN, STD, strict=True)]
    scales[1, :, 2:], scales[2, :, 2:], scales[3, :, 2:] = [0, 1], [0.5, 0.5], [0.5, 0]
    # Of ten million drawn at random, five were like these: products give another last bit for one to three bytes.
    scales[4, :] = [
        [1, 249.1577606201172, 0.6536744236946106, 1.6940191984176636],
        [1, 233.56649780273438, -0.6669420003890991, 0.4579673707485199],
        [1, 36.86199951171875, -0.4047442674636841, 1.649755835533142],
    ]
    return scales


@pytest.mark.parametrize("path", pixels.paths())
def test_numbers_are_those_of_the_divisions(path: str) -> None:
    """Products give the same, but for a few divisors.  Those are divided by."""
    picture, ramp = pixels.Picture(path), np.arange(256, dtype=np.uint8)
    picture.load_image(Image.fromarray(np.stack([ramp] * 3, axis=-1)[:, None]))
    row, plane = np.empty((3, 256, 1), np.float32), np.empty((3, 1, 256), np.float32)
    for scales in some_scales(1, 2000):
        times, by, mean, std = (scales[:, k : k + 1] for k in range(4))
        with np.errstate(all="ignore"):
            expected = (ramp.astype(np.float32) * times / by - mean) / std
        picture.write(row, expected, scales)
        assert row.tobytes() == expected.tobytes(), scales
        pixels.scale(np.stack([ramp] * 3)[:, None], plane, scales)
        assert plane.tobytes() == expected.tobytes(), scales


@pytest.mark.parametrize("path", pixels.paths())
@pytest.mark.parametrize("layout", ["planes", "pixels", "flipped"])
@pytest.mark.parametrize("item", [1, 2, 4])
def test_rows_of_any_layout(path: str, layout: str, item: int) -> None:
    picture, dtype = pixels.Picture(path), {1: np.uint8, 2: np.int16, 4: np.float32}[item]
    for seed in range(20):
        image = any_picture(random.Random(seed))
        picture.load_image(image)
        planes = np.asarray(image).reshape(image.size[1], image.size[0], -1).transpose(2, 0, 1)
        channels, height, width = planes.shape
        table = np.random.default_rng(seed).integers(0, 256, (channels, 256)).astype(dtype)
        expected = np.stack([table[c][planes[c]] for c in range(channels)])
        room = np.full((height, width, channels) if layout == "pixels" else (channels, height, width), 9, dtype)
        out = {
            "planes": room,
            "pixels": room.transpose(2, 0, 1) if room.ndim == 3 else room,
            "flipped": room[..., ::-1],
        }[layout]
        picture.write(out, table)
        assert np.array_equal(out, expected)
        at = out.__array_interface__["data"][0]
        out[:] = 9
        picture.write_at(at, out.strides, table)
        assert np.array_equal(out, expected)
        if item == 1:
            picture.write(out)
            assert np.array_equal(out, planes)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32])
def test_erase_is_what_torch_assigns(dtype: torch.dtype) -> None:
    draw = random.Random(3)
    for _ in range(60):
        channels, height, width = draw.choice([1, 3]), draw.randint(1, 30), draw.randint(1, 30)
        row = (torch.rand(channels, height, width) * 255).to(dtype)
        left, top = draw.randrange(width), draw.randrange(height)
        wide, high = draw.randint(0, width - left), draw.randint(0, height - top)
        shape = draw.choice([(1, 1, 1), (channels, 1, 1), (channels, high, wide)])
        value = (torch.randn(shape) * 50).abs().to(dtype)
        expected = row.clone()
        expected[:, top : top + high, left : left + wide] = value
        if value.numel():
            pixels.erase(row.numpy(), (left, top, wide, high), value.numpy())
        assert torch.equal(row, expected)
