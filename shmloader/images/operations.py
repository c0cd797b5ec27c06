"""Operations on a picture's pixels: one small object for each transform, which draws as the transform does.
Among them are ColorJitter, GaussianBlur, RandomAffine, Pad, RandomApply and RandomChoice, and the call of a transform
that is not known.

If a transform draws by a function of its own (get_params), we call that function, too.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch

from shmloader.images.canvas import Canvas, Step
from shmloader.images.random_numbers import Draws
from shmloader.images.torch_blur import blur

__all__ = [
    "Act",
    "Affine",
    "Blur",
    "Call",
    "Chance",
    "Choice",
    "Distort",
    "Greyscale",
    "Jitter",
    "Order",
    "Pad",
    "PaddedCrop",
    "Perspective",
    "Posterize",
    "Rotate",
    "ZoomOut",
    "affine_matrix",
    "colour",
    "posterize",
]


def colour(fill: Any, channels: int) -> tuple[int, ...]:
    """torchvision's `fill`, with a value for each of the picture's channels.

    Raises:
        ValueError: `fill` has another number of channels.
    """
    if fill is None:
        fill = 0
    values = [fill] if isinstance(fill, (int, float)) else list(fill)
    if len(values) == 1:
        values *= channels
    if len(values) != channels:
        raise ValueError(
            "The number of elements in 'fill' does not match the number of channels of the image "
            f"({len(values)} != {channels})"
        )
    return tuple(int(value) for value in values)


def affine_matrix(
    version: int,
    width: int,
    height: int,
    angle: float,
    translate: Sequence[float],
    scale: float,
    shear: Sequence[float],
    center: Any,
) -> list[float]:
    """torchvision's matrix, by its own function: it maps pixels of the result to places in the picture.

    v2 has another function, with other roundings.
    """
    module = import_module(f"torchvision.transforms{'' if version == 1 else '.v2'}.functional")
    matrix = (module if version == 1 else module._geometry)._get_inverse_affine_matrix
    around = [width * 0.5, height * 0.5] if center is None else [float(value) for value in center]
    result: list[float] = matrix(around, float(angle), list(translate), scale, list(shear))
    return result


@dataclass(frozen=True)
class Act:
    """An operation that draws nothing.

    Args:
        name: of the method of shmloader.core.pixels.Picture.
        values: arguments of the method.
    """

    name: str
    values: tuple[Any, ...] = ()

    def apply(self, canvas: Canvas, draws: Draws) -> None:
        getattr(canvas.picture, self.name)(*self.values)


def posterize(canvas: Canvas, bits: int) -> None:
    """Keep the upper bits.  For an impossible number of bits, the installed Pillow decides what happens."""
    if 1 <= bits <= 8:
        canvas.picture.posterize(bits)
    else:
        canvas.replace(import_module("PIL.ImageOps").posterize(canvas.image(), bits))


@dataclass(frozen=True)
class Posterize:
    """Keeps the upper bits of each channel."""

    bits: int

    def apply(self, canvas: Canvas, draws: Draws) -> None:
        posterize(canvas, self.bits)


@dataclass(frozen=True)
class Greyscale:
    """Turns the picture grey; the number of channels stays."""

    def apply(self, canvas: Canvas, draws: Draws) -> None:
        canvas.picture.grayscale(canvas.channels)


@dataclass(frozen=True)
class Call:
    """A transform that shmloader does not know: it gets the PIL image that it would get without shmloader.

    Args:
        transform: the transform.
        rest: all transforms after it, which are called as they are if it returns something other than a picture.
    """

    transform: Callable[[Any], Any]
    rest: tuple[Callable[[Any], Any], ...] = ()

    def apply(self, canvas: Canvas, draws: Draws) -> None:
        image = canvas.image_of_file()
        canvas.is_final = True
        made = self.transform(image)
        canvas.is_final = False
        if isinstance(made, import_module("PIL.Image").Image) and made.mode == "RGB":
            canvas.replace(made)
        else:
            canvas.leave(made, self.rest)


# ------------------------------------------------------------------------------------------------- whether, and in what
# order


@dataclass(frozen=True)
class Chance:
    """Steps that are taken with a probability.

    Args:
        p: the probability.
        how: the comparison: "below": torch.rand(1) < p; "at most": torch.rand(1) <= p; "item":
            torch.rand(1).item() < p; "python": random.random() < p.
        steps: the steps.
    """

    p: float
    how: str
    steps: tuple[Step, ...]

    def apply(self, canvas: Canvas, draws: Draws) -> None:
        if self.how == "below":
            is_done = draws.is_below(self.p)
        elif self.how == "at most":
            is_done = draws.is_at_most(self.p)
        elif self.how == "item":
            is_done = draws.real() < self.p
        else:
            is_done = random.random() < self.p
        if is_done:
            for step in self.steps:
                step.apply(canvas, draws)


@dataclass(frozen=True)
class Choice:
    """One step of several: drawn by Python's generator in v1, by torch's in v2."""

    options: tuple[tuple[Step, ...], ...]
    weights: Any
    version: int

    def apply(self, canvas: Canvas, draws: Draws) -> None:
        if self.version == 1:
            chosen = random.choices(range(len(self.options)), weights=self.weights)[0]
        else:
            weights = torch.tensor(self.weights, dtype=torch.get_default_dtype(), device="cpu")
            chosen = int(torch.multinomial(weights, 1))
        for step in self.options[chosen]:
            step.apply(canvas, draws)


def _permutation(count: int) -> list[int]:
    order: list[int] = torch.randperm(count, dtype=torch.int64, device="cpu").tolist()
    return order


@dataclass(frozen=True)
class Order:
    """All of several steps, in a random order: drawn by Python's generator in v1, by torch's in v2."""

    options: tuple[tuple[Step, ...], ...]
    version: int

    def apply(self, canvas: Canvas, draws: Draws) -> None:
        order = list(range(len(self.options)))
        if self.version == 1:
            random.shuffle(order)
        else:
            order = _permutation(len(order))
        for at in order:
            for step in self.options[at]:
                step.apply(canvas, draws)


# ------------------------------------------------------------------------------------------------------------- colours


@dataclass(frozen=True)
class Jitter:
    """ColorJitter."""

    transform: Any

    def apply(self, canvas: Canvas, draws: Draws) -> None:
        transform = self.transform
        order, *factors = transform.get_params(
            transform.brightness, transform.contrast, transform.saturation, transform.hue
        )
        picture = canvas.picture
        acts = picture.brightness, picture.contrast, picture.saturation, picture.hue
        for at in order.tolist():
            if factors[at] is not None:
                acts[at](factors[at])


@dataclass(frozen=True)
class Distort:
    """v2's RandomPhotometricDistort."""

    transform: Any

    def apply(self, canvas: Canvas, draws: Draws) -> None:
        transform, picture = self.transform, canvas.picture
        ranges = transform.brightness, transform.contrast, transform.saturation, transform.hue
        factors = [draws.uniform(low, high) if draws.is_below(transform.p) else None for low, high in ranges]
        is_contrast_first = draws.is_below(0.5)
        order = _permutation(canvas.channels) if draws.is_below(transform.p) else None
        brightness, contrast, saturation, hue = factors
        if brightness is not None:
            picture.brightness(brightness)
        if contrast is not None and is_contrast_first:
            picture.contrast(contrast)
        if saturation is not None:
            picture.saturation(saturation)
        if hue is not None:
            picture.hue(hue)
        if contrast is not None and not is_contrast_first:
            picture.contrast(contrast)
        if order is not None:
            picture.permute(order)


