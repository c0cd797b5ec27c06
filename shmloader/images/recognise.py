"""torchvision's transforms as a recipe: which of them are fused, which stay as they are, and why.

A transform is known by its class's module and name, and read by its public attributes, so torchvision itself is never
imported here.  v1 (torchvision.transforms) and v2 do the same, but for what RandomCrop draws and how bytes are scaled.

From the first one that is not known on, all are called as they are: its draws and theirs must come in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import torch

from shmloader.images.crops import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize, Step
from shmloader.images.filters import BICUBIC, BILINEAR, NEAREST, filter_number
from shmloader.images.finish import Divide, Finish, Multiply, Normalize
from shmloader.images.recipe import Recipe

__all__ = ["recognise"]

_V1, _V2 = "torchvision.transforms.transforms", "torchvision.transforms.v2."
_PRESETS = "torchvision.transforms._presets"
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
# An instance that has one of these of its own does not do what its class does.
_METHODS = ("forward", "transform", "make_params", "_get_params", "get_params", "__call__")
_FUSED = "fused"


def recognise(transform: Any, exact: bool) -> Recipe:
    """The recipe of a transform, with notes on each part of it.

    Args:
        transform: a stock Compose (or nn.Sequential), one stock transform, a preset of torchvision's weights, or any
            function of a PIL image.
        exact: whether samples are to be torchvision's to the bit.
    """
    reading = _Reading(exact)
    for part in _parts(transform):
        reading.read(part)
    return reading.recipe()


def _parts(transform: Any) -> Iterator[Any]:
    """The single transforms of a composed one."""
    kind = type(transform)
    is_sequential = kind.__module__ == "torch.nn.modules.container" and kind.__name__ == "Sequential"
    if (is_sequential or (_version(transform) and kind.__name__ == "Compose")) and not _is_changed(transform):
        for part in transform if is_sequential else transform.transforms:
            yield from _parts(part)
    else:
        yield transform


def _version(transform: Any) -> int:
    """1 or 2; 0 where it is not torchvision's."""
    module = type(transform).__module__
    return 1 if module == _V1 else 2 if module.startswith(_V2) else 0


def _is_changed(transform: Any) -> bool:
    """Whether an object of a stock class does more than its class."""
    hooks = any(getattr(transform, name, None) for name in ("_forward_hooks", "_forward_pre_hooks"))
    return hooks or any(name in getattr(transform, "__dict__", ()) for name in _METHODS)


def _said(transform: Any) -> str:
    text = " ".join(repr(transform).split())
    return text if len(text) <= 80 else text[:77] + "..."


def _pair(size: Any) -> tuple[int, int]:
    """Height and width of a `size` that has both, or one for both."""
    sizes = [size] if isinstance(size, int) else list(size)
    return int(sizes[0]), int(sizes[-1])


def _resample(transform: Any) -> int | None:
    """Pillow's number of a transform's filter; None where Pillow has none such."""
    value = getattr(transform.interpolation, "value", transform.interpolation)
    try:
        return NEAREST if value == "nearest-exact" else filter_number(value)  # Pillow has one nearest
    except ValueError:
        return None


