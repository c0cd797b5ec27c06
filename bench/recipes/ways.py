"""The ways from files to samples that are measured, by torchvision, timm, albumentations, DALI or images.fuse.
It decides which recipes each way has.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.core import jpegs
from bench.core.loaders import missing
from bench.recipes import albumentations_recipes, dali_recipes
from bench.recipes.recipes import RECIPES
from shmloader import images

__all__ = ["ALBUMENTATIONS", "DALI", "FAST", "FLOOR", "FUSED", "OURS", "V1", "V2", "WAYS", "Way", "dataset", "samples"]

V1, V2, ALBUMENTATIONS, DALI, FUSED, FAST, FLOOR = "v1", "v2", "albumentations", "dali", "fused", "fast", "floor"
OURS = (FUSED, FAST)


@dataclass(frozen=True)
class Way:
    """One of them.

    Args:
        label: For tables and pictures.
        needs: The modules that it imports, besides those of the recipe.
        only: The recipes that it has; None: all.
        has_loader: Whether it is measured with workers too.
    """

    label: str
    needs: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None
    has_loader: bool = True

    def has(self, recipe: str) -> bool:
        """Whether it can make this recipe's samples, here."""
        return (self.only is None or recipe in self.only) and not missing(self.needs)


_OF_TORCHVISION = tuple(name for name in RECIPES if not name.startswith("timm"))
WAYS = {
    V1: Way("torchvision v1, or timm"),
    V2: Way("torchvision v2", only=_OF_TORCHVISION),
    ALBUMENTATIONS: Way(
        "albumentations, cv2", albumentations_recipes.NEEDS, only=tuple(albumentations_recipes.RECIPES)
    ),
    DALI: Way("DALI, CPU", dali_recipes.NEEDS, only=tuple(dali_recipes.RECIPES)),
    FUSED: Way("images.fuse"),
    FAST: Way("images.fuse, exact=False"),
    FLOOR: Way("our decoder alone", has_loader=False),
}


def samples(folder: str, transform: Any) -> Any:
    """torchvision's ImageFolder over the files of one folder.

    It is that class itself: images.fuse calls a class's own `__getitem__` as it is, and then nothing is fused.

    Args:
        folder: Where the files are.
        transform: What makes a sample of a PIL image.
    """
    from torchvision.datasets import ImageFolder
    from torchvision.datasets import folder as torchvisions

    made: Any = ImageFolder.__new__(ImageFolder)
    made.root, made.samples = folder, [(path, 0) for path in jpegs.files(Path(folder))]
    made.loader, made.transform, made.target_transform = torchvisions.default_loader, transform, None
    return made


class _Pictures:
    """A dataset without its labels."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index][0]


def dataset(recipe: str, way: str, folder: str) -> Any:
    """The pictures of a recipe, made in one of the ways; of any but DALI's, which makes batches."""
    if way == ALBUMENTATIONS:
        return albumentations_recipes.Samples(recipe, jpegs.files(Path(folder)))
    if way == FLOOR:
        return _Pictures(images.fuse(samples(folder, _cropped())))
    from torchvision.transforms import v2

    version = v2 if way == V2 else import_module("torchvision.transforms")
    made = samples(folder, RECIPES[recipe].open(version))
    return _Pictures(images.fuse(made, exact=way == FUSED) if way in OURS else made)


def _cropped() -> Any:
    """As little as a sample can be made by: a box, decoded to bytes."""
    from torchvision import transforms

    return transforms.Compose([transforms.RandomResizedCrop(224), transforms.PILToTensor()])
