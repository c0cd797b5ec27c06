"""JPEG and PNG files in class folders: which ones train and which ones test, and reading them as a torch Dataset."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor
from torch.utils.data import Dataset

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png"}
TEST_FOLDERS = ("test", "val")  # the first one that exists is taken
TEST_SHARE = 0.2  # of each class, where the folder brings no split of its own
SMALLEST_CROP = 0.75  # of the shorter side
JITTER = 0.2  # brightness and contrast are scaled by 1 - JITTER to 1 + JITTER
EXPECTED = "A data folder holds train/<class>/*.jpg and test/<class>/*.jpg (or val/), or <class>/*.jpg to be split."

LabelledFile = tuple[Path, int]


class DataFolderError(ValueError):
    """A data folder that training cannot use; the message says which, why, and what was expected."""


class Split(NamedTuple):
    classes: list[str]  # a label is a place in this list
    train: list[LabelledFile]
    test: list[LabelledFile]


def find_images(root: Path) -> Split:
    """The labelled files under `root`, which holds either train/ and test/ (or val/), or class folders alone.

    Class folders alone are split here, class by class, by a checksum of the file name: the same files always fall on
    the same side.  Raises DataFolderError for anything else.
    """
    if not root.is_dir():
        raise DataFolderError(f"{root} is not a folder. {EXPECTED}")
    test_root = next((root / name for name in TEST_FOLDERS if (root / name).is_dir()), None)
    if (root / "train").is_dir() and test_root is not None:
        return _given_split(root / "train", test_root)
    if (root / "train").is_dir() or test_root is not None:
        raise DataFolderError(f"{root} holds one side of a split and not the other. {EXPECTED}")
    return _own_split(root)


def _given_split(train_root: Path, test_root: Path) -> Split:
    train, test = _images_by_class(train_root), _images_by_class(test_root)
    if unknown := sorted(test.keys() - train.keys()):
        raise DataFolderError(
            f"{test_root} holds classes that {train_root} does not: {', '.join(unknown[:5])}. "
            f"Name the class folders of both alike."
        )
    return _label(train, test)


def _own_split(root: Path) -> Split:
    train: dict[str, list[Path]] = {}
    test: dict[str, list[Path]] = {}
    for name, files in _images_by_class(root).items():
        if len(files) < 2:
            raise DataFolderError(f"{root / name} holds 1 image; a class needs 2, one to train on and one to test.")
        shuffled = sorted(files, key=lambda file: (zlib.crc32(file.name.encode()), file.name))
        tested = max(1, round(len(files) * TEST_SHARE))
        test[name], train[name] = shuffled[:tested], shuffled[tested:]
    return _label(train, test)


def _images_by_class(root: Path) -> dict[str, list[Path]]:
    folders = sorted(entry for entry in root.iterdir() if entry.is_dir())
    images = {folder.name: _images_in(folder) for folder in folders}
    images = {name: files for name, files in images.items() if files}
    if images:
        return images
    if flat := len(_images_in(root)):
        raise DataFolderError(
            f"{root} holds {flat} image files but no class folders, so their classes are not known: "
            f"move each file into a folder named after its class. {EXPECTED}"
        )
    raise DataFolderError(f"{root} holds no images in class folders. {EXPECTED}")


def _images_in(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in IMAGE_SUFFIXES)


def _label(train: dict[str, list[Path]], test: dict[str, list[Path]]) -> Split:
    classes = sorted(train)
    if len(classes) < 2:
        raise DataFolderError(f"{next(iter(train.values()))[0].parent} is the only class; training needs at least 2.")

    def labelled(side: dict[str, list[Path]]) -> list[LabelledFile]:
        return [(file, label) for label, name in enumerate(classes) for file in side.get(name, [])]

    return Split(classes, labelled(train), labelled(test))


class ImageFolder(Dataset[tuple[Tensor, int]]):
    """Decodes one file a sample: (image, label), the image uint8 of shape [size, size, 3].

    Pixels stay bytes with the colours last, as they leave the decoder: four times fewer bytes than float travel from
    the worker to the trainer, and the model turns a whole batch into floats at once.
    """

    def __init__(self, files: Sequence[LabelledFile], size: int, *, augment: bool) -> None:
        self.files = files
        self.size = size
        self.augment = augment

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        file, label = self.files[index]
        with Image.open(file) as image:
            # JPEG decodes to 1/2, 1/4 or 1/8 of its size for a fraction of the work; this asks for no less than needed.
            image.draft("RGB", (2 * self.size, 2 * self.size))
            pixels = image.convert("RGB")
        pixels = self._random_view(pixels) if self.augment else self._whole_view(pixels)
        return torch.from_numpy(np.array(pixels)), label

    def _whole_view(self, image: Image.Image) -> Image.Image:
        side = min(image.size)
        return self._resized(image, side, side, 0.5, 0.5)

    def _random_view(self, image: Image.Image) -> Image.Image:
        # Drawn from torch's generator, which each worker finds seeded by the loader: the same seed in the training run
        # gives the same pictures, and with either loader.
        width, height = (torch.empty(2).uniform_(SMALLEST_CROP, 1) * min(image.size)).tolist()
        across, down = torch.rand(2).tolist()
        brightness, contrast = torch.empty(2).uniform_(1 - JITTER, 1 + JITTER).tolist()
        image = self._resized(image, width, height, across, down)
        image = ImageEnhance.Brightness(image).enhance(brightness)
        return ImageEnhance.Contrast(image).enhance(contrast)

    def _resized(self, image: Image.Image, width: float, height: float, across: float, down: float) -> Image.Image:
        """The part of that width and height, scaled to a square; `across` and `down` (0 to 1) say where it lies."""
        left, top = across * (image.width - width), down * (image.height - height)
        box = (left, top, left + width, top + height)
        return image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)
