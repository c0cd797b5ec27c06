"""Decides who decodes a picture: a cache that has it, our own decoder, or Pillow.  images.decode() is here.
Pillow gets what is no baseline JPEG, is damaged, or has more pixels than MAX_IMAGE_PIXELS; counts() counts all three.

Nearly all photographs are baseline JPEG files.  Our own decoder (cython_ext/jpeg) reads these: it decodes no more than
the crop, and resizes it on the way.  It always decodes at full size, because otherwise pixels would differ from
Pillow's.  Rows are planar (CHW) from there on.  Pillow decodes everything else, with the same result.  Our decoder
refuses a file if anything about it is doubtful (JPEG_NOT_OURS in header.c), so a broken file gets Pillow's result or
Pillow's error.

Our decoder reads pictures with one component (grayscale) or three.  header.c refuses all others before any pixel is
decoded.  If the decoder finds the data of the scan damaged or too short, `Decoder.decode` returns false, and
`read_part` then gives the whole picture to Pillow.
"""

from __future__ import annotations

import io
import os
import sys
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from shmloader.core.jpeg import Decoder
from shmloader.images.cache import Cache
from shmloader.images.early_files import EarlyFile
from shmloader.images.filters import BILINEAR, filter_number
from shmloader.images.rows import Rows

__all__ = ["Picture", "counts", "decode"]

Crop = tuple[int, int, int, int]

LEFT_RIGHT = 0  # Pillow's number of the flip
LARGEST = 65535  # pixels across or down of a result: the most that a JPEG file can have
_ORIENTATION = 0x0112  # the EXIF tag
_ASK_PILLOW = 0  # the orientation of a file in which only Pillow finds it: JPEG_ASK_PILLOW in header.h
_MOST_PIXELS = 1024**3 // 4 // 3  # Pillow's MAX_IMAGE_PIXELS

# Idle decoders.  A picture takes one and puts it back, so its memory serves the next picture.  Two threads, or a signal
# handler and what it interrupts, never share one.
_idle: list[Decoder] = []
_counts = {"decoded": 0, "cached": 0, "pillow": 0}


def counts() -> dict[str, int]:
    """How many pictures this process decoded itself ("decoded"), found in a cache of decoded pictures ("cached"), and
    had Pillow decode ("pillow")."""
    return dict(_counts)


def decode(
    data_or_path: Any,
    crop: Crop | None = None,
    size: tuple[int, int] | None = None,
    flip: bool = False,
    out: Any = None,
    exact: bool = True,
    *,
    rotate: bool = False,
    interpolation: Any = "bilinear",
) -> Any:
    """Decode a picture, or a crop of it, as RGB.

    Baseline JPEG files need no Pillow.  All others do (`pip install 'shmloader[images]'`).

    Args:
        data_or_path: The file: its path (str or os.PathLike), or its bytes as any object with a buffer, or as a
            one-dimensional tensor of uint8.

        crop: Left, top, width and height of the part to decode, in pixels as the file stores them (default: the whole
            picture).

        size: Height and width to which the crop is resized (default: it is not resized).

        flip: Mirror the result left and right (default False).

        out: Where to write the result: a uint8 tensor or array of its shape (default: a new tensor).  It may have any
            strides, so it may be (height, width, 3) in memory.

        exact: Whether the result equals Pillow's convert("RGB"), crop and resize bit for bit (default True).  If not,
            decoding is faster: luma and chroma are resized before they become RGB, without rounding in between, and a
            pixel differs by less than 1 on average.

        rotate: Turn the result upright after crop and resize, as the file's EXIF orientation tells (default False, as
            in Pillow and torchvision).  `size` is the size of the result.  `crop` is in the picture as stored.

        interpolation: The filter for resizing: "nearest", "box", "bilinear" (default), "hamming", "bicubic" or
            "lanczos".  They are Pillow's, so they are antialiased.  Pillow's Resampling and torchvision's
            InterpolationMode are accepted, too.

    Returns:
        A uint8 tensor of shape (3, height, width), or `out`.

    Raises:
        ValueError: The crop lies outside the picture, or `size`, `out` or `interpolation` is impossible.
        ImportError: The file is no baseline JPEG, and Pillow is not installed.
        OSError: The file cannot be read.
        Exception: Any exception of Pillow's for a broken file, with the file's path.  Pillow's DecompressionBombError
            for a picture of more than twice PIL.Image.MAX_IMAGE_PIXELS, before any of it is decoded (its warning from
            once that number on).

    Example:
        >>> row = torch.empty(3, 224, 224, dtype=torch.uint8)
        >>> decode("cat.jpg", crop=(100, 50, 300, 300), size=(224, 224), out=row)
    """
    resample = filter_number(interpolation)
    with Picture(data_or_path, rotate) as picture:
        box = _inside(crop, picture.width, picture.height)
        result, pixels = _result(out, box, size, flip, picture.orientation if rotate else 1)
        picture.read_part(box, pixels, exact, resample=resample)
        return result


