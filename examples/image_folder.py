"""JPEG and PNG files in class folders: which ones train and which ones test, and reading them as a torch Dataset."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from examples.pil_transforms import middle, random_resized_crop, trivial_augment

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png"}
TEST_FOLDERS = ("test", "val")  # the first one that exists counts
TEST_SHARE = 0.2  # of each class, if the folder has no split of its own
BOX_AREA = (0.6, 1.0)  # of a random box, as a part of the picture's
BOX_RATIO = 4 / 3  # of its longer side to its shorter, at most
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


Read = Callable[[Path], Tensor]
Decode = Callable[[int, bool], Read]  # of the size, and of whether pictures are augmented


class ByPil:
    """Reads a file by PIL: a square of bytes, with the colours last.

    Args:
        size: height and width, in pixels.
        augment: whether to take a random box and change its pixels by one random operation; otherwise take the centre.
    """

    def __init__(self, size: int, augment: bool) -> None:
        self.size = size
        self.augment = augment

    def __call__(self, file: Path) -> Tensor:
        with Image.open(file) as opened:
            image = opened.convert("RGB")
        if self.augment:
            image = trivial_augment(random_resized_crop(image, self.size, BOX_AREA, BOX_RATIO))
        else:
            image = middle(image, self.size)
        return torch.from_numpy(np.array(image))


class ByShmloader:
    """The same for the same seed, to the bit, for less work.  Its arguments are those of ByPil."""

    def __init__(self, size: int, augment: bool) -> None:
        from shmloader import images  # here, because a run with torch's loader needs no shmloader

        box = (1 / BOX_RATIO, BOX_RATIO)
        training = images.training(size, scale=BOX_AREA, ratio=box, flip=0, augment="trivial")
        self.size = size
        self.read = images.from_bytes(training if augment else images.evaluation(size, resize=size))

    def __call__(self, file: Path) -> Tensor:
        pixels = torch.empty(self.size, self.size, 3, dtype=torch.uint8)
        self.read(file, out=pixels.permute(2, 0, 1))
        return pixels


class ImageFolder(Dataset[tuple[Tensor, int]]):
    """Decodes one file a sample: (image, label), the image uint8 of shape [size, size, 3].

    Pixels stay bytes with the colours last, as the decoder writes them.  So a fourth of the bytes of floats travel from
    the worker to the trainer, and the model turns a whole batch into floats at once.

    Random numbers come from torch's generator, which the loader seeds in each worker: the same seed in the training run
    gives the same pictures, with either loader.
    """

    def __init__(
        self,
        files: Sequence[LabelledFile],
        size: int,
        *,
        augment: bool,
        decode: Decode = ByPil,
    ) -> None:
        self.files = files
        self.read = decode(size, augment)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        file, label = self.files[index]
        return self.read(file), label
