"""torchvision's transforms that change pixels: one function for each, which returns its steps, or why it has none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from shmloader.images import policies
from shmloader.images.canvas import Step
from shmloader.images.known import fill_of, resample_of
from shmloader.images.operations import (
    Act,
    Affine,
    Blur,
    Chance,
    Choice,
    Distort,
    Greyscale,
    Jitter,
    Order,
    Pad,
    Perspective,
    Posterize,
    Rotate,
    ZoomOut,
)
from shmloader.images.random_numbers import PYTHON

__all__ = ["OPERATIONS", "Nest", "Steps", "sides_of"]

Steps = tuple[Step, ...] | str
_MOVED_BY = (0, 2, 3)  # nearest, bilinear, bicubic


class Nest(Protocol):
    """Reads the transforms inside another one.

    Attributes:
        exact: see decode().
    """

    exact: bool

    def nested(self, transforms: Sequence[Any]) -> Steps: ...
    def draws_by(self, *generators: str) -> None:
        """Note that the generators PYTHON or NUMPY are drawn from."""

    def has_channels(self, channels: int) -> None:
        """Note that pictures have this number of channels from here on."""


def _moved(make: Callable[[int, Any], Step], transform: Any, version: int) -> Steps:
    resample = resample_of(transform.interpolation)
    if resample not in _MOVED_BY:
        return f"Pillow moves no pixels by {transform.interpolation}"
    return (make(resample, fill_of(transform, version)),)


def sides_of(padding: Any) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a `padding` of 1, 2 or 4 numbers."""
    sides = [padding] if isinstance(padding, int) else list(padding)
    sides = sides * 4 if len(sides) == 1 else sides * 2 if len(sides) == 2 else sides
    left, top, right, bottom = (int(value) for value in sides)
    return left, top, right, bottom


def _random(transform: Any, version: int, *steps: Step) -> Steps:
    """v1 compares the probability with a Python float, v2 with torch's."""
    return (Chance(float(transform.p), "item" if version == 1 else "below", steps),)


def _apply(nest: Nest, transform: Any, version: int) -> Steps:
    steps = nest.nested(list(transform.transforms))
    if isinstance(steps, str):
        return steps
    return (Chance(float(transform.p), "at most" if version == 1 else "below", steps),)


def _several(nest: Nest, transform: Any, version: int) -> tuple[tuple[Step, ...], ...] | str:
    options: list[tuple[Step, ...]] = []
    for one in transform.transforms:
        steps = nest.nested([one])
        if isinstance(steps, str):
            return steps
        options.append(steps)
    if version == 1:
        nest.draws_by(PYTHON)
    return tuple(options)


def _choice(nest: Nest, transform: Any, version: int) -> Steps:
    options = _several(nest, transform, version)
    return options if isinstance(options, str) else (Choice(options, transform.p, version),)


def _order(nest: Nest, transform: Any, version: int) -> Steps:
    options = _several(nest, transform, version)
    return options if isinstance(options, str) else (Order(options, version),)


def _jitter(nest: Nest, transform: Any, version: int) -> Steps:
    for name in ("get_params", "brightness", "contrast", "saturation", "hue"):
        getattr(transform, name)  # an AttributeError means that the class is another one
    return (Jitter(transform),)


def _policy(kind: type[policies.Policy]) -> Callable[[Nest, Any, int], Steps]:
    def read(nest: Nest, transform: Any, version: int) -> Steps:
        steps = _moved(lambda resample, fill: kind(transform, version, resample, fill), transform, version)
        if not isinstance(steps, str) and not all(policies.knows(step) for step in steps):  # type: ignore[arg-type]
            return "it has operations that are not known"
        return steps

    return read


def _vertical_flip(nest: Nest, transform: Any, version: int) -> Steps:
    return (Chance(float(transform.p), "below", (Act("flip_top_bottom"),)),)


def _grey(nest: Nest, transform: Any, version: int) -> Steps:
    channels = transform.num_output_channels
    if channels not in (1, 3):
        return f"it makes {channels} channels"
    nest.has_channels(channels)
    return (Act("grayscale", (channels,)),)


def _zoom_out(nest: Nest, transform: Any, version: int) -> Steps:
    low, high = transform.side_range
    return (Chance(float(transform.p), "below", (ZoomOut((low, high), fill_of(transform, version)),)),)


def _perspective(nest: Nest, transform: Any, version: int) -> Steps:
    moved = _moved(lambda resample, fill: Perspective(transform, resample, fill), transform, version)
    return moved if isinstance(moved, str) else (Chance(float(transform.p), "below", moved),)


OPERATIONS: dict[str, Callable[[Nest, Any, int], Steps]] = {
    "RandomApply": _apply,
    "RandomChoice": _choice,
    "RandomOrder": _order,
    "ColorJitter": _jitter,
    "RandomPhotometricDistort": lambda nest, transform, version: (Distort(transform),),
    "Grayscale": _grey,
    "RandomGrayscale": lambda nest, transform, version: (Chance(float(transform.p), "below", (Greyscale(),)),),
    "RandomInvert": lambda nest, transform, version: _random(transform, version, Act("invert")),
    "RandomPosterize": lambda nest, transform, version: _random(transform, version, Posterize(int(transform.bits))),
    "RandomSolarize": lambda nest, transform, version: _random(
        transform, version, Act("solarize", (transform.threshold,))
    ),
    "RandomAdjustSharpness": lambda nest, transform, version: _random(
        transform, version, Act("sharpness", (transform.sharpness_factor,))
    ),
    "RandomAutocontrast": lambda nest, transform, version: _random(transform, version, Act("autocontrast")),
    "RandomEqualize": lambda nest, transform, version: _random(transform, version, Act("equalize")),
    "RandomVerticalFlip": _vertical_flip,
    "RandomZoomOut": _zoom_out,
    "RandomAffine": lambda nest, transform, version: _moved(
        lambda by, fill: Affine(transform, version, by, fill), transform, version
    ),
    "RandomRotation": lambda nest, transform, version: _moved(
        lambda by, fill: Rotate(transform, by, fill), transform, version
    ),
    "RandomPerspective": _perspective,
    "Pad": lambda nest, transform, version: (
        Pad(sides_of(transform.padding), str(transform.padding_mode), fill_of(transform, version)),
    ),
    "GaussianBlur": lambda nest, transform, version: (Blur(transform, version, nest.exact),),
    "AutoAugment": _policy(policies.AutoAugment),
    "RandAugment": _policy(policies.RandAugment),
    "TrivialAugmentWide": _policy(policies.TrivialAugment),
}
