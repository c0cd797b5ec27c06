"""The recipes as users of albumentations write them, with its nearest transforms, on pictures that cv2 has read.

cv2's filters look at fewer pixels than Pillow's when they make a picture smaller, so the pixels differ.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

__all__ = ["NEEDS", "RECIPES", "Samples"]

NEEDS = ("albumentations", "cv2")
SIZE = (224, 224)


def _cropped(filter: str, *between: Callable[[Any], Any]) -> Callable[[], Any]:
    def opened() -> Any:
        a, cv2 = _modules()
        crop = a.RandomResizedCrop(SIZE, interpolation=getattr(cv2, filter))
        return _composed(crop, a.HorizontalFlip(p=0.5), *(one(a) for one in between))

    return opened


def _middle(resized: int, filter: str) -> Callable[[], Any]:
    def opened() -> Any:
        a, cv2 = _modules()
        smaller = a.SmallestMaxSize(max_size=resized, interpolation=getattr(cv2, filter))
        return _composed(smaller, a.CenterCrop(*SIZE))

    return opened


def _modules() -> tuple[Any, Any]:
    cv2: Any = import_module("cv2")
    cv2.setNumThreads(0)
    return import_module("albumentations"), cv2


def _composed(*steps: Any) -> Any:
    a: Any = import_module("albumentations")
    return a.Compose([*steps, a.Normalize(), a.pytorch.ToTensorV2()])


# TrivialAugment, RandAugment and several views of one picture are not among its transforms.
RECIPES: dict[str, Callable[[], Any]] = {
    "crop": _cropped("INTER_LINEAR"),
    "bicubic": _cropped("INTER_CUBIC"),
    "clip": _middle(224, "INTER_CUBIC"),
    "evaluation": _middle(256, "INTER_LINEAR"),
    "simclr": _cropped(
        "INTER_LINEAR",
        lambda a: a.ColorJitter((0.2, 1.8), (0.2, 1.8), (0.2, 1.8), (-0.2, 0.2), p=0.8),
        lambda a: a.ToGray(p=0.2),
        lambda a: a.GaussianBlur(blur_limit=(23, 23), sigma_limit=(0.1, 2.0), p=0.5),
    ),
}


class Samples:
    """Samples of files, by a recipe.

    Args:
        recipe: A key of RECIPES.
        files: Their paths.
    """

    def __init__(self, recipe: str, files: list[str]) -> None:
        self._files = files
        self._transform = RECIPES[recipe]()

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Any:
        cv2: Any = import_module("cv2")
        picture = cv2.imread(self._files[index], cv2.IMREAD_COLOR_RGB)
        return self._transform(image=picture)["image"]
