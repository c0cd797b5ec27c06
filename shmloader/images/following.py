"""A reader that follows changes of its transform: each takes effect with the next sample.
Refuses a change of the numbers that the device makes, if a loader may still have the old on_device.

Programs do change transforms: to a larger crop for the last epochs, or to a stronger augmentation after the first ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from shmloader.images.cache import Cache
from shmloader.images.known import is_known
from shmloader.images.making import Making
from shmloader.images.reader import Reader
from shmloader.images.rows import Rows
from shmloader.images.views import Views, ViewsReader

__all__ = ["Following"]

# Attributes by which a transform holds others: Compose, RandomApply; timm's and open_clip's random choices; Sequential.
_INNER = ("transforms", "transf", "_modules")


class Following:
    """Reads samples by a transform.  If the transform has changed since the last sample, it is analysed again first.

    The comparison of each known transform's attributes costs 3 microseconds a sample for a recipe of four with a crop,
    and 5 with TrivialAugmentWide and RandomErasing (one core of an AMD EPYC).

    Args:
        transform, exact: see Making.
        scale_on_device, rows, cache: see Reader.
        bytes_are_paths: whether a source of type bytes is a path, as it is for open(); otherwise it is a picture.

    Attributes:
        cache: the cache that it was given.
    """

    _bytes_are_paths = False  # of one that was pickled by an older version
    _arrays: list[tuple[Any, Any]] = []  # noqa: RUF012 - likewise

    def __init__(
        self,
        transform: Any,
        exact: bool,
        scale_on_device: bool = False,
        rows: Rows | None = None,
        cache: Cache | None = None,
        bytes_are_paths: bool = False,
    ) -> None:
        self._bytes_are_paths = bytes_are_paths
        self._exact, self._scale_on_device, self._rows, self.cache = exact, scale_on_device, rows, cache
        self._reader: Reader | ViewsReader
        self._has_given = False  # whether a loader may have the function for the device
        self._read(transform)

    @property
    def transform(self) -> Any:
        """The transform that makes samples.  You may assign another one."""
        return self._transform

    @transform.setter
    def transform(self, transform: Any) -> None:
        self._read(transform)

    @property
    def is_fused(self) -> bool:
        """Whether any part of the transform is fused."""
        return self._making.is_fused

    @property
    def notes(self) -> list[str]:
        """See Making."""
        self._current()
        return self._making.notes

    @property
    def is_scaled_on_device(self) -> bool:
        """Whether `on_device` is a function."""
        return self._reader.on_device is not None

    @property
    def on_device(self) -> Any:
        """See Reader."""
        self._has_given = True
        return self._reader.on_device

    def __call__(self, source: Any, out: Any = None, **options: Any) -> Any:
        """Make the sample of a picture: see Reader and ViewsReader.

        Raises:
            RuntimeError: the numbers that a picture becomes were changed, and a loader may still have the function that
                computes the old ones on the device.
            Exception: see Reader.
        """
        if self._bytes_are_paths and isinstance(source, bytes):
            source = os.fsdecode(source)
        return self._current()(source, out, **options)

    def costs(self, sources: list[Any]) -> list[tuple[str, float]]:
        """The cost of each part of a sample: see Reader."""
        if self._bytes_are_paths:
            sources = [os.fsdecode(source) if isinstance(source, bytes) else source for source in sources]
        return self._current().costs(sources)

    def _current(self) -> Reader | ViewsReader:
        if self._is_changed():
            self._read(self._transform)
        return self._reader

    def _read(self, transform: Any) -> None:
        making = Making(transform, self._exact)
        reader: Reader | ViewsReader = making.reader(self._scale_on_device, self._rows, self.cache)
        if self._has_given and reader.on_device != self._reader.on_device:
            raise RuntimeError(
                "the transform has changed since on_device was read. A loader may still use the old on_device, which "
                "normalises otherwise. Fuse the dataset again, and give its on_device to a new loader."
            )
        if self._has_given:
            reader.on_device = self._reader.on_device  # a loader compares its functions by identity
        self._transform = transform
        self._before = [(one, _attributes(one)) for one in _known(transform)]
        self._arrays = [(value, value.tolist()) for one, _ in self._before for value in _arrays(one)]
        self._dtype = torch.get_default_dtype()  # ToTensor uses it
        self._making, self._reader = making, reader

    def _is_changed(self) -> bool:
        if torch.get_default_dtype() is not self._dtype:
            return True
        try:
            for one, before in self._before:
                if one.__dict__ != before:
                    return True
        except Exception:
            return True  # two attributes that cannot be compared, such as two tensors
        return any(value.tolist() != before for value, before in self._arrays)  # torch.equal() takes five times as long


def _known(transform: Any) -> Iterator[Any]:
    """The transforms in it whose attributes were read.  A transform of the user's may change itself at each call."""
    if type(transform) is Views:
        for one in transform.transforms:
            yield from _known(one)
    elif is_known(transform):
        yield transform
        for name in _INNER:
            inner = vars(transform).get(name) or ()
            if isinstance(inner, dict):
                inner = inner.values()
            elif not isinstance(inner, (list, tuple)):
                inner = [inner]
            for one in inner:
                yield from _known(one)


def _arrays(transform: Any) -> list[Any]:
    """A transform's attributes that stay the same objects when they are changed in place, such as Normalize's mean."""
    return [value for value in vars(transform).values() if isinstance(value, (np.ndarray, torch.Tensor))]


def _attributes(transform: Any) -> dict[str, Any]:
    """A transform's attributes.  Lists and dicts are copied, because programs change them in place."""
    return {
        name: list(value) if type(value) is list else dict(value) if isinstance(value, dict) else value
        for name, value in vars(transform).items()
    }
