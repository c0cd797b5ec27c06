"""What shmloader._pixels does, by Pillow and NumPy alone: what operations on a picture are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

Colour = Any


class Picture:
    """One picture; see shmloader/_pixels.pyi."""

    def __init__(self, path: str | None = None) -> None:
        self._pixels = np.zeros((1, 1, 4), np.uint8)
        self.channels = 3

    width = property(lambda self: self._pixels.shape[1])
    height = property(lambda self: self._pixels.shape[0])

    @property
    def __array_interface__(self) -> Any:
        view = self._pixels[:, :, :3].transpose(2, 0, 1)
        return view.__array_interface__

    def start(self, width: int, height: int, channels: int = 3) -> None:
        self._pixels = np.full((height, width, 4), 7, np.uint8)
        self.channels = channels

    def load(self, pixels: Any) -> None:
        pixels = np.asarray(pixels)
        pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
        self.start(pixels.shape[1], pixels.shape[0], 1 if pixels.shape[2] == 1 else 3)
        self._pixels[:, :, :3] = pixels[:, :, :3]

    def load_image(self, image: Any) -> None:
        if image.mode not in ("RGB", "L"):
            raise ValueError(image.mode)
        self.load(np.asarray(image))

    def image(self) -> Any:
        pixels = self._pixels[:, :, 0] if self.channels == 1 else self._pixels[:, :, :3]
        return Image.fromarray(np.ascontiguousarray(pixels))

    def write(self, out: Any, table: Any = None) -> None:
        pixels = self._pixels.transpose(2, 0, 1)[: self.channels]
        for channel in range(self.channels):
            out[channel] = pixels[channel] if table is None else np.asarray(table)[channel][pixels[channel]]

    def apply_pending(self) -> None:
        pass

    def brightness(self, factor: float) -> None:
        self.load_image(ImageEnhance.Brightness(self.image()).enhance(factor))

    def contrast(self, factor: float) -> None:
        self.load_image(ImageEnhance.Contrast(self.image()).enhance(factor))

    def saturation(self, factor: float) -> None:
        self.load_image(ImageEnhance.Color(self.image()).enhance(factor))

    def sharpness(self, factor: float) -> None:
        self.load_image(ImageEnhance.Sharpness(self.image()).enhance(factor))

    def invert(self) -> None:
        self.load_image(ImageOps.invert(self.image()))

    def posterize(self, bits: int) -> None:
        self.load_image(ImageOps.posterize(self.image(), bits))

    def solarize(self, threshold: float) -> None:
        self.load_image(ImageOps.solarize(self.image(), threshold))  # type: ignore[arg-type]

    def solarize_add(self, add: int, threshold: int = 128) -> None:
        table = [min(255, value + add) if value < threshold else value for value in range(256)]
        self.load_image(self.image().point(table * self.channels))

    def autocontrast(self) -> None:
        self.load_image(ImageOps.autocontrast(self.image()))

    def equalize(self) -> None:
        self.load_image(ImageOps.equalize(self.image()))

    def hue(self, factor: float) -> None:
        if self.channels == 1:
            return
        hue, saturation, value = self.image().convert("HSV").split()
        shifted = np.array(hue, np.uint8)
        shifted += np.int32(factor * 255).astype(np.uint8)
        self.load_image(Image.merge("HSV", (Image.fromarray(shifted), saturation, value)).convert("RGB"))

    def grayscale(self, channels: int = 3) -> None:
        grey = np.asarray(self.image().convert("L"))
        self.load(grey if channels == 1 else np.dstack([grey] * 3))

    def permute(self, order: Sequence[int]) -> None:
        self.load(self._pixels[:, :, list(order)])

    def gaussian_blur(self, radius: float, vertical: float | None = None) -> None:
        self.load_image(self.image().filter(ImageFilter.GaussianBlur(radius)))

    def affine(
        self, matrix: Sequence[float], interpolation: int = 0, fill: Colour = None, size: tuple[int, int] | None = None
    ) -> None:
        self._transform(Image.Transform.AFFINE, matrix, interpolation, fill, size)

    def perspective(
        self, coefficients: Sequence[float], interpolation: int = 0, fill: Colour = None, size: Any = None
    ) -> None:
        self._transform(Image.Transform.PERSPECTIVE, coefficients, interpolation, fill, size)

    def _transform(self, how: Any, values: Sequence[float], interpolation: int, fill: Colour, size: Any) -> None:
        image, resample = self.image(), Image.Resampling(interpolation)
        fill = tuple([fill] * self.channels) if isinstance(fill, int) and self.channels > 1 else fill
        fill = fill[0] if isinstance(fill, (tuple, list)) and self.channels == 1 else fill
        self.load_image(image.transform(size or image.size, how, values, resample, fillcolor=fill))

    def rotate(
        self, angle: float, interpolation: int = 0, expand: bool = False, center: Any = None, fill: Colour = None
    ) -> None:
        fill = tuple([fill] * self.channels) if isinstance(fill, int) and self.channels > 1 else fill
        fill = fill[0] if isinstance(fill, (tuple, list)) and self.channels == 1 else fill
        resample: Any = Image.Resampling(interpolation)
        self.load_image(self.image().rotate(angle, resample, expand, center, fillcolor=fill))

    def crop(self, left: int, top: int, width: int, height: int) -> None:
        self.load_image(self.image().crop((left, top, left + width, top + height)))

    def pad(self, left: int, top: int, right: int, bottom: int, mode: str = "constant", fill: Colour = None) -> None:
        if mode == "constant":
            fill = 0 if fill is None else fill
            fill = tuple([fill] * self.channels) if isinstance(fill, int) and self.channels > 1 else fill
            self.load_image(ImageOps.expand(self.image(), (left, top, right, bottom), fill))
            return
        sides = ((top, bottom), (left, right), (0, 0))
        self.load(np.pad(self._pixels[:, :, : 3 if self.channels == 3 else 1], sides, mode=mode))  # type: ignore[call-overload]

    def flip_left_right(self) -> None:
        self._pixels = np.ascontiguousarray(self._pixels[:, ::-1])

    def flip_top_bottom(self) -> None:
        self._pixels = np.ascontiguousarray(self._pixels[::-1])
