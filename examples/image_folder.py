"""JPEG and PNG files in class folders: which ones train and which ones test, and reading them as a torch Dataset."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor
from torch.utils.data import Dataset

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png"}
TEST_FOLDERS = ("test", "val")  # the first one that exists counts
TEST_SHARE = 0.2  # of each class, if the folder has no split of its own
SMALLEST_CROP = 0.75  # of the shorter side
JITTER = 0.2  # brightness and contrast are scaled by 1 - JITTER to 1 + JITTER
EXPECTED = "A data folder holds train/<class>/*.jpg and test/<class>/*.jpg (or val/), or <class>/*.jpg to be split."

LabelledFile = tuple[Path, int]


class DataFolderError(ValueError):
    """A data folder that training cannot use; the message has the folder, the reason, and what was expected."""


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


Box = tuple[int, int, int, int]  # left, top, width and height, in pixels
Decode = Callable[[Path, Box, int], Image.Image]


def by_pil(file: Path, box: Box, size: int) -> Image.Image:
    """A part of a picture, scaled to a square of that size."""
    left, top, width, height = box
    with Image.open(file) as image:
        cut = image.convert("RGB").crop((left, top, left + width, top + height))
    resized: Image.Image = cut.resize((size, size), Image.Resampling.BILINEAR)
    return resized


def by_shmloader(file: Path, box: Box, size: int) -> Image.Image:
    """The same, to the bit, for less work: only that part of a JPEG is decoded."""
    from shmloader import images

    pixels = np.empty((size, size, 3), np.uint8)
    images.decode(file, crop=box, size=(size, size), out=pixels.transpose(2, 0, 1))
    return Image.fromarray(pixels)


class ImageFolder(Dataset[tuple[Tensor, int]]):
    """Decodes one file a sample: (image, label), the image uint8 of shape [size, size, 3].

    Pixels stay bytes with the colours last, as the decoder writes them.  So a fourth of the bytes of floats travel from
    the worker to the trainer, and the model turns a whole batch into floats at once.
    """

    def __init__(self, files: Sequence[LabelledFile], size: int, *, augment: bool, decode: Decode = by_pil) -> None:
        self.files = files
        self.size = size
        self.augment = augment
        self.decode = decode

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        file, label = self.files[index]
        with Image.open(file) as image:  # reads only the header
            width, height = image.size
        image = self._random_view(file, width, height) if self.augment else self._whole_view(file, width, height)
        return torch.from_numpy(np.array(image)), label

    def _whole_view(self, file: Path, width: int, height: int) -> Image.Image:
        side = min(width, height)
        return self.decode(file, ((width - side) // 2, (height - side) // 2, side, side), self.size)

    def _random_view(self, file: Path, width: int, height: int) -> Image.Image:
        # Drawn from torch's generator, which the loader seeds in each worker, so that the same seed of the training run
        # gives the same pictures with either loader.
        across, down = (torch.empty(2).uniform_(SMALLEST_CROP, 1) * min(width, height)).ceil().int().tolist()
        left, top = (torch.rand(2) * torch.tensor([width - across + 1, height - down + 1])).int().tolist()
        brightness, contrast = torch.empty(2).uniform_(1 - JITTER, 1 + JITTER).tolist()
        image = self.decode(file, (left, top, across, down), self.size)
        image = ImageEnhance.Brightness(image).enhance(brightness)
        return ImageEnhance.Contrast(image).enhance(contrast)
