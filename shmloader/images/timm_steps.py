"""timm's and open_clip's transforms as steps: they draw from Python's and NumPy's generators, as the transforms do.

timm's own functions calculate the magnitudes.  This file maps timm's name of each operation to ours.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from shmloader.images.canvas import Canvas
from shmloader.images.operations import Pad, posterize
from shmloader.images.random_numbers import Draws

__all__ = ["Augment", "Augments", "CenterCropOrPad", "Mix", "Policies", "RandomBox", "ResizeKeepRatio", "augment_of"]


def _like(canvas: Canvas) -> torch.Tensor:
    """A tensor of the picture's size, without memory, for functions that ask only for the size."""
    return torch.empty((3, canvas.height, canvas.width), dtype=torch.uint8, device="meta")


def _drawn(resamples: tuple[int, ...]) -> int:
    """One of the filters, drawn if there are several.  (random.choice() would draw for one, too.)"""
    return resamples[0] if len(resamples) == 1 else random.choice(resamples)


@dataclass(frozen=True)
class RandomBox:
    """timm's RandomResizedCropAndInterpolation: draws from Python's generator, and resizes by one of its filters."""

    transform: Any
    resamples: tuple[int, ...]

    def apply(self, canvas: Canvas, draws: Draws) -> None:
        transform = self.transform
        top, left, height, width = transform.get_params(_like(canvas), transform.scale, transform.ratio)
        resample = _drawn(self.resamples)
        canvas.cut(left, top, width, height)
        canvas.resize(int(transform.size[0]), int(transform.size[1]), resample)


@dataclass(frozen=True)
class ResizeKeepRatio:
    """ResizeKeepRatio of timm and of open_clip."""

    transform: Any
    resamples: tuple[int, ...]

    def apply(self, canvas: Canvas, draws: Draws) -> None:
        transform = self.transform
        options = [
            transform.random_scale_prob,
            transform.random_scale_range,
            transform.random_aspect_prob,
            transform.random_aspect_range,
        ]
        like: Any = SimpleNamespace(size=(canvas.width, canvas.height))
        if hasattr(transform, "random_scale_area"):  # timm's, which reads the size by torchvision
            options.insert(2, transform.random_scale_area)
            like = _like(canvas)
        height, width = transform.get_params(like, transform.size, transform.longest, *options)
        resample = _drawn(self.resamples)
        canvas.resize(int(height), int(width), resample)


@dataclass(frozen=True)
class CenterCropOrPad:
    """Crops to the centre, and pads where the picture is smaller: timm's and open_clip's."""

    size: tuple[int, int]
    fill: Any
    mode: str

    def apply(self, canvas: Canvas, draws: Draws) -> None:
        high, wide = self.size
        lacks = max(0, wide - canvas.width), max(0, high - canvas.height)
        if any(lacks):
            sides = lacks[0] // 2, lacks[1] // 2, (lacks[0] + 1) // 2, (lacks[1] + 1) // 2
            Pad(sides, self.mode, self.fill).apply(canvas, draws)
            if (canvas.width, canvas.height) == (wide, high):
                return
        top, left = round((canvas.height - high) / 2.0), round((canvas.width - wide) / 2.0)
        canvas.cut(left, top, wide, high)


# ------------------------------------------------------------------------------------------------- RandAugment and such


@dataclass(frozen=True)
class Augment:
    """timm's AugmentOp: one operation, with a probability.

    Args:
        transform: timm's.
        name: of the function that it calls.
    """

    transform: Any
    name: str

    def apply(self, canvas: Canvas, draws: Draws) -> None:
        transform = self.transform
        if transform.prob < 1.0 and random.random() > transform.prob:
            return
        magnitude = transform.magnitude
        if transform.magnitude_std > 0:
            if transform.magnitude_std == float("inf"):
                magnitude = random.uniform(0, magnitude)
            else:
                magnitude = random.gauss(magnitude, transform.magnitude_std)
        magnitude = max(0.0, min(magnitude, transform.magnitude_max or 10.0))
        values = transform.level_fn(magnitude, transform.hparams) if transform.level_fn is not None else ()
        _ACTS[self.name](canvas, transform.kwargs, *values)


@dataclass(frozen=True)
class Augments:
    """timm's RandAugment."""

    transform: Any
    steps: tuple[Augment, ...]

    def apply(self, canvas: Canvas, draws: Draws) -> None:
        transform = self.transform
        is_even = transform.choice_weights is None
        chosen = np.random.choice(len(self.steps), transform.num_layers, replace=is_even, p=transform.choice_weights)
        for at in chosen:
            self.steps[at].apply(canvas, draws)


@dataclass(frozen=True)
class Policies:
    """timm's AutoAugment, and its 3-Augment."""

    policies: tuple[tuple[Augment, ...], ...]

    def apply(self, canvas: Canvas, draws: Draws) -> None:
        for step in random.choice(self.policies):
            step.apply(canvas, draws)


