"""What `make train` does to a picture with torch's loader: torchvision's transforms by PIL, without torchvision."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from PIL import Image, ImageEnhance, ImageOps

BINS = 31  # strengths of an operation
TRIES = 10  # to find a box that fits

Operation = Callable[[Image.Image, float], Image.Image]


def uniform(low: float, high: float) -> float:
    return float(torch.empty(1).uniform_(low, high))


def below(end: int) -> int:
    return int(torch.randint(end, (1,)))


def random_resized_crop(image: Image.Image, size: int, scale: tuple[float, float], ratio: float) -> Image.Image:
    """A box of random area and shape, scaled to a square.

    Args:
        size: of the square, in pixels.
        scale: the smallest and the largest area of the box, as a part of the picture's.
        ratio: the largest width as a multiple of the height, and the largest height as a multiple of the width.
    """
    logarithms = torch.log(torch.tensor([1 / ratio, ratio])).tolist()
    for _ in range(TRIES):
        area = image.width * image.height * uniform(*scale)
        shape = float(torch.exp(torch.empty(1).uniform_(*logarithms)))
        width, height = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < width <= image.width and 0 < height <= image.height:
            top = below(image.height - height + 1)
            left = below(image.width - width + 1)
            return _scaled(image, left, top, width, height, size)
    width = round(min(image.width, image.height * ratio))
    height = round(min(image.height, image.width * ratio))
    return _scaled(image, (image.width - width) // 2, (image.height - height) // 2, width, height, size)


def _scaled(image: Image.Image, left: int, top: int, width: int, height: int, size: int) -> Image.Image:
    return image.crop((left, top, left + width, top + height)).resize((size, size), Image.Resampling.BILINEAR)


def middle(image: Image.Image, size: int) -> Image.Image:
    """The middle of the picture, whose shorter side is scaled to `size` pixels before."""
    short, long = sorted(image.size)
    longer = int(size * long / short)
    scaled = image.resize((size, longer) if image.width <= image.height else (longer, size), Image.Resampling.BILINEAR)
    left, top = round((scaled.width - size) / 2), round((scaled.height - size) / 2)
    return scaled.crop((left, top, left + size, top + size))


def trivial_augment(image: Image.Image) -> Image.Image:
    """One operation of any strength, both drawn: TrivialAugmentWide (arXiv 2103.10158)."""
    operation, strengths, is_signed = OPERATIONS[below(len(OPERATIONS))]
    if strengths is None:
        return operation(image, 0.0)
    strength = float(strengths[below(BINS)])
    return operation(image, -strength if is_signed and below(2) else strength)


def _enhanced(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Operation:
    return lambda image, strength: kind(image).enhance(1.0 + strength)


def _moved(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)


def _shear_across(image: Image.Image, strength: float) -> Image.Image:
    return _moved(image, 1, math.tan(_angle(strength)), 0, 0, 1, 0)


def _shear_down(image: Image.Image, strength: float) -> Image.Image:
    angle = _angle(strength)
    return _moved(image, 1, 0, 0, math.sin(angle) / math.cos(angle), 1, 0)


def _solarized(image: Image.Image, threshold: float) -> Image.Image:
    return image.point([value if value < threshold else 255 - value for value in range(256)] * len(image.getbands()))


def _angle(strength: float) -> float:
    return math.radians(math.degrees(math.atan(strength)))  # by way of degrees, as torchvision's functions take them


LIGHTER = torch.linspace(0, 0.99, BINS)
MOVES = torch.linspace(0, 32, BINS)
BITS = 8 - (torch.arange(BINS) / ((BINS - 1) / 6)).round()

# Of each operation: what it does, its strengths (None: it has none), and whether they may be negative.
OPERATIONS: list[tuple[Operation, torch.Tensor | None, bool]] = [
    (lambda image, _: image, None, False),
    (_shear_across, LIGHTER, True),
    (_shear_down, LIGHTER, True),
    (lambda image, by: _moved(image, 1, 0, -int(by), 0, 1, 0), MOVES, True),
    (lambda image, by: _moved(image, 1, 0, 0, 0, 1, -int(by)), MOVES, True),
    (lambda image, by: image.rotate(by, Image.Resampling.BILINEAR), torch.linspace(0, 135, BINS), True),
    (_enhanced(ImageEnhance.Brightness), LIGHTER, True),
    (_enhanced(ImageEnhance.Color), LIGHTER, True),
    (_enhanced(ImageEnhance.Contrast), LIGHTER, True),
    (_enhanced(ImageEnhance.Sharpness), LIGHTER, True),
    (lambda image, bits: ImageOps.posterize(image, int(bits)), BITS, False),
    (_solarized, torch.linspace(255, 0, BINS), False),
    (lambda image, _: ImageOps.autocontrast(image), None, False),
    (lambda image, _: ImageOps.equalize(image), None, False),
]