class Picture:
    """A picture that is open: its size is known, and parts of it can be read.  A context manager.

    Args:
        source: see decode().
        is_upright: whether the caller wants its orientation.
        is_turned: whether Pillow first turns the picture upright, as its EXIF data or its XMP tells.  Then `width` and
            `height` are those of the turned picture.  Only for bytes.
        is_kept: whether more than one part will be read: then the file is read once.
        rows, at: a file of marks, and the picture's number in it; only for a file by its path.
        cache: a cache of decoded pictures; only for a file by its path.

    Attributes:
        width, height: in pixels, as the file stores it.
        orientation: EXIF's, 1 (as stored) to 8.  If the caller does not want it, 0: not known.

    Raises:
        Exception: as decode().
    """

    def __init__(
        self,
        source: Any,
        is_upright: bool = False,
        rows: Rows | None = None,
        at: int = 0,
        is_kept: bool = False,
        is_turned: bool = False,
        cache: Cache | None = None,
    ) -> None:
        self._is_turned = is_turned
        self._is_kept = is_kept
        self._is_upright = is_upright
        self._rows: Rows | None = None  # None: there is no file of marks, or none for this picture
        self._at = at
        self._marks: bytes | None = None
        is_file = isinstance(source, (str, os.PathLike))
        self._source: Any = source.numpy() if not is_file and isinstance(source, torch.Tensor) else source
        self._image: Any = None  # Pillow's
        self._decoder = _idle.pop() if _idle else Decoder()
        try:
            self._cache = cache if is_file and not is_turned else None
            opened = self._find(os.fsdecode(source)) if self._cache is not None else None
            self._is_found = opened is not None
            if opened is None:
                opened = self._open(is_file)
            if opened is None or self._needs_pillow(*opened):
                if self._cache is not None:
                    self._cache.note_other()
                self._open_by_pillow()
            else:
                self.width, self.height, self.orientation = opened
                if rows is not None and is_file and not is_kept and not self._is_found:
                    self._rows = rows
                    self._marks = rows.find(at, os.fspath(source), self._decoder.status)
        except BaseException:
            self.__exit__()
            raise

    def _needs_pillow(self, width: int, height: int, orientation: int) -> bool:
        """Whether Pillow opens a file that our own decoder takes."""
        if (self._is_turned and orientation != 1) or (self._is_upright and orientation == _ASK_PILLOW):
            return True
        return _is_huge(width, height)

    def __enter__(self) -> Picture:
        return self

    def __exit__(self, *_: Any) -> None:
        self._decoder.close()
        _idle.append(self._decoder)

    def _open(self, is_file: bool) -> tuple[int, int, int] | None:
        source = self._source
        if type(source) is EarlyFile:
            return self._decoder.open(source.data, status=source.status)
        return self._decoder.read(source) if is_file else self._decoder.open(source)

    def read_part(
        self,
        crop: Crop,
        pixels: Any,
        exact: bool,
        window: Crop | None = None,
        resample: int = BILINEAR,
        is_mirrored: bool = False,
    ) -> None:
        """Write a part, resized to the size of `pixels`.

        Args:
            crop: inside the picture.
            pixels: uint8 of shape (3, height, width), with any strides.
            exact: see decode().
            window: left, top, width and height: the part is resized to that width and height, and `pixels` shows the
                section of the result that begins at left and top.
            resample: Pillow's number of the filter.
            is_mirrored: whether left and right of the part are exchanged before it is resized.
        """
        if self._image is None:
            if self._decode(pixels, crop, exact, window, resample, is_mirrored):
                _counts["cached" if self._is_found else "decoded"] += 1
                return
            self._open_by_pillow()
        left, top, width, height = crop
        image = self._image.crop((left, top, left + width, top + height))
        if is_mirrored:
            image = image.transpose(LEFT_RIGHT)
        across, down, wide, high = window or (0, 0, pixels.shape[2], pixels.shape[1])
        image = image.resize((wide, high), resample)
        if window is not None:
            image = image.crop((across, down, across + pixels.shape[2], down + pixels.shape[1]))
        pixels[...] = np.asarray(image).transpose(2, 0, 1)
        _counts["pillow"] += 1

    def _decode(
        self,
        pixels: np.ndarray[Any, Any],
        crop: Crop,
        exact: bool,
        window: Crop | None,
        resample: int,
        is_mirrored: bool,
    ) -> bool:
        if self._cache is not None and not self._is_found:
            cache, self._cache = self._cache, None  # only the first of several parts is put there
            self._is_kept |= cache.keep(os.fsdecode(self._source), self._decoder)
        decoder, rows = self._decoder, self._rows if not self._is_kept else None
        down_first = not exact or goes_down_first()
        decode = partial(
            decoder.decode, crop, pixels, exact, down_first, window=window, filter=resample, mirrored=is_mirrored
        )
        if rows is None:
            return decode(keep=self._is_kept)
        if self._marks is not None and decode(marks=self._marks):
            return True
        if not rows.takes_more:
            return decode()
        is_good = decode(marking=True)
        if is_good and decoder.marks is not None:
            self._marks = decoder.marks
            rows.put(self._at, os.fspath(self._source), decoder.status, decoder.marks)
        return is_good

    def _find(self, path: str) -> tuple[int, int, int] | None:
        """Open the picture from the cache, if it is there."""
        assert self._cache is not None
        found = self._cache.find(path)
        return None if found is None else self._decoder.open_planes(*found)

    def image(self) -> Any:
        """The whole picture as a PIL image of mode RGB, as torchvision's loader gives it."""
        if self._image is None:
            self._open_by_pillow()
        return self._image.copy()

    def info(self) -> dict[str, Any]:
        """What Pillow reads beside the pixels, in `Image.info`: EXIF, the resolution, a profile."""
        if self._image is None:
            with import_module("PIL.Image").open(_for_pillow(self._source)) as file:
                return dict(file.info)
        return dict(self._image.info)

    def _open_by_pillow(self) -> None:
        """Open by Pillow whatever Pillow can read."""
        source: Any = self._source
        try:
            Image: Any = import_module("PIL.Image")
        except ImportError as error:
            raise ImportError(
                f"{_name(source)} is no baseline JPEG. Other pictures need Pillow, which is not installed. Run pip "
                "install 'shmloader[images]'."
            ) from error
        try:
            with Image.open(self._decoder.stream or _for_pillow(source)) as file:
                orientation = file.getexif().get(_ORIENTATION, 1) if self._is_upright else 1
                is_lying = self._is_turned and file.getexif().get(_ORIENTATION) is not None
                upright = import_module("PIL.ImageOps").exif_transpose(file) if is_lying else file
                self._image = upright.convert("RGB")
        except Exception as error:
            if type(source) is EarlyFile:  # so that the error is that of the file by its path
                self._source = source.path
                self._open_by_pillow()
                return
            # Pillow names the file only if it cannot identify it.
            name = _name(source)
            if len(error.args) == 1 and isinstance(error.args[0], str) and name not in error.args[0]:
                error.args = (f"{error.args[0]}: {name}",)
            raise
        self.width, self.height = self._image.size
        # as a whole number, because Pillow may give it as a fraction or a float
        self.orientation = next((whole for whole in range(1, 9) if whole == orientation), 1)