@dataclass(frozen=True)
class Mix:
    """timm's AugMix: several chains of operations on copies of the picture, mixed with it.

    The weights, and the sums of mixed pixels, are NumPy's, in timm's order.
    """

    transform: Any
    steps: tuple[Augment, ...]

    def apply(self, canvas: Canvas, draws: Draws) -> None:
        transform = self.transform
        weights = np.float32(np.random.dirichlet([transform.alpha] * transform.width))
        share = np.float32(np.random.beta(transform.alpha, transform.alpha))
        if transform.blended:
            self._blend(canvas, draws, transform._calc_blended_weights(weights, share))
        else:
            self._add(canvas, draws, weights, share)

    def _chain(self, canvas: Canvas, draws: Draws) -> None:
        depth = self.transform.depth if self.transform.depth > 0 else np.random.randint(1, 4)
        for at in np.random.choice(len(self.steps), depth, replace=True):
            self.steps[at].apply(canvas, draws)

    def _blend(self, canvas: Canvas, draws: Draws, weights: Any) -> None:
        with canvas.copy() as before:
            for weight in weights:
                with before.copy() as chain:
                    self._chain(chain, draws)
                    canvas.picture.blend(chain.picture, float(weight))

    def _add(self, canvas: Canvas, draws: Draws, weights: Any, share: Any) -> None:
        mixed = np.zeros((3, canvas.height, canvas.width), np.float32)
        with canvas.copy() as chain:
            for weight in weights:
                chain.picture.load_picture(canvas.picture)
                self._chain(chain, draws)
                mixed += weight * np.asarray(chain.picture).astype(np.float32)
            np.clip(mixed, 0, 255.0, out=mixed)
            chain.picture.load(mixed.transpose(1, 2, 0).astype(np.uint8))
            canvas.picture.blend(chain.picture, float(share))


def augment_of(transform: Any) -> Augment | str:
    """The step of an AugmentOp; or why it has none."""
    function = transform.aug_fn
    name = getattr(function, "__name__", "")
    if getattr(function, "__module__", "") != "timm.data.auto_augment" or name not in _ACTS:
        return f"not one of the operations that are known: {name}"
    return Augment(transform, name)


def _moved(canvas: Canvas, options: dict[str, Any], matrix: tuple[float, ...]) -> None:
    canvas.picture.affine(matrix, _filter(options), _fill(canvas, options))


def _fill(canvas: Canvas, options: dict[str, Any]) -> Any:
    """The colour as given: timm does not repeat a number for each channel, and Pillow raises if the count is wrong."""
    fill = options.get("fillcolor")
    if isinstance(fill, (tuple, list)) and len(fill) != canvas.channels:
        raise ValueError(f"fillcolor={fill!r} should have one value for each of {canvas.channels} channels.")
    return fill


def _filter(options: dict[str, Any]) -> int:
    resample = options.get("resample", 3)
    return int(random.choice(resample) if isinstance(resample, (list, tuple)) else resample)


def _rotate(canvas: Canvas, options: dict[str, Any], degrees: float) -> None:
    canvas.picture.rotate(degrees, _filter(options), False, None, _fill(canvas, options))


def _posterize(canvas: Canvas, options: dict[str, Any], bits: int) -> None:
    if bits < 8:
        posterize(canvas, bits)


def _blur_random(canvas: Canvas, options: dict[str, Any], factor: float) -> None:
    canvas.picture.gaussian_blur(random.uniform(0.1, 2.0 * factor))


_ACTS: dict[str, Any] = {
    "shear_x": lambda canvas, options, factor: _moved(canvas, options, (1, factor, 0, 0, 1, 0)),
    "shear_y": lambda canvas, options, factor: _moved(canvas, options, (1, 0, 0, factor, 1, 0)),
    "translate_x_rel": lambda canvas, options, part: _moved(canvas, options, (1, 0, part * canvas.width, 0, 1, 0)),
    "translate_y_rel": lambda canvas, options, part: _moved(canvas, options, (1, 0, 0, 0, 1, part * canvas.height)),
    "translate_x_abs": lambda canvas, options, pixels: _moved(canvas, options, (1, 0, pixels, 0, 1, 0)),
    "translate_y_abs": lambda canvas, options, pixels: _moved(canvas, options, (1, 0, 0, 0, 1, pixels)),
    "rotate": _rotate,
    "auto_contrast": lambda canvas, options: canvas.picture.autocontrast(),
    "invert": lambda canvas, options: canvas.picture.invert(),
    "equalize": lambda canvas, options: canvas.picture.equalize(),
    "solarize": lambda canvas, options, threshold: canvas.picture.solarize(threshold),
    "solarize_add": lambda canvas, options, add: canvas.picture.solarize_add(add),
    "posterize": _posterize,
    "contrast": lambda canvas, options, factor: canvas.picture.contrast(factor),
    "color": lambda canvas, options, factor: canvas.picture.saturation(factor),
    "brightness": lambda canvas, options, factor: canvas.picture.brightness(factor),
    "sharpness": lambda canvas, options, factor: canvas.picture.sharpness(factor),
    "gaussian_blur": lambda canvas, options, factor: canvas.picture.gaussian_blur(factor),
    "gaussian_blur_rand": _blur_random,
    "desaturate": lambda canvas, options, factor: canvas.picture.saturation(min(1.0, max(0.0, 1.0 - factor))),
}