@dataclass(frozen=True)
class Blur:
    """torchvision's GaussianBlur: see torch_blur.

    Args:
        transform: torchvision's.
        version: 1 or 2.
        exact: whether the result equals torchvision's; otherwise a separable blur is used, within 1 of 255.
    """

    transform: Any
    version: int
    exact: bool

    def apply(self, canvas: Canvas, draws: Draws) -> None:
        transform, picture = self.transform, canvas.picture
        sigma = draws.uniform(float(transform.sigma[0]), float(transform.sigma[1]))
        if not self.exact:
            across, down = transform.kernel_size
            weights = _gaussian(across, sigma)
            picture.convolve(weights, weights if down == across else _gaussian(down, sigma))
            return
        blur(picture, transform, self.version, sigma)


def _gaussian(size: int, sigma: float) -> np.ndarray[Any, Any]:
    """The weights of one row, as torchvision computes them."""
    middle = (size - 1) * 0.5
    weights = [math.exp(-0.5 * ((at - middle) / sigma) ** 2) for at in range(size)]
    total = sum(weights)
    return np.array([weight / total for weight in weights], np.float32)


# ------------------------------------------------------------------------------------------------------------- geometry


@dataclass(frozen=True)
class Affine:
    """RandomAffine."""

    transform: Any
    version: int
    resample: int
    fill: Any

    def apply(self, canvas: Canvas, draws: Draws) -> None:
        transform, width, height = self.transform, canvas.width, canvas.height
        angle, moved, scale, shear = transform.get_params(
            transform.degrees, transform.translate, transform.scale, transform.shear, [width, height]
        )
        fill = colour(self.fill, canvas.channels)
        matrix = affine_matrix(self.version, width, height, angle, moved, scale, shear, transform.center)
        canvas.picture.affine(matrix, self.resample, fill)


