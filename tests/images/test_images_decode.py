"""images.decode gives Pillow's pixels bit for bit, whatever the file; and its errors."""

from __future__ import annotations

import builtins
import concurrent.futures
import io
import itertools
import math
import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jpeg_writer import SAMPLINGS, Noise, write
from made_photo import DOWN_FIRST, by_pillow, photo, saved
from PIL import Image, ImageOps, UnidentifiedImageError

from shmloader import images
from shmloader.core import jpeg
from tests.images import torchvision_stand_ins as tv

Array = np.ndarray[Any, Any]


def long(*values: Any) -> Any:
    """Parameters of a test that takes long."""
    return pytest.param(*values, marks=pytest.mark.long)


def ours(path: str, data: bytes, crop: tuple[int, int, int, int], out: Array, **options: Any) -> bool:
    """Whether our own decoder took the file, with this way of decoding."""
    decoder = jpeg.Decoder(path)
    return decoder.open(data) is not None and decoder.decode(crop, out, down_first=DOWN_FIRST, **options)


def whole(path: str, data: bytes, width: int, height: int) -> Array | None:
    out = np.full((3, height, width), 7, np.uint8)
    return out if ours(path, data, (0, 0, width, height), out) else None


@pytest.fixture(params=jpeg.paths())
def path(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# ---------------------------------------------------------------------------------------------------- whole pictures


@pytest.mark.parametrize(("is_wild", "all_sizes"), [(False, False), (True, False), long(False, True)])
@pytest.mark.parametrize("sampling", list(SAMPLINGS))
def test_any_coefficients_in_any_sampling(path: str, sampling: str, is_wild: bool, all_sizes: bool) -> None:
    rng = random.Random(f"{sampling} {is_wild}")
    sizes = [(1, 1), (2, 1), (1, 2), (3, 3), (8, 8), (16, 17), (33, 15)]
    sizes += [(rng.randint(1, 70), rng.randint(1, 70)) for _ in range(13)]
    if all_sizes:
        sizes = list(itertools.product(range(1, 66, 2), repeat=2))
    for seed, (width, height) in enumerate(sizes):
        noise = Noise(seed, width, height, SAMPLINGS[sampling], rng.choice((0, 0, 1, 3, 7)), is_wild)
        data = write(noise)
        got = whole(path, data, width, height)
        assert got is not None and np.array_equal(got, by_pillow(data)), noise


@pytest.mark.parametrize("sampling", ["4:1:0", "4:2:0", "grey"])
def test_the_longest_mcus(path: str, sampling: str) -> None:
    """A scan is read in pieces; each ends as close to its limit as the longest MCU allows."""
    for width in range(32, 168, 8):
        data = write(Noise(width, width, 96, SAMPLINGS[sampling], is_longest=True))
        assert np.array_equal(whole(path, data, width, 96), by_pillow(data)), width


@pytest.mark.parametrize("seed", range(8))
def test_short_blocks_that_end_with_their_last_coefficient(path: str, seed: int) -> None:
    """No end of block follows the last coefficient, and a look-up finds the next block's first bits beside it.

    The reader takes them back, also behind the place where the next piece of the scan begins.
    """
    data = write(Noise(seed, 1024, 1024, SAMPLINGS["grey"], is_shortest=True))
    assert np.array_equal(whole(path, data, 1024, 1024), by_pillow(data))


QUALITIES, SIZES = (1, 50, 75, 95, 100), ((1, 1), (17, 31), (64, 64), (90, 47))
FORMS = ({}, {"optimize": True}, {"restart_marker_rows": 1}, {"restart_marker_blocks": 2})
TEN_SIZES = ((1, 1), (2, 3), (8, 8), (15, 17), (40, 9), (64, 64), (65, 33), (100, 75), (127, 129), (224, 200))
SMALL_SIZES = tuple(itertools.product(range(1, 66), repeat=2))
WRITTEN: list[Any] = [(QUALITIES, SIZES, FORMS, subsampling) for subsampling in (0, 1, 2, "grey")]
WRITTEN += [long(QUALITIES, SMALL_SIZES, FORMS[:1], subsampling) for subsampling in (0, 1, 2)]
WRITTEN += [long(range(1, 101), TEN_SIZES, FORMS[:1], subsampling) for subsampling in (0, 1, 2)]


@pytest.mark.parametrize(("qualities", "sizes", "forms", "subsampling"), WRITTEN)
def test_what_pillow_writes(path: str, qualities: Any, sizes: Any, forms: Any, subsampling: Any) -> None:
    for quality, (width, height) in itertools.product(qualities, sizes):
        image = photo(width, height, quality)
        for options in forms:
            grey = subsampling == "grey"
            data = saved(
                image.convert("L") if grey else image,
                quality=quality,
                subsampling=0 if grey else subsampling,
                **options,
            )
            got = whole(path, data, width, height)
            assert got is not None and np.array_equal(got, by_pillow(data)), (quality, width, height, options)


@pytest.mark.long
@pytest.mark.parametrize("sampling", ["444", "422", "420", "440", "411"])
def test_chroma_repeated_as_libjpeg_turbo_does(path: str, sampling: str) -> None:
    simplejpeg = pytest.importorskip("simplejpeg")
    for width, height, quality in itertools.product(range(1, 66, 3), range(1, 66, 3), (50, 95)):
        pixels = np.ascontiguousarray(photo(width, height))
        data = simplejpeg.encode_jpeg(pixels, quality, "RGB", sampling)
        expected = simplejpeg.decode_jpeg(data, "RGB", fastdct=False, fastupsample=True).transpose(2, 0, 1)
        out = np.zeros((3, height, width), np.uint8)
        assert ours(path, data, (0, 0, width, height), out, smooth=False)
        assert np.array_equal(out, expected), (width, height, quality)


# ------------------------------------------------------------------------------------------------- crop, resize, flip


def boxes(seed: int, count: int) -> Iterator[tuple[Noise, tuple[int, int, int, int], tuple[int, int], bool]]:
    """Pictures, crops, sizes and flips."""
    rng = random.Random(seed)
    for k in range(count):
        width, height = rng.randint(1, 120), rng.randint(1, 120)
        wide, high = rng.randint(1, width), rng.randint(1, height)
        crop = (rng.randint(0, width - wide), rng.randint(0, height - high), wide, high)
        size = rng.choice([(high, wide), (high, 40), (50, wide), (32, 32), (rng.randint(1, 99), rng.randint(1, 99))])
        factors = rng.choice(list(SAMPLINGS.values()))
        yield Noise(seed + k, width, height, factors, rng.choice((0, 0, 2))), crop, size, rng.random() < 0.5


def rows(size: tuple[int, int], is_interleaved: bool) -> Array:
    """An array for a result, with a margin that must not change."""
    height, width = size
    if is_interleaved:
        return np.full((height + 2, width + 2, 3), 7, np.uint8).transpose(2, 0, 1)
    return np.full((3, height + 2, width + 2), 7, np.uint8)


@pytest.mark.parametrize("is_interleaved", [False, True])
def test_parts(path: str, is_interleaved: bool) -> None:
    for noise, crop, size, flip in boxes(1, 150):
        data = write(noise)
        around = rows(size, is_interleaved)
        out = around[:, 1:-1, 1:-1]
        assert ours(path, data, crop, out[:, :, ::-1] if flip else out)
        assert np.array_equal(out, by_pillow(data, crop, size, flip)), (noise, crop, size, flip)
        around[:, 1:-1, 1:-1] = 7
        assert (around == 7).all()


def test_parts_of_a_photograph(path: str) -> None:
    rng = random.Random(2)
    for subsampling in (0, 1, 2):
        data = saved(photo(500, 375), quality=90, subsampling=subsampling)
        for _ in range(15):
            wide, high = rng.randint(30, 500), rng.randint(30, 375)
            crop = (rng.randint(0, 500 - wide), rng.randint(0, 375 - high), wide, high)
            out = np.zeros((3, 224, 224), np.uint8)
            assert ours(path, data, crop, out)
            assert np.array_equal(out, by_pillow(data, crop, (224, 224))), (subsampling, crop)


def test_fast_is_the_same_on_every_path_and_within_a_shade() -> None:
    rng = random.Random(3)
    squares, worst = [], 0.0
    for subsampling in (0, 1, 2):
        data = saved(photo(500, 375, subsampling), quality=90, subsampling=subsampling)
        for _ in range(10):
            wide, high = rng.randint(60, 500), rng.randint(60, 375)
            crop = (rng.randint(0, 500 - wide), rng.randint(0, 375 - high), wide, high)
            outs = [np.zeros((3, 224, 224), np.uint8) for _ in jpeg.paths()]
            for name, out in zip(jpeg.paths(), outs, strict=True):
                assert ours(name, data, crop, out, exact=False)
                assert np.array_equal(out, outs[0]), (name, subsampling, crop)
            differences = outs[0].astype(int) - by_pillow(data, crop, (224, 224))
            squares.append((differences**2).mean())
            worst = max(worst, np.abs(differences).mean())
    assert 10 * math.log10(255**2 / np.mean(squares)) >= 53 and worst <= 0.5


@pytest.mark.parametrize("sampling", list(SAMPLINGS))
def test_fast_is_near_in_any_sampling(path: str, sampling: str) -> None:
    data = write(Noise(3, 151, 133, SAMPLINGS[sampling]))
    for crop in ((0, 0, 151, 133), (7, 5, 100, 90), (51, 44, 90, 80)):
        exact, fast = np.zeros((2, 3, 60, 64), np.uint8)
        assert ours(path, data, crop, exact) and ours(path, data, crop, fast, exact=False)
        assert np.abs(fast - exact.astype(int)).mean() <= 0.5, crop


def test_fast_on_noise_is_the_same_on_every_path() -> None:
    for noise, crop, size, flip in boxes(5000, 150):
        data = write(noise)
        outs = [np.zeros((3, *size), np.uint8) for _ in jpeg.paths()]
        for name, out in zip(jpeg.paths(), outs, strict=True):
            assert ours(name, data, crop, out[:, :, ::-1] if flip else out, exact=False)
            assert np.array_equal(out, outs[0]), (name, noise, crop, size)


# ------------------------------------------------------------------------------------------------------- decode itself


def test_bytes_paths_and_tensors_give_the_same(tmp_path: Path) -> None:
    data = saved(photo(60, 40))
    file = tmp_path / "a.jpg"
    file.write_bytes(data)
    expected = torch.from_numpy(by_pillow(data).copy())
    tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    for source in (file, str(file), data, bytearray(data), memoryview(data), np.frombuffer(data, np.uint8), tensor):
        got = images.decode(source)
        assert got.dtype == torch.uint8 and got.is_contiguous() and torch.equal(got, expected)


def test_every_option_at_once() -> None:
    data = saved(photo(60, 40))
    crop, size = (3, 5, 50, 30), (20, 24)
    expected = torch.from_numpy(by_pillow(data, crop, size, True).copy())
    assert torch.equal(images.decode(data, crop, size, True), expected)
    out = torch.zeros(2, 20, 24, 3, dtype=torch.uint8)
    view = out[1].permute(2, 0, 1)
    assert images.decode(data, crop, size, True, out=view) is view
    assert torch.equal(view, expected) and not out[0].any()
    array = np.zeros((3, 20, 24), np.uint8)
    assert images.decode(data, crop, size, True, array) is array and np.array_equal(array, expected)


CMYK = photo(50, 40).convert("CMYK")
OTHERS = {
    "progressive": saved(photo(50, 40), progressive=True),
    "CMYK": saved(CMYK),
    "PNG": saved(photo(50, 40), "PNG"),
    "palette": saved(photo(50, 40).quantize(16), "PNG"),
    "WebP": saved(photo(50, 40), "WEBP", lossless=True),
    "grey PNG": saved(photo(50, 40).convert("L"), "PNG"),
    "RGB by Adobe's marker": write(
        Noise(1, 50, 40, SAMPLINGS["4:4:4"], markers=b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0\0")
    ),
    "RGB by its components' names": write(Noise(1, 50, 40, SAMPLINGS["4:4:4"], names=b"RGB")),
}


@pytest.mark.parametrize("kind", list(OTHERS))
def test_what_is_not_ours_is_pillows(kind: str, tmp_path: Path) -> None:
    data, crop, size = OTHERS[kind], (3, 5, 40, 30), (20, 24)
    file = tmp_path / "picture"
    file.write_bytes(data)
    before = images.counts()["pillow"]
    for source in (data, file):
        assert np.array_equal(images.decode(source), by_pillow(data))
        assert np.array_equal(images.decode(source, crop, size, True), by_pillow(data, crop, size, True))
    assert images.counts()["pillow"] == before + 4


def test_ours_is_counted() -> None:
    before = images.counts()
    images.decode(saved(photo(20, 20)))
    assert images.counts() == before | {"decoded": before["decoded"] + 1}


@pytest.mark.parametrize(
    "options",
    [
        {"markers": b"\xff\xe0\0\x10JFIF\0\1\1\0\0\1\0\1\0\0", "names": b"RGB"},  # JFIF goes before names
        {"markers": b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0\1"},
        {"names": b"\0\1\2"},
        {"frame": 0xC1},
        {"markers": b"\xff\xff\xff\xfe\0\4hi"},  # fill bytes, and a comment
    ],
)
def test_markers_that_are_ours(path: str, options: dict[str, Any]) -> None:
    data = write(Noise(3, 40, 30, **options))
    got = whole(path, data, 40, 30)
    assert got is not None and np.array_equal(got, by_pillow(data))


def exif(orientation: int, order: str) -> bytes:
    """A marker with an orientation, in TIFF's little-endian or big-endian order."""
    width, found = number(order, "I", 50), number(order, "H", orientation)
    return app1(exif_of((0x0100, 4, 1, width), (0x0112, 3, 1, found), order=order))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_upright_where_asked(orientation: int, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write(Noise(4, 50, 30, markers=exif(orientation, order)))
    image = Image.open(io.BytesIO(data))
    assert image.getexif().get(0x0112) == orientation
    expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(images.decode(data), by_pillow(data))
    assert np.array_equal(images.decode(data, rotate=True), expected)
    assert np.array_equal(images.decode(data, rotate=True, flip=True), expected[:, :, ::-1])
    monkeypatch.setitem(images.decode.__globals__, "Decoder", NobodysDecoder)
    monkeypatch.setitem(images.decode.__globals__, "_idle", [])
    assert np.array_equal(images.decode(data, rotate=True), expected)
    assert np.array_equal(images.decode(data, rotate=True, flip=True), expected[:, :, ::-1])


def segment(marker: int, payload: bytes) -> bytes:
    return bytes((0xFF, marker)) + struct.pack(">H", 2 + len(payload)) + payload


def app1(payload: bytes) -> bytes:
    return segment(0xE1, payload)


def exif_of(*entries: tuple[int, int, int, bytes], order: str = "<", after: bytes = b"") -> bytes:
    """The payload of an EXIF marker: each entry is a tag, a type, a count and four bytes."""
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "IH", 8, len(entries))
    packed = [struct.pack(order + "HHI", tag, kind, count) + value for tag, kind, count, value in entries]
    return b"Exif\0\0" + head + b"".join(packed) + bytes(4) + after


def number(order: str, form: str, value: int | float) -> bytes:
    return struct.pack(order + form, value).ljust(4, b"\0")


# where the values of entries lie that have more than four bytes, behind one entry and behind two
ONE, TWO = struct.pack("<I", 26), struct.pack("<I", 38)
TYPES = {
    "BYTE": (1, "B"),
    "SBYTE": (6, "b"),
    "SSHORT": (8, "h"),
    "LONG": (4, "I"),
    "SLONG": (9, "i"),
    "FLOAT": (11, "f"),
}
TYPES |= {"IFD": (13, "I"), "UNDEFINED": (7, "B")}
ODD = {
    **{
        f"{name} {order}": app1(exif_of((0x0112, kind, 1, number(order, form, 6)), order=order))
        for name, (kind, form) in TYPES.items()
        for order in "<>"
    },
    "RATIONAL": app1(exif_of((0x0112, 5, 1, ONE), after=struct.pack("<II", 12, 2))),
    "DOUBLE": app1(exif_of((0x0112, 12, 1, ONE), after=struct.pack("<d", 6))),
    "half": app1(exif_of((0x0112, 5, 1, ONE), after=struct.pack("<II", 13, 2))),
    "count 0": app1(exif_of((0x0112, 3, 0, number("<", "H", 6)))),
    "count 0, then 1": app1(exif_of((0x0112, 3, 0, number("<", "H", 6)), (0x0112, 3, 1, number("<", "H", 3)))),
    "twice": app1(exif_of((0x0112, 3, 1, number("<", "H", 6)), (0x0112, 3, 1, number("<", "H", 3)))),
    "count 2": app1(exif_of((0x0112, 3, 2, struct.pack("<HH", 6, 3)))),
    "too large": app1(exif_of((0x0112, 3, 1, number("<", "H", 9)))),
    "zero": app1(exif_of((0x0112, 3, 1, number("<", "H", 0)))),
    "a tag before it lies outside": app1(exif_of((0x010F, 2, 90, TWO), (0x0112, 3, 1, number("<", "H", 6)))),
    "a tag before it lies inside": app1(
        exif_of((0x010F, 2, 9, TWO), (0x0112, 3, 1, number("<", "H", 6)), after=b"a camera\0")
    ),
    "a tag of no type before it": app1(exif_of((0x010F, 99, 9, TWO), (0x0112, 3, 1, number("<", "H", 6)))),
    "cut off": app1(exif_of((0x0112, 3, 1, number("<", "H", 6)))[:-10]),
    "no entries": app1(exif_of()),
    "empty": app1(b"Exif\0\0"),
    "its name twice": app1(b"Exif\0\0" + exif_of((0x0112, 3, 1, number("<", "H", 6)))),
    "two markers": app1(exif_of((0x010F, 2, 9, TWO), (0x0112, 3, 1, number("<", "H", 6)), after=b"a ca"))
    + app1(b"Exif\0\0mera\0"),
    "the second has it": app1(exif_of()) + app1(exif_of((0x0112, 3, 1, number("<", "H", 6)))),
    "XMP": app1(b'http://ns.adobe.com/xap/1.0/\0<a tiff:Orientation="6"/>'),
    "XMP, an element": app1(b"http://ns.adobe.com/xap/1.0/\0<tiff:Orientation>8</tiff:Orientation>"),
    "XMP and EXIF": app1(b'http://ns.adobe.com/xap/1.0/\0<a tiff:Orientation="6"/>') + exif(3, ">"),
    "EXIF without it, and XMP": app1(exif_of((0x0100, 4, 1, number("<", "I", 50))))
    + app1(b'http://ns.adobe.com/xap/1.0/\0<a tiff:Orientation="6"/>'),
}


@pytest.mark.filterwarnings("ignore")  # Pillow's, of damaged EXIF data
@pytest.mark.parametrize("kind", ODD)
def test_an_orientation_in_another_form(kind: str) -> None:
    data = write(Noise(4, 50, 30, markers=ODD[kind]))
    image = Image.open(io.BytesIO(data))
    expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(images.decode(data, rotate=True), expected)
    assert np.array_equal(images.on_column(tv.PILToTensor())({"image": [{"bytes": data}]})["image"][0], expected)
    before = images.counts()["decoded"]
    assert np.array_equal(images.decode(data), by_pillow(data))
    assert images.counts()["decoded"] == before + 1  # who does not ask for the orientation does not wait for Pillow


def test_exif_that_pillow_refuses() -> None:
    """It reads EXIF data when it opens a file without a resolution, and drops the error then."""
    no_tiff, resolution = app1(b"Exif\0\0no TIFF file"), b"\xff\xe0\0\x10JFIF\0\1\1\1\0\x48\0\x48\0\0"
    data = write(Noise(4, 50, 30, markers=no_tiff))
    assert np.array_equal(images.decode(data, rotate=True), by_pillow(data))
    data = write(Noise(4, 50, 30, markers=resolution + no_tiff))
    assert np.array_equal(images.decode(data), by_pillow(data))
    with pytest.raises(SyntaxError, match="not a TIFF file"):
        ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    with pytest.raises(SyntaxError, match="not a TIFF file"):
        images.decode(data, rotate=True)


CUT_SHORT = {
    "JFIF": segment(0xE0, b"JFIF\0\1"),
    "ICC": segment(0xE2, b"ICC_PROFILE\0\1"),
    "Photoshop": segment(0xED, b"Photoshop 3.0\0" + b"8BIM" + b"\x03\xed"),
    "Adobe": segment(0xEE, b"Adobe\0"),
}


@pytest.mark.parametrize("kind", CUT_SHORT)
def test_a_marker_that_pillow_refuses(kind: str) -> None:
    data = write(Noise(4, 50, 30, markers=CUT_SHORT[kind]))
    with pytest.raises(UnidentifiedImageError):
        Image.open(io.BytesIO(data))
    with pytest.raises(UnidentifiedImageError):
        images.decode(data)


def test_a_picture_that_libjpeg_refuses() -> None:
    data = write(Noise(4, 65_501, 1))
    with pytest.raises(OSError, match="broken data stream"):
        Image.open(io.BytesIO(data)).load()
    with pytest.raises(OSError, match="broken data stream"):
        images.decode(data)


class NobodysDecoder:
    """Our decoder takes no file."""

    stream = None

    def open(self, data: Any) -> None:
        pass

    read = open

    def close(self) -> None:
        pass


def test_several_threads() -> None:
    files = [saved(photo(90 + k, 70, k), quality=60 + k) for k in range(8)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        got = pool.map(lambda data: images.decode(data, size=(64, 64)), files * 20)
        for data, pixels in zip(files * 20, got, strict=True):
            assert np.array_equal(pixels, by_pillow(data, size=(64, 64)))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", None])
def test_a_fifo_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str | None) -> None:
    """Its writer would notice if it were closed and opened again, and what was written would be lost."""
    data = saved(photo(90, 70), kind) if kind else b"no picture"
    os.mkfifo(fifo := tmp_path / "picture.jpg")
    opened: list[Any] = []

    def note(opens: Callable[..., Any]) -> Callable[..., Any]:
        def noted(path: Any, *more: Any, **options: Any) -> Any:
            if str(path) == str(fifo) and not options:  # an `opener` opens nothing here
                assert not opened, "a second open() would wait for ever"
                opened.append(path)
            return opens(path, *more, **options)

        return noted

    before = len(os.listdir("/proc/self/fd"))
    with subprocess.Popen(["dd", f"of={fifo}", "bs=1M", "status=none"], stdin=subprocess.PIPE) as writer:
        assert writer.stdin
        writer.stdin.write(data)
        writer.stdin.close()
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", note(os.open))
            patch.setattr(builtins, "open", note(open))
            if kind:
                assert np.array_equal(images.decode(fifo), by_pillow(data))
            else:
                with pytest.raises(UnidentifiedImageError, match=r"picture\.jpg"):
                    images.decode(fifo)
    assert writer.returncode == 0 and opened == [fifo]
    assert len(os.listdir("/proc/self/fd")) == before


# --------------------------------------------------------------------------------------------------------------- errors


def outcome(call: Any) -> Any:
    """The pixels, or the class of the error."""
    try:
        return np.asarray(call())
    except Exception as error:
        return type(error)


def test_broken_files_are_as_with_pillow() -> None:
    rng = random.Random(6)
    raised = 0
    for k in range(160):
        data = bytearray(write(Noise(k, rng.randint(1, 50), rng.randint(1, 50), restart=rng.choice((0, 2)))))
        if k % 4 == 0:
            del data[rng.randrange(len(data)) :]
        for _ in range(0 if k % 4 == 0 else rng.choice((1, 3))):
            if data:
                data[rng.randrange(len(data) if k % 2 else min(700, len(data)))] = rng.randrange(256)
        data = bytes(data)
        expected, got = outcome(lambda data=data: by_pillow(data)), outcome(lambda data=data: images.decode(data))
        assert isinstance(expected, type) == isinstance(got, type), (k, expected, got)
        if isinstance(expected, type):
            raised += 1
            assert got is expected
        else:
            assert np.array_equal(got, expected), k
    assert raised > 20


def test_a_file_without_its_end_is_pillows(tmp_path: Path) -> None:
    data = saved(photo(300, 300))
    file = tmp_path / "short.jpg"
    file.write_bytes(data[: len(data) * 3 // 4])
    with pytest.raises(OSError, match=r"truncated.*short\.jpg") as caught:
        images.decode(file, crop=(0, 0, 10, 10))  # whose part of the file is there
    assert type(caught.value) is OSError


def test_no_picture(tmp_path: Path) -> None:
    file = tmp_path / "text.jpg"
    file.write_text("no picture")
    with pytest.raises(UnidentifiedImageError, match=r"text\.jpg"):
        images.decode(file)
    with pytest.raises(UnidentifiedImageError):
        images.decode(b"no picture")
    with pytest.raises(FileNotFoundError, match=r"missing\.jpg"):
        images.decode(tmp_path / "missing.jpg")
    with pytest.raises(IsADirectoryError, match=tmp_path.name):
        images.decode(tmp_path)
    with pytest.raises(UnidentifiedImageError):
        images.decode(b"")


@pytest.mark.parametrize("crop", [(0, 0, 51, 5), (0, 0, 5, 41), (-1, 0, 5, 5), (0, 0, 0, 5), (50, 0, 1, 1)])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_crop_outside(kind: str, crop: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="not inside a picture of 50 x 40"):
        images.decode(saved(photo(50, 40), kind), crop)


def test_results_that_cannot_be() -> None:
    data = saved(photo(50, 40))
    with pytest.raises(ValueError, match=r"size=\(0, 5\)"):
        images.decode(data, size=(0, 5))
    with pytest.raises(ValueError, match=r"\(3, 40, 50\)"):
        images.decode(data, out=torch.zeros(40, 50, 3, dtype=torch.uint8))
    with pytest.raises(ValueError, match="float32"):
        images.decode(data, out=torch.zeros(3, 40, 50))
    with pytest.raises(TypeError, match="list"):
        images.decode(data, out=[])
    with pytest.raises(ValueError, match="read-only"):
        images.decode(data, out=np.broadcast_to(np.zeros((3, 40, 50), np.uint8), (3, 40, 50)))
    with pytest.raises(ValueError, match="no path 'fastest'"):
        jpeg.Decoder("fastest")


def test_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved(photo(50, 40), "PNG")
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert images.decode(write(Noise(1, 20, 20))).shape == (3, 20, 20)
    with pytest.raises(ImportError, match=r"shmloader\[images\]"):
        images.decode(data)


def test_a_decoder_is_used_as_told() -> None:
    decoder = jpeg.Decoder()
    with pytest.raises(ValueError, match="no file is open"):
        decoder.decode((0, 0, 1, 1), np.zeros((3, 1, 1), np.uint8))
    data = bytearray(saved(photo(50, 40)))
    assert decoder.open(data) == (50, 40, 1)
    with pytest.raises(ValueError, match="not inside"):
        decoder.decode((0, 0, 51, 1), np.zeros((3, 1, 1), np.uint8))
    with pytest.raises(ValueError, match="3, height, width"):
        decoder.decode((0, 0, 1, 1), np.zeros((1, 1, 3), np.uint8))
    with pytest.raises(BufferError):
        data.clear()  # it is being read
    decoder.close()
    data.clear()
    decoder.close()
