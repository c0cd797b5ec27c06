"""images.ImageFolder, which is torchvision's ImageFolder without torchvision; and images.from_bytes.
Decides which folders are classes and which files are pictures (by extension); a class without pictures is an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from shmloader.images.cache import Cache
from shmloader.images.following import Following
from shmloader.images.pictures import PictureDataset
from shmloader.images.rows import Rows

__all__ = ["ImageFolder", "from_bytes"]

# In torchvision's order, because its error message lists them.
_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def from_bytes(transform: Any = None, *, exact: bool = True, scale_on_device: bool = False) -> Following:
    """Make a function that turns files' bytes into samples, for datasets in archives: WebDataset, LMDB, Streaming.

    Args:
        transform: images.training(...) or images.evaluation(...); a torchvision transform, which is fused as by fuse();
            images.views(...) of several of these, for a list of tensors; any other function, which gets a PIL image;
            None: samples are whole pictures.
        exact: whether pixels equal Pillow's bit for bit; otherwise it is faster: see fuse().
        scale_on_device: samples stay uint8, and the function's `on_device` makes numbers of whole batches: see fuse().

    Returns:
        A function of a file's bytes (any object with a buffer, or a path), and optionally of `out`, a tensor of the
        sample's shape and dtype to write to.  It returns the sample: a tensor of shape (3, height, width), or what the
        transform returns.  It can be pickled.  `on_device` is as in fuse().

    Example:
        >>> read = images.from_bytes(images.training(224))
        >>> samples = webdataset.WebDataset(urls).to_tuple("jpg", "cls").map_tuple(read, int)
    """
    return Following(transform, exact, scale_on_device)


class ImageFolder(PictureDataset):
    """Pictures in one folder for each class: the same order and the same errors as torchvision.datasets.ImageFolder.

    Args:
        root: the folder, with a folder for each class: root/cat/1.jpg, root/dog/deep/2.png.
        transform: see from_bytes().
        target_transform: a function of a class's number; its result takes the number's place in the sample.
        is_valid_file: a function of a path that returns whether it is a picture.  By default the extension decides.
        allow_empty: whether a class may have no pictures.
        exact, scale_on_device, rows, cache: see fuse().

    Attributes:
        classes: the names of the classes, sorted; a target is an index of this list.
        class_to_idx: the index of each class.
        samples, imgs: path and target of each picture, sorted by class and then by path.
        targets: only the targets.
        on_device: see fuse().

    Raises:
        FileNotFoundError: there is no class in `root`, or a class has no picture and allow_empty is False.

    Example:
        >>> train = images.ImageFolder("train", images.training(224), exact=False)
        >>> loader = shmloader.DataLoader(train, batch_size=256, shuffle=True, num_workers=8)
        >>> for pictures, labels in loader:  # uint8 of (256, 3, 224, 224), int64 of (256,)
        ...     ...
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Any = None,
        target_transform: Callable[[Any], Any] | None = None,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
        *,
        exact: bool = True,
        scale_on_device: bool = False,
        rows: str | os.PathLike[str] | None = None,
        cache: Any = None,
    ) -> None:
        self.root = os.path.expanduser(os.fspath(root))
        self.transform = transform
        self.target_transform = target_transform
        self.classes = sorted(entry.name for entry in os.scandir(self.root) if entry.is_dir())
        if not self.classes:
            raise FileNotFoundError(f"Couldn't find any class folder in {self.root}.")
        self.class_to_idx = {name: at for at, name in enumerate(self.classes)}
        self.samples = [
            (path, at) for name, at in self.class_to_idx.items() for path in self._files(name, is_valid_file)
        ]
        self.imgs = self.samples
        self.targets = [target for _, target in self.samples]
        full = set(self.targets)
        empty = [name for name, at in self.class_to_idx.items() if at not in full]
        if empty and not allow_empty:
            known = f"Supported extensions are: {', '.join(_EXTENSIONS)}" if is_valid_file is None else ""
            raise FileNotFoundError(f"Found no valid file for the classes {', '.join(empty)}. {known}")
        marks = None if rows is None else Rows(rows, (path for path, _ in self.samples))
        cached = None if cache is None else Cache(cache, len(self.samples))
        super().__init__(Following(transform, exact, scale_on_device, marks, cached), "ImageFolder:")

    def __repr__(self) -> str:
        return f"ImageFolder of {len(self.samples)} pictures in {len(self.classes)} classes, in {self.root}"

    def _files(self, name: str, is_valid_file: Callable[[str], bool] | None) -> list[str]:
        """The paths of a class's pictures, sorted folder by folder.  Links are followed."""
        found: list[str] = []
        for folder, _, names in sorted(os.walk(os.path.join(self.root, name), followlinks=True)):
            paths = [os.path.join(folder, file) for file in sorted(names)]
            found += [path for path in paths if (is_valid_file or _is_picture)(path)]
        return found


def _is_picture(path: str) -> bool:
    return path.lower().endswith(_EXTENSIONS)
