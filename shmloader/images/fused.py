"""images.fuse: a dataset of picture files then decodes only the crop of each picture.
Decides which datasets can be fused, and leaves the others as they are (Unfused) or refuses them.

recognise.py turns a list of transforms into a recipe, and reader.py makes samples by it.  The C code that decodes and
resizes is in cython_ext/jpeg and cython_ext/resize, and the operations on pixels are in cython_ext/pixels.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from shmloader.images import timm_dataset
from shmloader.images.cache import Cache
from shmloader.images.early_files import EarlyFile
from shmloader.images.following import Following
from shmloader.images.parts import FusedConcat, FusedSubset, fused_parts
from shmloader.images.picture_columns import Columns, columns
from shmloader.images.pictures import PictureDataset, Wrapped
from shmloader.images.reader import copied
from shmloader.images.rows import Rows
from shmloader.images.shard_pictures import ShardPictures, shard_pictures
from shmloader.protocols.user_objects import attribute
from shmloader.storage.shards import Shards

__all__ = ["Fused", "Unfused", "fuse"]

_DEFAULTS = {"exact": True, "scale_on_device": False, "rows": None, "cache": None, "image": "image", "label": "label"}
_NEEDED = ("samples", "loader", "transform")
_FOLDER = "torchvision.datasets.folder"
_LOADERS = ("default_loader", "pil_loader")
_WITHOUT_PATHS = ("datasets.arrow_dataset", "timm.data.dataset", "shmloader.storage.shards")


class Unfused(Wrapped):
    """The result of fuse() if nothing can be fused: the dataset as it is; explain() gives the reason.

    Args:
        dataset: the dataset.
        notes: why it is not fused.
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
    """The result of fuse(): the same samples as the dataset's, made in another way.

    Args:
        dataset: the dataset.
        heading: the first line of explain().
        reader: reads samples by its transform.
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

    def __prefetch__(self, indices: Iterable[Any]) -> None:
        """See PictureDataset; a dataset that has this method itself gets the call."""
        prefetch = attribute(self.dataset, "__prefetch__")
        if prefetch is None:
            super().__prefetch__(indices)
        else:
            prefetch(indices)

    def __repr__(self) -> str:
        return f"Fused: {self.dataset!r}"


class _Itself:
    """Makes the samples of a fused dataset that was changed so that it can no longer be fused.

    Args:
        dataset: the dataset, which makes its own samples.
        why: it cannot be fused.
    """

    on_device = None

    def __init__(self, dataset: Any, why: str) -> None:
        self._dataset = dataset
        self.notes = [f"  it is not fused any more: {why or 'its loader was changed'}"]

    def __call__(self, source: Any, out: Any = None, *, at: int = 0, must_fit: bool = True) -> Any:
        sample = self._dataset.loader(source.path if type(source) is EarlyFile else source)
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
    """Make a dataset of picture files decode each picture once, only its crop, and straight to its final size.

    The samples stay the same.  The draws from torch's, Python's and NumPy's generators are the same, in the same order.
    So the same seed gives the same boxes, flips and augmentations, the same targets and the same pixels.  A transform
    that shmloader does not know is called as it is; `explain()` names it, with the reason.  docs/images.md lists the
    known transforms: torchvision's, of both versions, timm's and open_clip's.

    Args:
        dataset: One of these:
            a torchvision.datasets.ImageFolder, or another dataset with `samples` (paths and targets), `loader` and
            `transform`, and optionally a `target_transform`.  A class with a __getitem__ of its own is not fused;
            a Hugging Face datasets.Dataset with a column of pictures.  Its samples become (image, label), and each
            picture is turned upright, as `datasets` does, and converted to RGB;
            timm's ImageDataset;
            shmloader.Shards.  Its samples become (image, label) too, and labels in tars are decoded as by WebDataset;
            torch's Subset or ConcatDataset of any of these, fused or not.
        transform: for a Hugging Face dataset or for shards: torchvision's, timm's, images.views(...),
            images.training(...), or any function of a PIL image.
        exact: whether pixels equal Pillow's and torchvision's bit for bit.  Otherwise decoding is faster, and a pixel
            differs by less than 1 of 255 on average.
        scale_on_device: samples stay uint8, which is a quarter of the bytes of float32.  Give the loader
            `fused.on_device`, which scales and normalises whole batches.  It has an effect only if Normalize, or the
            transform that makes numbers, comes last.
        rows: a file that keeps where the rows of each picture begin, about half a KB a picture.  The first epoch fills
            it and takes a little longer.  From the second epoch on, also in later runs, only the crop's rows of a
            picture are decoded, each up to the crop's right edge.  An entry is valid while the picture's path, size and
            modification time stay the same.  The file belongs to one list of pictures, so give each dataset its own.
        cache: keeps decoded pictures, so that no later epoch, and no other worker, rank or job of yours, decodes them
            again: a budget of memory, "16 GB", or 0.3 of what this process may have.  Nothing is evicted.  A picture
            takes 1.5 bytes a pixel if its chroma is halved (4:2:0).  Samples stay the same bit for bit.
            docs/caching.md has the figures.
        image, label: for a Hugging Face dataset or for shards, the names of the columns; label=None: a sample is the
            image alone.  In tars, "image" is the first of jpg, jpeg, png, webp and similar extensions that a sample
            has, and "label" is cls.

    Returns:
        A dataset with the attributes of the given one, and:
        explain(measure=False): what is fused, and what is not and why; measure=True adds the cost of each part;
        is_fused: whether any part is fused;
        on_device: for `DataLoader(on_device=...)`; None if nothing is left for the device;
        read_into(index, out): writes an image to a tensor, and returns its target.

    Raises:
        TypeError: the dataset has no `samples`, `loader` or `transform`; or `transform` is given with a dataset that
            has its own; or `cache` has another type, or is given with a dataset whose pictures have no paths.
        OSError: `rows` cannot be made.
        ValueError: `cache` is no size; `rows` names a file that is something else, or belongs to another dataset of
            this process; the column does not exist, or has no pictures; or with `scale_on_device` the datasets of a
            ConcatDataset leave different work to the device.

    Example:
        >>> train = images.fuse(torchvision.datasets.ImageFolder("train", transform))
        >>> print(train.explain())
        >>> loader = shmloader.DataLoader(train, batch_size=256, shuffle=True, num_workers=8)
    """
    options: dict[str, Any] = {"exact": exact, "scale_on_device": scale_on_device, "rows": rows, "cache": cache}
    options |= {"image": image, "label": label}
    given = [name for name, value in options.items() if value != _DEFAULTS[name]]
    given += [] if transform is None else ["transform"]
    parts = fused_parts(dataset, lambda part: fuse(part, transform, **options), given)
    if parts is not None:
        return parts
    for name, file in (("cache", cache), ("rows", rows)):
        if file is not None and (isinstance(dataset, Shards) or type(dataset).__module__ in _WITHOUT_PATHS):
            raise TypeError(
                f"{type(dataset).__module__.partition('.')[0]}'s {type(dataset).__name__} gives pictures as bytes, but "
                f"{name}= needs the path of each picture. Leave {name} out. Or write the pictures to files, and use "
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
    for name in ("image", "label"):
        if name in given:
            raise TypeError(
                f"fuse() got {name}={options[name]!r}, but {type(dataset).__name__} has no columns. Only Hugging "
                f"Face datasets and Shards have columns. Leave {name} out."
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
        return _unfused(dataset, f"{name} is not fused: {why}", cache, rows)
    reader = Following(dataset.transform, exact)
    if not reader.is_fused:
        heading = f"{name} is not fused, because none of its transforms can be:"
        return _unfused(dataset, "\n".join([heading, *reader.notes]), cache, rows)
    marks = None if rows is None else Rows(rows, (path for path, *_ in dataset.samples))
    cached = None if cache is None else Cache(cache, len(dataset.samples))
    reader = Following(dataset.transform, exact, scale_on_device, marks, cached, bytes_are_paths=True)
    remark = "; nothing can be scaled on the device" if scale_on_device and not reader.is_scaled_on_device else ""
    return Fused(dataset, f"{name} is fused{'' if exact else ', not exact'}{remark}:", reader)


def _unfused(dataset: Any, notes: str, cache: Any, rows: Any) -> Unfused:
    for name, value in (("cache", cache), ("rows", rows)):
        if value is not None:
            warnings.warn(
                f"{name}={value!r} has no effect: {notes}. Pictures are decoded each time. docs/images.md lists what "
                "can be fused.",
                RuntimeWarning,
                stacklevel=3,
            )
    return Unfused(dataset, notes)


def _why_not(dataset: Any) -> str:
    """Why it cannot be fused, whatever its transforms are; empty if nothing is known yet."""
    loader = dataset.loader
    if getattr(loader, "__module__", "") != _FOLDER or getattr(loader, "__name__", "") not in _LOADERS:
        return "its loader is not torchvision's, so what a file becomes is not known"
    torchvision = sys.modules.get("torchvision")
    if torchvision is not None and torchvision.get_image_backend() != "PIL":
        return f"torchvision reads images by {torchvision.get_image_backend()}"
    if not _is_stock(dataset):
        return "its class has a __getitem__ of its own, which is called as it is"
    if dataset.transform is None:
        return "it has no transform, so its samples are PIL images"
    if dataset.transform is not dataset.transform:
        return "its transform is another object each time"
    if getattr(dataset, "__getitems__", None) is not None:
        return "it makes several samples at a time (__getitems__)"
    return ""


def _is_stock(dataset: Any) -> bool:
    """Whether its samples are made by torchvision's own __getitem__().

    A decorator copies a function's name and module.  So the file of its code counts too: it must be the loader's.
    """
    own = type(dataset).__getitem__
    named = getattr(own, "__module__", ""), getattr(own, "__qualname__", "")
    return named == (_FOLDER, "DatasetFolder.__getitem__") and _file_of(own) == _file_of(dataset.loader)


def _file_of(function: Any) -> str | None:
    return getattr(getattr(function, "__code__", None), "co_filename", None)
