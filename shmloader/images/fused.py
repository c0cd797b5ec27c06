"""images.fuse: a dataset of picture files with torchvision's transforms, made to decode no more than its crops."""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from shmloader.images import timm_dataset
from shmloader.images.cache import Cache
from shmloader.images.columns import Columns, columns
from shmloader.images.following import Following
from shmloader.images.parts import FusedConcat, FusedSubset, fused_parts
from shmloader.images.pictures import PictureDataset
from shmloader.images.reader import copied
from shmloader.images.rows import Rows
from shmloader.images.shard_pictures import ShardPictures, shard_pictures
from shmloader.images.wrapped import Wrapped
from shmloader.storage.shards import Shards

__all__ = ["Fused", "Unfused", "fuse"]

_NEEDED = ("samples", "loader", "transform")
_FOLDER = "torchvision.datasets.folder"
_LOADERS = ("default_loader", "pil_loader")
_WITHOUT_PATHS = ("datasets.arrow_dataset", "timm.data.dataset", "shmloader.storage.shards")


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
        dataset = self.dataset
        if dataset.loader is not self._loader or dataset.transform is None:
            return _Itself(dataset, _why_not(dataset))
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
    cache: Any = None,
    image: str = "image",
    label: str | None = "label",
) -> Fused | Unfused | Columns | ShardPictures | timm_dataset.TimmPictures | FusedSubset | FusedConcat:
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
            turned upright as `datasets` does, and is RGB.  Or timm's ImageDataset.  Or shmloader.Shards: its samples
            become (image, label) too, a label of a tar decoded as WebDataset does.  Or torch's Subset or ConcatDataset
            of any of these, fused or not.
        transform: of a Hugging Face dataset, or of shards: torchvision's, timm's, images.views(...),
            images.training(...), or any function of a PIL image.
        exact: to the bit as Pillow and torchvision make them.  Else faster, and a pixel differs by less than 1 of 255
            on average.
        scale_on_device: samples stay uint8, a quarter of the bytes of float32; give the loader `fused.on_device`,
            which scales and normalises whole batches.  Only where Normalize, or what makes numbers, comes last.
        rows: a file that keeps where the rows of each picture begin, about half a KB a picture.  The first epoch fills
            it and takes a little longer.  From the second one on, also in later runs, only the crop's rows of a picture
            are decoded, each up to the crop's right edge.  An entry holds while the picture's path, size and time of
            change stay the same.  The file belongs to this list of pictures: give each dataset a file of its own.
        cache: keeps pictures decoded, as they come, so that no later epoch and no other worker, rank or job of yours
            decodes them again: a budget of memory ("16 GB", or 0.3 of what this process may have), a file
            ("train.cache"), which later runs find, or a file and its budget, ("train.cache", "200 GB").  Nothing is
            evicted.  A picture takes 1.5 bytes a pixel where its chroma is halved (4:2:0).  Samples stay the same, to
            the bit.  docs/caching.md has the figures.
        image, label: of a Hugging Face dataset, or of shards, the names of the columns; label=None: a sample is the
            image alone.  In tars "image" is the first of jpg, jpeg, png, webp and such that a sample has, and "label"
            is cls.

    Returns:
        A dataset with the attributes of the other one, and:
        explain(measure=False): what is fused, and what is not and why; measure=True: and what each part costs;
        is_fused: whether anything is;
        on_device: for `DataLoader(on_device=...)`; None where nothing is left for the device;
        read_into(index, out): writes an image to a tensor, and returns its target.

    Raises:
        TypeError: the dataset has no `samples`, `loader` or `transform`; or `transform` is given with one that has its
            own; or `cache` is none of these, or is given with a dataset whose pictures are not files with paths.
        OSError: `rows` cannot be made, or there is no folder for `cache`.
        ValueError: `cache` names a file that is something else; `rows` is another file, or the file of another dataset
            of this process; there is no such column, or it has no pictures; `scale_on_device`, and the datasets of a
            ConcatDataset leave different work to the device.

    Example:
        >>> train = images.fuse(torchvision.datasets.ImageFolder("train", transform))
        >>> print(train.explain())
        >>> loader = shmloader.DataLoader(train, batch_size=256, shuffle=True, num_workers=8)
    """
    options: dict[str, Any] = {"exact": exact, "scale_on_device": scale_on_device, "rows": rows, "cache": cache}
    options |= {"image": image, "label": label}
    parts = fused_parts(dataset, lambda part: fuse(part, transform, **options))
    if parts is not None:
        return parts
    if cache is not None and type(dataset).__module__ in _WITHOUT_PATHS:
        raise TypeError(
            f"{type(dataset).__module__.partition('.')[0]}'s {type(dataset).__name__} gives pictures as bytes, but "
            "cache= needs the path of each picture. Leave cache out. Or write the pictures to files, and use "
            "images.ImageFolder."
        )
    if type(dataset).__module__ == "datasets.arrow_dataset":
        return columns(dataset, transform, image, label, exact, scale_on_device)
    if isinstance(dataset, Shards):
        if type(dataset).__getitem__ is not Shards.__getitem__:
            why = "its class has a __getitem__ of its own, so its samples are others than the shards'"
            return Unfused(dataset, f"{type(dataset).__name__} is not fused: {why}")
        return shard_pictures(dataset, transform, image, label, exact, scale_on_device)
    if transform is not None:
        raise TypeError(
            f"fuse() got a transform, but {type(dataset).__name__} has its own. Only a Hugging Face dataset or Shards "
            "take `transform`. Leave it out."
        )
    if type(dataset).__module__ == "timm.data.dataset" and type(dataset).__name__ == "ImageDataset":
        why = timm_dataset.why_not(dataset)
        if why:
            return Unfused(dataset, f"timm's ImageDataset is not fused: {why}")
        return timm_dataset.TimmPictures(dataset, exact, scale_on_device)
    lacks = [name for name in _NEEDED if not hasattr(dataset, name)]
    if lacks:
        raise TypeError(
            f"{type(dataset).__name__} cannot be fused, because it has no {' and no '.join(lacks)}. Give a "
            "torchvision.datasets.ImageFolder or one like it, or read bytes by images.from_bytes."
        )
    name = type(dataset).__name__
    why = _why_not(dataset)
    if why:
        return _unfused(dataset, f"{name} is not fused: {why}", cache)
    reader = Following(dataset.transform, exact)
    if not reader.is_fused:
        heading = f"{name} is not fused, because none of its transforms can be:"
        return _unfused(dataset, "\n".join([heading, *reader.notes]), cache)
    remark = ""
    if not _is_stock(dataset):
        if not _agrees(dataset, Fused(dataset, "", Following(dataset.transform, exact=True))):
            why = f"{name} is not fused: its __getitem__ gives other samples than its loader and transform do"
            return _unfused(dataset, why, cache)
        remark = ", whose __getitem__ gave the same for three samples"
    marks = None if rows is None else Rows(rows, (path for path, *_ in dataset.samples))
    cached = None if cache is None else Cache(cache, len(dataset.samples))
    reader = Following(dataset.transform, exact, scale_on_device, marks, cached)
    if scale_on_device and not reader.is_scaled_on_device:
        remark += "; nothing can be scaled on the device"
    return Fused(dataset, f"{name} is fused{'' if exact else ', not exact'}{remark}:", reader)


def _unfused(dataset: Any, notes: str, cache: Any) -> Unfused:
    if cache is not None:
        warnings.warn(
            f"cache={cache!r} has no effect: {notes}. Pictures are decoded each time. docs/images.md lists what can be "
            "fused.",
            RuntimeWarning,
            stacklevel=3,
        )
    return Unfused(dataset, notes)


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
            expected = dataset[index], _states()
            _set_states(states)
            if not _same((fused[index], _states()), expected):
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
