"""From transforms to a recipe: which of them are fused, which are called as they are, and why.

A transform is recognised by its class's module and name, and described by its public attributes.  So this file imports
neither torchvision nor timm nor open_clip.

A transform that is not known gets the PIL image that it would get without shmloader, and those after it are fused
again.  Once a picture has become numbers, the first unknown transform and all after it are called as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from shmloader.images.canvas import Step
from shmloader.images.crops import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from shmloader.images.filters import BICUBIC, BILINEAR
from shmloader.images.finish import CallInPlace, Divide, Erase, Finish, Multiply, Normalize, RowStep
from shmloader.images.known import fill_of, is_changed, key_of, pair, resample_of, text_of, version_of
from shmloader.images.known_elsewhere import ELSEWHERE, IN_PLACE, NUMBERS
from shmloader.images.known_operations import OPERATIONS, Steps, sides_of
from shmloader.images.operations import Call, PaddedCrop
from shmloader.images.random_numbers import NUMPY, PYTHON
from shmloader.images.recipe import Recipe

__all__ = ["recognise"]

_PRESETS = "torchvision.transforms._presets"
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_FUSED = "fused"


def recognise(transform: Any, exact: bool) -> Recipe:
    """The recipe of a transform, with notes on each part of it.

    Args:
        transform: a stock Compose (or nn.Sequential), one stock transform, a preset of torchvision's weights, or any
            function of a PIL image.
        exact: whether samples must equal torchvision's bit for bit.
    """
    reading = _Reading(exact)
    for part in _parts(transform):
        reading.read(part)
    return reading.recipe()


def _parts(transform: Any) -> Iterator[Any]:
    """The single transforms of a composed one."""
    module, name = key_of(transform)
    is_sequential = module == "torch.nn.modules.container" and name == "Sequential"
    if (is_sequential or (version_of(transform) and name == "Compose")) and not is_changed(transform):
        for part in transform if is_sequential else transform.transforms:
            yield from _parts(part)
    else:
        yield transform


class _Reading:
    """A recipe while its transforms are read."""

    def __init__(self, exact: bool) -> None:
        self.exact = exact
        self._steps: list[Step] = []
        self._finish: Finish | None = None  # None: the next transform still gets a picture
        self._row_steps: list[RowStep] = []
        self._rest: list[Callable[[Any], Any]] = []
        self._notes: list[tuple[str, str]] = []
        self._read: list[Callable[[Any], Any]] = []
        self._calls: list[tuple[int, int]] = []  # for each transform that is called: its index in _steps and in _read
        self._draws_by: set[str] = set()
        self._channels = 3  # of the picture after the transforms read so far

    def recipe(self) -> Recipe:
        steps = list(self._steps)
        for at, read in self._calls:
            steps[at] = Call(self._read[read], tuple(self._read[read + 1 :]))
        return Recipe(
            tuple(steps),
            self._finish and replace(self._finish, channels=self._channels),
            tuple(self._rest),
            tuple(self._notes),
            tuple(self._row_steps),
            frozenset(self._draws_by),
            tuple(self._read),
        )

    def read(self, transform: Any) -> None:
        """Fuse it, or note that it is called as it is."""
        self._read.append(transform)
        if self._rest:
            self._leave(transform, "comes after one that is not fused")
            return
        before = len(self._steps)
        try:
            why_not = self._fuse(transform)
        except (AttributeError, TypeError, ValueError, IndexError) as error:
            del self._steps[before:]
            why_not = f"its attributes are not those that are known: {error}"
        if why_not:
            self._leave(transform, why_not)
        else:
            self._notes.append((text_of(transform), _FUSED))

    def nested(self, transforms: Sequence[Any]) -> Steps:
        """The steps of the transforms inside another one; or why there are none."""
        inside = _Reading(self.exact)
        for transform in transforms:
            for part in _parts(transform):
                why_not = inside._fuse(part)
                if why_not or inside._finish is not None:
                    return f"{key_of(part)[1]} in it: {why_not or 'it makes numbers'}"
        if inside._channels != 3:
            return "Grayscale in it: pictures would have one channel by chance"
        self._draws_by |= inside._draws_by
        return tuple(inside._steps)

    def draws_by(self, *generators: str) -> None:
        """Note that the generators PYTHON or NUMPY are drawn from."""
        self._draws_by.update(generators)

    def has_channels(self, channels: int) -> None:
        """Note that pictures have this number of channels from here on."""
        self._channels = channels

    def _leave(self, transform: Any, why: str) -> None:
        if self._finish is None and not self._rest:
            self._calls.append((len(self._steps), len(self._read) - 1))
            self._steps.append(Call(transform))
            self.draws_by(PYTHON, NUMPY)
        else:
            self._rest.append(transform)
        self._notes.append((text_of(transform), f"called as it is: {why}"))

    def _fuse(self, transform: Any) -> str:
        """Fuse a transform; returns why it cannot be fused, or nothing."""
        key = key_of(transform)
        if key == (_PRESETS, "ImageClassification"):
            return self._preset(transform)
        version = version_of(transform)
        name = NUMBERS.get(key, key[1])
        if key in IN_PLACE or key in NUMBERS or key in ELSEWHERE or key == ("timm.data.transforms", "ToNumpy"):
            version = version or 1
        reads: Callable[[Any, int], str] | None = getattr(self, f"_{name}", None) if version else None
        operation = ELSEWHERE.get(key) or (OPERATIONS.get(name) if version else None)
        if reads is None and operation is None and key not in IN_PLACE:
            return "not one of the transforms that are known"
        if is_changed(transform):
            return "it has hooks or methods of its own"
        if key in IN_PLACE:
            return self._in_place(transform)
        if key in ELSEWHERE:
            reads = None
        if version == 1 and self._finish is not None and self._finish.is_image:
            return "a transform of v1 gets a tv_tensors.Image of v2"
        if self._row_steps and not (reads is not None and name == "RandomErasing"):
            return "it comes after one that changes numbers in their row"
        if reads is not None:
            return reads(transform, version)
        assert operation is not None
        if self._finish is not None:
            return "it gets a tensor, and torch's own way of changing it stays"
        steps = operation(self, transform, version)
        if isinstance(steps, str):
            return steps
        self._steps.extend(steps)
        return ""

    def _in_place(self, transform: Any) -> str:
        if self._finish is None:
            return "it takes a tensor, and gets a PIL image"
        if str(transform.device) != "cpu":
            return f"its numbers are made on {transform.device}"
        self._row_steps.append(CallInPlace(transform))
        return ""

    # ---------------------------------------------------------------------------------------------- where and how large

    def _resizes(self, transform: Any) -> str:
        """Why a resize cannot be fused; empty if it can."""
        resample = resample_of(transform.interpolation)
        if resample is None:
            return f"Pillow has no interpolation {transform.interpolation}"
        if self._finish is not None:
            if self._finish.dtype is not torch.uint8:
                return "numbers are resized, and not bytes"
            if self.exact:
                return "a tensor is resized with other roundings than a picture; exact=False allows it"
            if resample not in (BILINEAR, BICUBIC):
                return "torch resizes tensors by this filter in another way, or not at all"
            if not transform.antialias:
                return "antialias is off"
        return ""

    def _RandomResizedCrop(self, transform: Any, version: int) -> str:
        why_not = self._resizes(transform)
        if not why_not:
            scale, ratio, resample = transform.scale, transform.ratio, resample_of(transform.interpolation)
            bounds = (scale[0], scale[1]), (ratio[0], ratio[1])
            self._steps.append(RandomResizedCrop(pair(transform.size), *bounds, cast(int, resample)))
        return why_not

    def _Resize(self, transform: Any, version: int) -> str:
        return self._resizes(transform) or self._resized(transform, transform.size, transform.max_size)

    def _resized(self, transform: Any, size: Any, longest: int | None) -> str:
        if size is None:
            return "it has no size"
        sizes = [size] if isinstance(size, int) else list(size)
        if longest is not None and (len(sizes) != 1 or longest <= sizes[0]):
            return "its size and max_size contradict one another"
        both = int(sizes[0]) if len(sizes) == 1 else pair(sizes)
        self._steps.append(Resize(both, longest, cast(int, resample_of(transform.interpolation))))
        return ""

    def _CenterCrop(self, transform: Any, version: int) -> str:
        if self._finish is not None and any(isinstance(operation, Normalize) for operation in self._finish.operations):
            return "its black edges would not be those of a picture that is normalised later"
        self._steps.append(CenterCrop(pair(transform.size)))
        return ""

    def _RandomCrop(self, transform: Any, version: int) -> str:
        size, crop = pair(transform.size), RandomCrop(pair(transform.size), draws_all=version == 1)
        if transform.padding is None and not transform.pad_if_needed:
            self._steps.append(crop)
            return ""
        if self._finish is not None:
            return "it pads a tensor"
        sides = None
        if transform.padding is not None:
            left, top, right, bottom = sides_of(transform.padding)
            # v2 stores them as left, right, top and bottom
            sides = (left, top, right, bottom) if version == 1 else (left, right, top, bottom)
        fill = fill_of(transform, version)
        if not isinstance(fill, (int, float, tuple, list, type(None))):
            return f"Pillow has no colour {fill!r}"
        padded = bool(transform.pad_if_needed)
        self._steps.append(PaddedCrop(size, sides, padded, str(transform.padding_mode), fill, crop, version))
        return ""

    def _RandomHorizontalFlip(self, transform: Any, version: int) -> str:
        self._steps.append(RandomHorizontalFlip(float(transform.p)))
        return ""

    # ---------------------------------------------------------------------------------------------- bytes and numbers

    def _becomes(self, dtype: torch.dtype, scale: Divide | Multiply | None) -> str:
        finish = self._finish
        if finish is None:
            return "it does nothing to a PIL image"
        if finish.dtype is dtype:
            return ""
        if finish.dtype is not torch.uint8 or dtype not in _FLOATS:
            return f"from {finish.dtype} to {dtype}"
        self._finish = replace(finish, dtype=dtype, operations=() if scale is None else (scale,))
        return ""

    def _PILToTensor(self, transform: Any, version: int) -> str:
        if self._finish is not None:
            return "what it gets is a tensor already"
        self._finish = Finish(is_lying=True)
        return ""

    def _ToImage(self, transform: Any, version: int) -> str:
        self._finish = replace(self._finish or Finish(is_lying=True), is_image=True)
        return ""

    def _ToPureTensor(self, transform: Any, version: int) -> str:
        if self._finish is not None:
            self._finish = replace(self._finish, is_image=False)
        return ""

    def _ToNumpy(self, transform: Any, version: int) -> str:
        if self._finish is not None:
            return "what it gets is a tensor already"
        self._finish = Finish(is_lying=True, is_array=True)
        return ""

    def _ToTensor(self, transform: Any, version: int) -> str:
        if self._finish is not None:
            return "what it gets is a tensor already"
        self._finish = Finish()
        return self._becomes(torch.get_default_dtype(), Divide(255.0))

    def _ToDtype(self, transform: Any, version: int) -> str:
        if not isinstance(transform.dtype, torch.dtype):
            return "it has a dtype for each kind of tensor"
        return self._becomes(transform.dtype, Multiply(1.0 / 255) if transform.scale else None)

    def _ConvertImageDtype(self, transform: Any, version: int) -> str:
        return self._becomes(transform.dtype, Divide(255.0) if version == 1 else Multiply(1.0 / 255))

    def _RandomErasing(self, transform: Any, version: int) -> str:
        if self._finish is None:
            return "it takes a tensor, and gets a PIL image"
        transform.get_params  # noqa: B018 - an AttributeError says that it is another one
        self._row_steps.append(Erase(transform))
        return ""

    def _Normalize(self, transform: Any, version: int) -> str:
        finish = self._finish
        if finish is None or finish.dtype is torch.uint8:
            return "it takes numbers, and gets a picture of bytes"
        mean, std = list(transform.mean), list(transform.std)
        if {len(mean), len(std)} - {1, self._channels} or not all(torch.tensor(std, dtype=finish.dtype, device="cpu")):
            return "its mean and std are not for the picture's channels, or a std is 0"
        self._finish = replace(finish, operations=(*finish.operations, Normalize(mean, std, finish.dtype)))
        return ""

    def _preset(self, transform: Any) -> str:
        """The preset of torchvision's weights: resize, centre, numbers, normalised."""
        if self._finish is not None or is_changed(transform):
            return "it comes after others"
        why_not = self._resizes(transform) or self._resized(transform, transform.resize_size, None)
        if why_not:
            return why_not
        self._steps.append(CenterCrop(pair(transform.crop_size)))
        normal = Normalize(list(transform.mean), list(transform.std), torch.float32)
        self._finish = Finish(torch.float32, (Divide(255.0), normal), is_lying=True)
        return ""
