"""timm's transforms and open_clip's: one function for each, which returns its steps, or why it has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shmloader.images.known import pair, resample_of
from shmloader.images.known_operations import Nest, Steps
from shmloader.images.operations import Chance
from shmloader.images.random_numbers import NUMPY, PYTHON
from shmloader.images.timm_steps import (
    Augment,
    Augments,
    CenterCropOrPad,
    Mix,
    Policies,
    RandomBox,
    ResizeKeepRatio,
    augment_of,
)

__all__ = ["ELSEWHERE", "IN_PLACE", "NUMBERS"]

_TIMM, _AUGMENT, _CLIP = "timm.data.transforms", "timm.data.auto_augment", "open_clip.transform"
# Transforms that make numbers of a picture, and torchvision's that do the same.
NUMBERS = {
    (_TIMM, "MaybeToTensor"): "ToTensor",
    (_TIMM, "MaybePILToTensor"): "PILToTensor",
    (_CLIP, "MaybeToTensor"): "ToTensor",
}
IN_PLACE = {("timm.data.random_erasing", "RandomErasing")}


def _resamples(transform: Any) -> tuple[int, ...] | None:
    several = transform.interpolation
    resamples = [resample_of(one) for one in (several if isinstance(several, (tuple, list)) else [several])]
    return None if None in resamples else tuple(int(one) for one in resamples if one is not None)


def _box(nest: Nest, transform: Any, version: int) -> Steps:
    resamples = _resamples(transform)
    if resamples is None:
        return f"Pillow has no interpolation {transform.interpolation}"
    nest.draws_by(PYTHON)
    return (RandomBox(transform, resamples),)


def _keep_ratio(nest: Nest, transform: Any, version: int) -> Steps:
    resamples = _resamples(transform)
    if resamples is None:
        return f"Pillow has no interpolation {transform.interpolation}"
    nest.draws_by(PYTHON)
    return (ResizeKeepRatio(transform, resamples),)


def _middle(nest: Nest, transform: Any, version: int) -> Steps:
    return (CenterCropOrPad(pair(transform.size), transform.fill, getattr(transform, "padding_mode", "constant")),)


def _augments(transforms: Any) -> tuple[Augment, ...] | str:
    steps: list[Augment] = []
    for one in transforms:
        step = augment_of(one)
        if isinstance(step, str):
            return step
        steps.append(step)
    return tuple(steps)


def _rand_augment(nest: Nest, transform: Any, version: int) -> Steps:
    steps = _augments(transform.ops)
    if isinstance(steps, str):
        return steps
    nest.draws_by(PYTHON, NUMPY)
    return (Augments(transform, steps),)


def _auto_augment(nest: Nest, transform: Any, version: int) -> Steps:
    policies: list[tuple[Augment, ...]] = []
    for policy in transform.policy:
        steps = _augments(policy)
        if isinstance(steps, str):
            return steps
        policies.append(steps)
    nest.draws_by(PYTHON)
    return (Policies(tuple(policies)),)


def _mix(nest: Nest, transform: Any, version: int) -> Steps:
    steps = _augments(transform.ops)
    if isinstance(steps, str):
        return steps
    nest.draws_by(PYTHON, NUMPY)
    return (Mix(transform, steps),)


def _by_chance(nest: Nest, transform: Any, version: int) -> Steps:
    steps = nest.nested([transform.transf])
    if isinstance(steps, str):
        return steps
    nest.draws_by(PYTHON)
    return (Chance(float(transform.p), "python", steps),)


def _nothing(nest: Nest, transform: Any, version: int) -> Steps:
    """Converts to RGB, which the picture already is."""
    return () if getattr(transform, "mode", "RGB") == "RGB" else "it converts to another mode"


ELSEWHERE: dict[tuple[str, str], Callable[[Nest, Any, int], Steps]] = {
    (_TIMM, "RandomResizedCropAndInterpolation"): _box,
    (_TIMM, "ResizeKeepRatio"): _keep_ratio,
    (_TIMM, "CenterCropOrPad"): _middle,
    (_AUGMENT, "RandAugment"): _rand_augment,
    (_AUGMENT, "AutoAugment"): _auto_augment,
    (_AUGMENT, "AugMixAugment"): _mix,
    (_CLIP, "ResizeKeepRatio"): _keep_ratio,
    (_CLIP, "CenterCropOrPad"): _middle,
    (_CLIP, "MaybeConvertMode"): _nothing,
    (_CLIP, "_convert_to_rgb"): _nothing,
    (_CLIP, "color_jitter"): _by_chance,
    (_CLIP, "gray_scale"): _by_chance,
}