def _is_huge(width: int, height: int) -> bool:
    """Whether Pillow would warn of a picture of this size, or refuse it, because a small file can ask for gigabytes."""
    pillow: Any = sys.modules.get("PIL.Image")
    most = _MOST_PIXELS if pillow is None else pillow.MAX_IMAGE_PIXELS  # a user may have set another one, or None
    return most is not None and width * height > most and find_spec("PIL") is not None


def _for_pillow(source: Any) -> Any:
    """What Pillow opens: the path of a file, or its bytes."""
    if type(source) is EarlyFile:
        return io.BytesIO(source.data)
    return source if isinstance(source, (str, os.PathLike)) else io.BytesIO(source)


def _name(source: Any) -> str:
    return os.fspath(source) if isinstance(source, (str, os.PathLike)) else f"a picture of {len(source)} bytes"


def goes_down_first() -> bool:
    """Whether the installed Pillow resizes some pictures down before across: it does since version 13."""
    global _down_first
    if _down_first is None:
        try:
            _down_first = int(import_module("PIL").__version__.split(".")[0]) >= 13
        except ImportError:
            _down_first = True
    return _down_first


_down_first: bool | None = None


def _inside(crop: Crop | None, width: int, height: int) -> Crop:
    """The crop; raises if it is not inside the picture."""
    if crop is None:
        return 0, 0, width, height
    left, top, wide, high = crop
    if wide < 1 or high < 1 or left < 0 or top < 0 or left + wide > width or top + high > height:
        raise ValueError(
            f"crop={crop!r} (left, top, width, height) is not inside a picture of {width} x {height} pixels. Choose "
            "one that is, or pad the result."
        )
    return left, top, wide, high