@dataclass(frozen=True)
class Rotate:
    """RandomRotation."""

    transform: Any
    resample: int
    fill: Any

    def apply(self, canvas: Canvas, draws: Draws) -> None:
        transform = self.transform
        angle = transform.get_params(transform.degrees)
        canvas.picture.rotate(
            angle, self.resample, transform.expand, transform.center, colour(self.fill, canvas.channels)
        )


@dataclass(frozen=True)
class Perspective:
    """RandomPerspective, once its chance was drawn."""

    transform: Any
    resample: int
    fill: Any

    def apply(self, canvas: Canvas, draws: Draws) -> None:
        corners = self.transform.get_params(canvas.width, canvas.height, self.transform.distortion_scale)
        values = import_module("torchvision.transforms.functional")._get_perspective_coeffs(*corners)
        canvas.picture.perspective(values, self.resample, colour(self.fill, canvas.channels))


@dataclass(frozen=True)
class Pad:
    """Pads the picture at its edges; crops it where a number is negative.

    Args:
        sides: left, top, right and bottom, in pixels.
        mode: constant, edge, reflect or symmetric.
        fill: the colour for "constant".
    """

    sides: tuple[int, int, int, int]
    mode: str
    fill: Any

    def apply(self, canvas: Canvas, draws: Draws) -> None:
        left, top, right, bottom = self.sides
        fill = colour(self.fill, canvas.channels) if self.mode == "constant" else None
        if fill is not None and min(self.sides) >= 0:
            canvas.pad(left, top, right, bottom, fill)
        elif fill is not None and not any(fill):  # what lies outside a view is black
            canvas.cut(-left, -top, canvas.width + left + right, canvas.height + top + bottom)
        else:
            canvas.picture.pad(left, top, right, bottom, self.mode, fill)


@dataclass(frozen=True)
class ZoomOut:
    """v2's RandomZoomOut, once its chance was drawn."""

    sides: tuple[float, float]
    fill: Any

    def apply(self, canvas: Canvas, draws: Draws) -> None:
        low, high = self.sides
        ratio = low + torch.rand(1, dtype=draws.dtype, device="cpu") * (high - low)  # as torchvision rounds it
        across, down = int(canvas.width * ratio) - canvas.width, int(canvas.height * ratio) - canvas.height
        left, top = (
            int(lacks * share)
            for lacks, share in zip((across, down), torch.rand(2, dtype=draws.dtype, device="cpu"), strict=True)
        )
        Pad((left, top, across - left, down - top), "constant", self.fill).apply(canvas, draws)


@dataclass(frozen=True)
class PaddedCrop:
    """RandomCrop of a picture that is padded first.

    Args:
        size: height and width.
        sides: see Pad; None: no padding.
        is_padded_to_size: whether a picture that is too small is padded to the size.
        crop: the crop without padding.
        version: v1 pads once for each of the two reasons, v2 once for both; a mirrored edge shows the difference.
    """

    size: tuple[int, int]
    sides: tuple[int, int, int, int] | None
    is_padded_to_size: bool
    mode: str
    fill: Any
    crop: Step
    version: int

    def apply(self, canvas: Canvas, draws: Draws) -> None:
        if self.version == 2:
            self._pad_once(canvas, draws)
            return self.crop.apply(canvas, draws)
        if self.sides is not None:
            Pad(self.sides, self.mode, self.fill).apply(canvas, draws)
        if self.is_padded_to_size:
            lacks = max(0, self.size[1] - canvas.width), max(0, self.size[0] - canvas.height)
            for across, down in ((lacks[0], 0), (0, lacks[1])):
                if across or down:
                    Pad((across, down, across, down), self.mode, self.fill).apply(canvas, draws)
        self.crop.apply(canvas, draws)

    def _pad_once(self, canvas: Canvas, draws: Draws) -> None:
        left, top, right, bottom = self.sides or (0, 0, 0, 0)
        if self.is_padded_to_size:
            across = max(0, self.size[1] - canvas.width - left - right)
            down = max(0, self.size[0] - canvas.height - top - bottom)
            left, top, right, bottom = left + across, top + down, right + across, bottom + down
        if any((left, top, right, bottom)):
            Pad((left, top, right, bottom), self.mode, self.fill).apply(canvas, draws)
