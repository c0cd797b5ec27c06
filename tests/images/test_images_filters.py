"""Resizing gives Pillow's pixels bit for bit with each of its filters, and similar ones with exact=False."""

from __future__ import annotations

import io
import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from jpeg_writer import SAMPLINGS, Noise, write
from made_photo import DOWN_FIRST, by_pillow, photo, saved
from PIL import Image

from shmloader import images
from shmloader.core import jpeg

Resampling = Image.Resampling
FILTERS = [Resampling(number) for number in range(6)]  # Pillow 13 has two more


@pytest.mark.parametrize("resample", FILTERS, ids=lambda filter: filter.name)
@pytest.mark.parametrize("path", jpeg.paths())
def test_any_crop_to_any_size(path: str, resample: Resampling) -> None:
    decoder, draw = jpeg.Decoder(path), random.Random(str(resample))
    for _ in range(60):
        width, height = draw.randint(1, 150), draw.randint(1, 150)
        is_wild = draw.random() < 0.5  # black beside white: where a filter that crosses 0 overshoots
        data = write(Noise(draw.randrange(999), width, height, draw.choice(list(SAMPLINGS.values())), is_wild=is_wild))
        assert decoder.open(data) is not None
        for _ in range(4):
            wide, high = draw.randint(1, width), draw.randint(1, height)
            crop = (draw.randint(0, width - wide), draw.randint(0, height - high), wide, high)
            # as it is, larger by a whole number (weights of 0 inside a filter), any, and so low that Pillow 13 goes
            # down first
            across = draw.choice((wide, 3 * wide, draw.randint(1, 90), draw.randint(1, wide)))
            down = draw.choice((high, 3 * high, draw.randint(1, 90), max(1, high // 6)))
            out = np.zeros((3, down, across), np.uint8)
            pixels = out[:, :, ::-1] if draw.random() < 0.5 else out
            assert decoder.decode(crop, pixels, True, DOWN_FIRST, filter=int(resample))
            assert np.array_equal(pixels, by_pillow(data, crop, (down, across), resample=resample)), (crop, out.shape)


@pytest.mark.parametrize("resample", FILTERS, ids=lambda filter: filter.name)
@pytest.mark.parametrize("path", jpeg.paths())
def test_a_window_that_begins_where_a_filter_is_zero(path: str, resample: Resampling) -> None:
    """Enlarged three times: every third column needs one of the picture's, and the next needs one more to its left."""
    decoder = jpeg.Decoder(path)
    data = write(Noise(5, 30, 20, SAMPLINGS["4:4:4"]))
    assert decoder.open(data) is not None
    whole = by_pillow(data, (0, 0, 30, 20), (60, 90), resample=resample)
    for begin in range(12):
        out = np.zeros((3, 40, 50), np.uint8)
        assert decoder.decode(
            (0, 0, 30, 20), out, True, DOWN_FIRST, window=(begin, begin, 90, 60), filter=int(resample)
        )
        assert np.array_equal(out, whole[:, begin : begin + 40, begin : begin + 50]), begin


@pytest.mark.parametrize("resample", FILTERS, ids=lambda filter: filter.name)
def test_not_exact_is_near_and_the_same_on_every_path(resample: Resampling) -> None:
    draw = random.Random(4)
    for subsampling in (0, 1, 2):
        data = saved(photo(500, 375, subsampling), quality=90, subsampling=subsampling)
        for _ in range(4):
            wide, high = draw.randint(60, 500), draw.randint(60, 375)
            crop = (draw.randint(0, 500 - wide), draw.randint(0, 375 - high), wide, high)
            outs = [np.zeros((3, 224, 224), np.uint8) for _ in jpeg.paths()]
            for name, out in zip(jpeg.paths(), outs, strict=True):
                decoder = jpeg.Decoder(name)
                assert decoder.open(data) is not None
                assert decoder.decode(crop, out, False, filter=int(resample))
                assert np.array_equal(out, outs[0]), (name, crop)
            differences = outs[0].astype(int) - by_pillow(data, crop, (224, 224), resample=resample)
            assert np.abs(differences).mean() < 1
            assert 10 * math.log10(255**2 / max(1e-9, (differences**2).mean())) > 45


@pytest.mark.parametrize("resample", [Resampling.BICUBIC, Resampling.LANCZOS], ids=lambda filter: filter.name)
def test_not_exact_overshoots_to_black_and_white_alone(resample: Resampling) -> None:
    """Black beside white in the strongest colours: a sum beyond either end must not wrap to the other."""
    for seed in range(30):
        data = write(Noise(seed, 60, 50, SAMPLINGS["4:2:0"], is_wild=True))
        outs = [np.zeros((3, 97, 131), np.uint8) for _ in jpeg.paths()]
        for name, out in zip(jpeg.paths(), outs, strict=True):
            decoder = jpeg.Decoder(name)
            assert decoder.open(data) is not None
            assert decoder.decode((0, 0, 60, 50), out, False, filter=int(resample))
            assert np.array_equal(out, outs[0]), (name, seed)
        exact = by_pillow(data, (0, 0, 60, 50), (97, 131), resample=resample).astype(int)
        assert np.abs(outs[0] - exact).mean() < 12, seed  # a sum that wraps is 255 away


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_by_any_of_its_names(kind: str) -> None:
    data = saved(photo(80, 60, 1), kind)
    for resample in FILTERS:
        expected = torch.from_numpy(by_pillow(data, (5, 6, 50, 40), (24, 30), resample=resample).copy())
        for named in (resample.name.lower(), resample.name, resample, int(resample)):
            got = images.decode(data, (5, 6, 50, 40), (24, 30), interpolation=named)
            assert torch.equal(got, expected), named
    bilinear = images.decode(data, size=(24, 30))
    assert torch.equal(bilinear, images.decode(data, size=(24, 30), interpolation="bilinear"))


@pytest.mark.parametrize("wrong", ["cubic", "nearest-exact", 6, -1, True, None, 2.0])
def test_no_filter(wrong: Any) -> None:
    data = saved(photo(20, 20, 1))
    for call in (images.training, images.evaluation):
        with pytest.raises(ValueError, match=r"is no filter\. Use one of: nearest, box"):
            call(8, interpolation=wrong)
    with pytest.raises(ValueError, match="is no filter"):
        images.decode(data, interpolation=wrong)
    decoder = jpeg.Decoder()
    assert decoder.open(data) is not None
    with pytest.raises(ValueError, match="there is no filter 6"):
        decoder.decode((0, 0, 20, 20), np.zeros((3, 8, 8), np.uint8), filter=6)


@pytest.mark.parametrize("name", ["bicubic", "lanczos", "box"])
def test_recipes_by_a_filter(name: str) -> None:
    data = saved(photo(90, 70, 2))
    image = Image.open(io.BytesIO(data)).convert("RGB")
    read = images.from_bytes(images.evaluation(32, resize=40, interpolation=name))
    resized = image.resize((int(40 * 90 / 70), 40), Resampling[name.upper()])
    left = round((resized.width - 32) / 2)
    expected = np.asarray(resized.crop((left, 4, left + 32, 36))).transpose(2, 0, 1)
    assert np.array_equal(read(data), expected)
    torch.manual_seed(3)
    trained = images.from_bytes(images.training(32, interpolation=name))(data)
    torch.manual_seed(3)
    assert not torch.equal(images.from_bytes(images.training(32))(data), trained)