def _result(
    out: Any, crop: Crop, size: tuple[int, int] | None, flip: bool, orientation: int
) -> tuple[Any, np.ndarray[Any, Any]]:
    """The result, and a view of it to which the picture is written as the file stores it."""
    is_lying = orientation > 4  # rows become columns
    if size is None:
        height, width = (crop[2], crop[3]) if is_lying else (crop[3], crop[2])
    else:
        height, width = size
        if not (1 <= height <= LARGEST and 1 <= width <= LARGEST):
            raise ValueError(f"size={size!r} (height, width) should be from 1 to {LARGEST} each.")
    if out is None:
        out = torch.empty((3, height, width), dtype=torch.uint8, device="cpu")
    pixels = out.numpy() if isinstance(out, torch.Tensor) else out
    if not isinstance(pixels, np.ndarray):
        raise TypeError(f"out is a {type(out).__name__}. Give a tensor or an array of uint8.")
    if pixels.dtype != np.uint8 or pixels.shape != (3, height, width):
        raise ValueError(
            f"out is {pixels.dtype} of shape {tuple(pixels.shape)}. The result is uint8 of shape (3, {height}, "
            f"{width}). Give an `out` of that shape (permute one that is (height, width, 3)), or another size."
        )
    if flip:
        pixels = pixels[:, :, ::-1]
    # The orientation of the result, in terms of the file's rows and columns (EXIF 2.3, tag 0x0112).
    if orientation in (3, 4, 7, 8):
        pixels = pixels[:, ::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, :, ::-1]
    return out, pixels.transpose(0, 2, 1) if is_lying else pixels
