"""images.fuse: a dataset of picture files with torchvision's transforms, made to decode no more than its crops."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from shmloader.images import timm_dataset
from shmloader.images.columns import Columns, columns
from shmloader.images.following import Following
from shmloader.images.parts import FusedConcat, FusedSubset, fused_parts
from shmloader.images.pictures import PictureDataset
from shmloader.images.reader import copied
from shmloader.images.rows import Rows
from shmloader.images.wrapped import Wrapped

__all__ = ["Fused", "Unfused", "fuse"]

_NEEDED = ("samples", "loader", "transform")
_FOLDER = "torchvision.datasets.folder"
_LOADERS = ("default_loader", "pil_loader")


class Unfused(Wrapped):
    """What fuse() gives where nothing can be fused: the dataset as it is, that says why.

    Args:
        dataset: it.
        notes: why.
    """

    is_fused = False
    on_device = None

    def __init__(self, dataset: Any, notes: str) -> None:
        super().__init__(dataset)
        self._notes = notes

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def explain(self, measure: bool = False) -> str:
        """Why it is not fused: a line for each transform."""
        return self._notes

    def __repr__(self) -> str:
        return f"Not fused: {self.dataset!r}"


class Fused(PictureDataset, Wrapped):
    """What fuse() gives: the dataset's samples, made in another way.

    Args:
        dataset: it.
        heading: what explain() begins with.
        reader: of its transform.
    """

    def __init__(self, dataset: Any, heading: str, reader: Following) -> None:
        Wrapped.__init__(self, dataset)
        PictureDataset.__init__(self, reader, heading)
        self._loader = dataset.loader

    @property
    def _of(self) -> Any:
        return self.dataset

    @property
    def _reader(self) -> Any:
        of = self.dataset
        if of.loader is not self._loader or of.transform is None:
            return _Itself(of, _why_not(of))
        return super()._reader

    def __repr__(self) -> str:
        return f"Fused: {self.dataset!r}"


class _Itself:
    """Makes samples as a dataset does that was fused, and that was changed since so that it cannot be.

    Args:
        dataset: it.
        why: it cannot be.
    """

    on_device = None

    def __init__(self, dataset: Any, why: str) -> None:
        self._dataset = dataset
        self.notes = [f"  it is not fused any more: {why or 'its loader was changed'}"]

    def __call__(self, source: Any, out: Any = None, *, at: int = 0, must_fit: bool = True) -> Any:
        sample = self._dataset.loader(source)
        if self._dataset.transform is not None:
            sample = self._dataset.transform(sample)
        return sample if out is None or not must_fit else copied(sample, out)

    def costs(self, sources: Sequence[Any]) -> list[tuple[str, float]]:
        return []


def fuse(
    dataset: Any,
    transform: Any = None,
    *,
    exact: bool = True,
    scale_on_device: bool = False,
    rows: str | os.PathLike[str] | None = None,
    image: str = "image",
    label: str | None = "label",
) -> Fused | Unfused | Columns | timm_dataset.TimmPictures | FusedSubset | FusedConcat:
    """Make a dataset of picture files decode each picture once, no more of it than its crop, straight to its size.

    The samples stay the same: the same draws from torch's, Python's and NumPy's generators in the same order, so the
    same boxes, flips and augmentations for the same seed, the same targets, and the same pixels.  A transform that is
    not known is called as it is; `explain()` says which one that is, and why.  docs/images.md lists what is known of
    torchvision's transforms of either version, timm's and open_clip's.

    Args:
        dataset: a torchvision.datasets.ImageFolder, or another one with `samples` (paths and targets), `loader` and
            `transform`, and a `target_transform` where it has one.  If its class has a __getitem__ of its own, it is
            fused only where three of its samples are the same either way and draw the same random numbers.  Or a
            Hugging Face datasets.Dataset with a column of pictures: its samples become (image, label), each picture is
            turned upright as `datasets` does, and is RGB.  Or timm's ImageDataset.  Or torch's Subset or ConcatDataset
            of any of these, fused or not.
        transform: of a Hugging Face dataset: torchvision's, timm's, images.views(...), images.training(...), or any
            function of a PIL image.
        exact: to the bit as Pillow and torchvision make them.  Else faster, and a pixel differs by less than 1 of 255
            on average.
        scale_on_device: samples stay uint8, a quarter of the bytes of float32; give the loader `fused.on_device`,
            which scales and normalises whole batches.  Only where Normalize, or what makes numbers, comes last.
        rows: a file that keeps where the rows of each picture begin, about half a KB a picture.  The first epoch fills
            it and takes a little longer.  From the second one on, also in later runs, only the crop's rows of a picture
            are decoded, each up to the crop's right edge.  An entry holds while the picture's path, size and time of
            change stay the same.  The file belongs to this list of pictures: give each dataset a file of its own.
        image, label: of a Hugging Face dataset, the names of the columns; label=None: a sample is the image alone.

    Returns:
        A dataset with the attributes of the other one, and:
        explain(measure=False): what is fused, and what is not and why; measure=True: and what each part costs;
        is_fused: whether anything is;
        on_device: for `DataLoader(on_device=...)`; None where nothing is left for the device;
        read_into(index, out): writes an image to a tensor, and returns its target.

    Raises:
        TypeError: the dataset has no `samples`, `loader` or `transform`; or `transform` is given with one that has its
            own.
        OSError: `rows` cannot be made.
        ValueError: `rows` is another file, or the file of another dataset of this process; there is no such column, or
            it has no pictures; `scale_on_device`, and the datasets of a ConcatDataset leave different work to the
            device.

    Example:
        >>> train = images.fuse(torchvision.datasets.ImageFolder("train", transform))
        >>> print(train.explain())
        >>> loader = shmloader.DataLoader(train, batch_size=256, shuffle=True, num_workers=8)
    """
    options: dict[str, Any] = {"exact": exact, "scale_on_device": scale_on_device, "rows": rows}
    options |= {"image": image, "label": label}
    parts = fused_parts(dataset, lambda part: fuse(part, transform, **options))
    if parts is not None:
        return parts
    if type(dataset).__module__ == "datasets.arrow_dataset":
        return columns(dataset, transform, image, label, exact, scale_on_device)
    if transform is not None:
        raise TypeError(
            f"{type(dataset).__name__} got a transform beside its own. Give `transform` with a Hugging Face dataset "
            "alone."
        )
    if type(dataset).__module__ == "timm.data.dataset" and type(dataset).__name__ == "ImageDataset":
        why = timm_dataset.why_not(dataset)
        if why:
            return Unfused(dataset, f"timm's ImageDataset is not fused: {why}")
        return timm_dataset.TimmPictures(dataset, exact, scale_on_device)
    lacks = [name for name in _NEEDED if not hasattr(dataset, name)]
    if lacks:
        raise TypeError(
            f"{type(dataset).__name__} has no {' and no '.join(lacks)}: fuse a torchvision.datasets.ImageFolder or one "
            "like it, or read bytes by images.from_bytes"
        )
    name = type(dataset).__name__
    why = _why_not(dataset)
    if why:
        return Unfused(dataset, f"{name} is not fused: {why}")
    reader = Following(dataset.transform, exact)
    if not reader.is_fused:
        heading = f"{name} is not fused, because none of its transforms can be:"
        return Unfused(dataset, "\n".join([heading, *reader.notes]))
    said = ""
    if not _is_stock(dataset):
        if not _agrees(dataset, Fused(dataset, "", Following(dataset.transform, exact=True))):
            return Unfused(
                dataset, f"{name} is not fused: its __getitem__ gives other samples than its loader and transform do"
            )
        said = ", whose __getitem__ gave the same for three samples"
    kept = None if rows is None else Rows(rows, (path for path, *_ in dataset.samples))
    reader = Following(dataset.transform, exact, scale_on_device, kept)
    if scale_on_device and not reader.is_scaled_on_device:
        said += "; nothing can be scaled on the device"
    return Fused(dataset, f"{name} is fused{'' if exact else ', not exact'}{said}:", reader)


def _why_not(dataset: Any) -> str:
    """What speaks against it before its transforms are looked at."""
    loader = dataset.loader
    if getattr(loader, "__module__", "") != _FOLDER or getattr(loader, "__name__", "") not in _LOADERS:
        return "its loader is not torchvision's, so what a file becomes is not known"
    torchvision = sys.modules.get("torchvision")
    if torchvision is not None and torchvision.get_image_backend() != "PIL":
        return f"torchvision reads images by {torchvision.get_image_backend()}"
    if dataset.transform is None:
        return "it has no transform, so its samples are PIL images"
    if dataset.transform is not dataset.transform:
        return "its transform is another object each time"
    if getattr(dataset, "__getitems__", None) is not None:
        return "it makes several samples at a time (__getitems__)"
    return ""


def _is_stock(dataset: Any) -> bool:
    own = getattr(type(dataset).__getitem__, "__module__", ""), getattr(type(dataset).__getitem__, "__qualname__", "")
    return own == (_FOLDER, "DatasetFolder.__getitem__")


def _agrees(dataset: Any, fused: Fused) -> bool:
    """Whether three samples are what loader and transform make of them, and leave the generators alike."""
    length = len(dataset.samples)
    if not length or len(dataset) != length:
        return False
    states = _states()
    try:
        for index in sorted({0, length // 2, length - 1}):
            _set_states(states)
            there = dataset[index], _states()
            _set_states(states)
            if not _same((fused[index], _states()), there):
                return False
        return True
    except Exception:
        return False
    finally:
        _set_states(states)


def _states() -> Any:
    return torch.get_rng_state(), random.getstate(), list(np.random.get_state(legacy=True))


def _set_states(states: Any) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(tuple(states[2]))


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
