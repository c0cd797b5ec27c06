"""The recipes that are measured: transforms as users write them, from torchvision (v1, v2) and timm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from bench.core.loaders import missing
from shmloader import images

__all__ = ["RECIPES", "Recipe"]

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Recipe:
    """One of them.

    Args:
        label: for the table.
        needs: the modules that it imports.
        open: makes the transform; its argument is torchvision's v1 or v2.
    """

    label: str
    open: Callable[[Any], Any]
    needs: tuple[str, ...] = ("torchvision",)

    def why_not(self) -> str:
        """Why it cannot be measured here; empty where it can."""
        return missing(self.needs)


def _numbers(transforms: Any) -> list[Any]:
    import torch
    from torchvision.transforms import v2

    if transforms is v2:
        return [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(_MEAN, _STD)]
    return [transforms.ToTensor(), transforms.Normalize(_MEAN, _STD)]


def _training(by: str, *after: Callable[[Any], Any], erased: bool = False) -> Callable[[Any], Any]:
    def opened(transforms: Any) -> Any:
        from torchvision.transforms import InterpolationMode

        steps = [
            transforms.RandomResizedCrop(224, interpolation=InterpolationMode(by)),
            transforms.RandomHorizontalFlip(),
        ]
        steps += [one(transforms) for one in after] + _numbers(transforms)
        return transforms.Compose([*steps, transforms.RandomErasing(0.1)] if erased else steps)

    return opened


def _evaluation(resized: int, by: str) -> Callable[[Any], Any]:
    def opened(transforms: Any) -> Any:
        from torchvision.transforms import InterpolationMode

        return transforms.Compose(
            [
                transforms.Resize(resized, interpolation=InterpolationMode(by)),
                transforms.CenterCrop(224),
                *_numbers(transforms),
            ]
        )

    return opened


def _timm(**options: Any) -> Callable[[Any], Any]:
    def opened(transforms: Any) -> Any:
        create_transform: Any = import_module("timm.data").create_transform
        return create_transform(224, is_training=True, **options)

    return opened


def _dino(transforms: Any) -> Any:
    """DINOv2's crops: https://github.com/facebookresearch/dinov2, dinov2/data/augmentations.py."""
    from torchvision.transforms import InterpolationMode

    def view(size: int, scale: tuple[float, float], blurred: float, *last: Any) -> Any:
        crop = transforms.RandomResizedCrop(size, scale=scale, interpolation=InterpolationMode.BICUBIC)
        jitter = transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8)
        blur = transforms.RandomApply([transforms.GaussianBlur(9, (0.1, 2.0))], p=blurred)
        steps = [crop, transforms.RandomHorizontalFlip(), jitter, transforms.RandomGrayscale(0.2), blur, *last]
        return transforms.Compose(steps + _numbers(transforms))

    whole, part = (0.32, 1.0), (0.05, 0.32)
    first, second = view(224, whole, 1.0), view(224, whole, 0.1, transforms.RandomSolarize(128, p=0.2))
    return images.views(first, second, *[view(96, part, 0.5)] * 8)


_SIMCLR: tuple[Callable[[Any], Any], ...] = (
    lambda transforms: transforms.RandomApply([transforms.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
    lambda transforms: transforms.RandomGrayscale(0.2),
    lambda transforms: transforms.RandomApply([transforms.GaussianBlur(23, (0.1, 2.0))], p=0.5),
)

# Without mmax9 some magnitudes ask Pillow to keep 0 bits of a colour, which it refuses since its version 13.
_TIMM: dict[str, Any] = {"auto_augment": "rand-m9-mstd0.5-mmax9-inc1", "interpolation": "bicubic", "re_prob": 0.25}

RECIPES = {
    "crop": Recipe("bilinear crop, flip", _training("bilinear")),
    "bicubic": Recipe("bicubic crop, flip", _training("bicubic")),
    "trivial": Recipe(
        "crop, flip, TrivialAugmentWide, erasing",
        _training("bilinear", lambda transforms: transforms.TrivialAugmentWide(), erased=True),
    ),
    "rand": Recipe("crop, flip, RandAugment", _training("bilinear", lambda transforms: transforms.RandAugment())),
    "timm": Recipe("timm: bicubic crop, RandAugment, erasing", _timm(**_TIMM), ("torchvision", "timm")),
    "timm-defaults": Recipe("timm's defaults: crop, flip, jitter", _timm(), ("torchvision", "timm")),
    "clip": Recipe("resize 224 bicubic, centre crop", _evaluation(224, "bicubic")),
    "evaluation": Recipe("resize 256, centre crop", _evaluation(256, "bilinear")),
    "simclr": Recipe("SimCLR", _training("bilinear", *_SIMCLR)),
    "dino": Recipe("DINOv2: two crops of 224, eight of 96", _dino),
}
