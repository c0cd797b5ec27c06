"""torchvision's automatic augmentation: AutoAugment, RandAugment and TrivialAugmentWide of both versions.

The magnitudes are torchvision's own: we ask the transform for them once for each size of picture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from shmloader.images.canvas import Canvas
from shmloader.images.operations import affine_matrix, colour, posterize
from shmloader.images.random_numbers import Draws

__all__ = ["AutoAugment", "Policy", "RandAugment", "Space", "TrivialAugment", "knows"]

# For each operation: its name, its magnitudes (None: it has none), and whether a magnitude may be negative.
Space = list[tuple[str, list[float] | None, bool]]


@dataclass(frozen=True)
class Policy:
    """The common part of the three.

    Args:
        transform: torchvision's.
        version: 1 or 2.
        resample, fill: for operations that move pixels.
    """

    transform: Any
    version: int
    resample: int
    fill: Any
    _spaces: dict[tuple[Any, ...], Space] = field(default_factory=dict, init=False, repr=False, compare=False)

    def apply(self, canvas: Canvas, draws: Draws) -> None:
        raise NotImplementedError

    def _space(self, bins: int, height: int, width: int) -> Space:
        key = torch.get_default_dtype(), bins, height, width  # magnitudes have its precision
        if key not in self._spaces:
            if len(self._spaces) > 1000:  # pictures of many sizes, because nothing resizes them first
                self._spaces.clear()
            self._spaces[key] = self._asked(bins, height, width)
        return self._spaces[key]

    def _asked(self, bins: int, height: int, width: int) -> Space:
        if self.version == 1:
            sizes = () if isinstance(self, TrivialAugment) else ((height, width),)
            asked = self.transform._augmentation_space(bins, *sizes)
            return [
                (name, magnitudes.tolist() if magnitudes.ndim else None, signed)
                for name, (magnitudes, signed) in asked.items()
            ]
        space: Space = []
        for name, (magnitudes_of, signed) in self.transform._AUGMENTATION_SPACE.items():
            magnitudes = magnitudes_of(bins, height, width)
            space.append((name, None if magnitudes is None else [float(value) for value in magnitudes], signed))
        return space

    def _negated(self, magnitude: float, signed: bool, draws: Draws) -> float:
        if not signed:
            return magnitude
        is_negated = draws.below(2) == 1 if self.version == 1 else draws.is_at_most(0.5)
        return -magnitude if is_negated else magnitude

    def _act(self, canvas: Canvas, name: str, magnitude: float) -> None:
        if name == "Identity":
            return
        picture, act = canvas.picture, _ACTS.get(name)
        if name in _LOOKS:
            getattr(picture, _LOOKS[name])()
        elif act is not None:
            getattr(picture, act)(1.0 + magnitude)
        elif name == "Posterize":
            posterize(canvas, int(magnitude))
        elif name == "Solarize":
            picture.solarize(magnitude if self.version == 1 else 255.0 * magnitude)
        else:
            self._move(canvas, name, magnitude)

    def _move(self, canvas: Canvas, name: str, magnitude: float) -> None:
        picture, fill = canvas.picture, colour(self.fill, canvas.channels)
        if name == "Rotate":
            picture.rotate(magnitude, self.resample, False, None, fill)
            return
        shear, translate, center = [0.0, 0.0], [0, 0], None
        if name.startswith("Shear"):
            shear[name == "ShearY"] = math.degrees(math.atan(magnitude))
            center = [0, 0]
        else:
            translate[name == "TranslateY"] = int(magnitude)
        picture.affine(self._matrix(canvas.width, canvas.height, translate, shear, center), self.resample, fill)

    def _matrix(
        self, width: int, height: int, translate: Sequence[float], shear: Sequence[float], center: Any
    ) -> list[float]:
        return affine_matrix(self.version, width, height, 0.0, translate, 1.0, shear, center)


_LOOKS = {"AutoContrast": "autocontrast", "Equalize": "equalize", "Invert": "invert"}
_ACTS = {"Brightness": "brightness", "Color": "saturation", "Contrast": "contrast", "Sharpness": "sharpness"}
_MOVES = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
NAMES = {"Identity", "Posterize", "Solarize", *_LOOKS, *_ACTS, *_MOVES}


class TrivialAugment(Policy):
    """TrivialAugmentWide: one operation of any magnitude."""

    def apply(self, canvas: Canvas, draws: Draws) -> None:
        space = self._space(self.transform.num_magnitude_bins, canvas.height, canvas.width)
        name, magnitudes, signed = space[draws.below(len(space))]
        magnitude = 0.0
        if magnitudes is not None:
            magnitude = self._negated(magnitudes[draws.below(len(magnitudes))], signed, draws)
        self._act(canvas, name, magnitude)


class RandAugment(Policy):
    """RandAugment: several operations of one magnitude."""

    def apply(self, canvas: Canvas, draws: Draws) -> None:
        transform, height, width = self.transform, canvas.height, canvas.width
        for _ in range(transform.num_ops):
            space = self._space(transform.num_magnitude_bins, height, width)
            name, magnitudes, signed = space[draws.below(len(space))]
            magnitude = 0.0
            if magnitudes is not None:
                magnitude = self._negated(magnitudes[transform.magnitude], signed, draws)
            self._act(canvas, name, magnitude)


class AutoAugment(Policy):
    """AutoAugment: two operations of a policy, each with a probability."""

    def apply(self, canvas: Canvas, draws: Draws) -> None:
        transform = self.transform
        space = {
            name: (magnitudes, signed) for name, magnitudes, signed in self._space(10, canvas.height, canvas.width)
        }
        if self.version == 1:
            chosen, probabilities, signs = transform.get_params(len(transform.policies))
            for at, (name, p, magnitude_at) in enumerate(transform.policies[chosen]):
                if probabilities[at] <= p:
                    magnitudes, signed = space[name]
                    magnitude = magnitudes[magnitude_at] if magnitude_at is not None and magnitudes else 0.0
                    self._act(canvas, name, -magnitude if signed and signs[at] == 0 else magnitude)
            return
        for name, p, magnitude_at in transform._policies[draws.below(len(transform._policies))]:
            if draws.is_at_most(p):
                magnitudes, signed = space[name]
                magnitude = 0.0
                if magnitudes is not None:
                    magnitude = self._negated(magnitudes[magnitude_at], signed, draws)
                self._act(canvas, name, magnitude)


def knows(policy: Policy) -> bool:
    """Whether we know all operations that it may draw: a later torchvision could have others."""
    names = {name for name, *_ in policy._space(10, 224, 224)}
    return names <= NAMES