class _Reading:
    """A recipe as far as it has been read."""

    def __init__(self, exact: bool) -> None:
        self._exact = exact
        self._steps: list[Step] = []
        self._finish: Finish | None = None  # none yet: what the next transform gets is a picture
        self._rest: list[Callable[[Any], Any]] = []
        self._notes: list[tuple[str, str]] = []
        self._is_resized = self._is_flipped = self._may_be_padded = False

    def recipe(self) -> Recipe:
        return Recipe(tuple(self._steps), self._finish, tuple(self._rest), tuple(self._notes))

    def read(self, transform: Any) -> None:
        """Fuse it, or leave it and all that come after it as they are."""
        if self._rest:
            self._leave(transform, "comes after one that is not fused")
            return
        try:
            why_not = self._fuse(transform)
        except (AttributeError, TypeError, ValueError, IndexError) as error:
            why_not = f"its attributes are not those that are known: {error}"
        if why_not:
            self._leave(transform, why_not)
        else:
            self._notes.append((_said(transform), _FUSED))

    def _leave(self, transform: Any, why: str) -> None:
        self._rest.append(transform)
        self._notes.append((_said(transform), f"called as it is: {why}"))

    def _fuse(self, transform: Any) -> str:
        """Take it up; why not, where it cannot be."""
        if type(transform).__module__ == _PRESETS and type(transform).__name__ == "ImageClassification":
            return self._preset(transform)
        version = _version(transform)
        reads = getattr(self, f"_{type(transform).__name__}", None) if version else None
        if reads is None:
            return "not one of the transforms that are known"
        if _is_changed(transform):
            return "it has hooks or methods of its own"
        if version == 1 and self._finish is not None and self._finish.is_image:
            return "a transform of v1 gets a tv_tensors.Image of v2"
        why: str = reads(transform, version)
        return why

    # ---------------------------------------------------------------------------------------------- where and how large

    def _resizes(self, transform: Any) -> str:
        """Why this cannot be the one resize; nothing where it can."""
        if _resample(transform) is None:
            return f"Pillow has no interpolation {transform.interpolation}"
        if self._is_resized:
            return "the picture is resized once already"
        if self._may_be_padded:
            return "the picture may have black edges by then"
        if self._is_flipped and self._exact:
            return "a flipped picture is resized with other roundings; exact=False allows it"
        if self._finish is not None:
            if self._finish.dtype is not torch.uint8:
                return "numbers are resized, and not bytes"
            if self._exact:
                return "a tensor is resized with other roundings than a picture; exact=False allows it"
            if _resample(transform) not in (BILINEAR, BICUBIC):
                return "torch resizes tensors by this filter in another way, or not at all"
            if not transform.antialias:
                return "antialias is off"
        return ""

    def _RandomResizedCrop(self, transform: Any, version: int) -> str:
        why_not = self._resizes(transform)
        if not why_not:
            scale, ratio, resample = transform.scale, transform.ratio, _resample(transform)
            bounds = (scale[0], scale[1]), (ratio[0], ratio[1])
            self._steps.append(RandomResizedCrop(_pair(transform.size), *bounds, cast(int, resample)))
            self._is_resized = True
        return why_not

    def _Resize(self, transform: Any, version: int) -> str:
        return self._resizes(transform) or self._resized(transform, transform.size, transform.max_size)

    def _resized(self, transform: Any, size: Any, longest: int | None) -> str:
        if size is None:
            return "it has no size"
        sizes = [size] if isinstance(size, int) else list(size)
        if longest is not None and (len(sizes) != 1 or longest <= sizes[0]):
            return "its size and max_size contradict one another"
        both = int(sizes[0]) if len(sizes) == 1 else _pair(sizes)
        self._steps.append(Resize(both, longest, cast(int, _resample(transform))))
        self._is_resized = True
        return ""

    def _CenterCrop(self, transform: Any, version: int) -> str:
        if self._finish is not None and any(isinstance(of, Normalize) for of in self._finish.operations):
            return "its black edges would not be those of a picture that is normalised later"
        self._steps.append(CenterCrop(_pair(transform.size)))
        self._may_be_padded = True
        return ""

    def _RandomCrop(self, transform: Any, version: int) -> str:
        if transform.padding is not None or transform.pad_if_needed:
            return "it pads"
        self._steps.append(RandomCrop(_pair(transform.size), draws_all=version == 1))
        return ""

    def _RandomHorizontalFlip(self, transform: Any, version: int) -> str:
        self._steps.append(RandomHorizontalFlip(float(transform.p)))
        self._is_flipped = True
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

    def _Normalize(self, transform: Any, version: int) -> str:
        finish = self._finish
        if finish is None or finish.dtype is torch.uint8:
            return "it takes numbers, and gets a picture of bytes"
        mean, std = list(transform.mean), list(transform.std)
        if {len(mean), len(std)} - {1, 3} or not all(std):
            return "its mean and std are not for three channels, or a std is 0"
        self._finish = replace(finish, operations=(*finish.operations, Normalize(mean, std, finish.dtype)))
        return ""

    def _preset(self, transform: Any) -> str:
        """What torchvision's weights come with: resize, middle, numbers, normalised."""
        if self._finish is not None or _is_changed(transform):
            return "it comes after others"
        why_not = self._resizes(transform) or self._resized(transform, transform.resize_size, None)
        if why_not:
            return why_not
        self._steps.append(CenterCrop(_pair(transform.crop_size)))
        normal = Normalize(list(transform.mean), list(transform.std), torch.float32)
        self._finish = Finish(torch.float32, (Divide(255.0), normal), is_lying=True)
        return ""
