"""A dataset of pictures and their classes: the common part of a fused dataset and a folder.
Has files read early, adds the cache's line to report(), and names files at hand in the stack of a hanging worker.
Its explain() says what is fused, and what each part of a sample costs.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePath
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from shmloader.images.early_files import EarlyFiles
from shmloader.images.following import Following
from shmloader.system.call_stacks import FURTHER

__all__ = ["PictureDataset", "Wrapped", "explained"]

_MEASURED = 32  # samples


def explained(heading: str, reader: Any, measure: bool, count: int, file: Callable[[int], Any]) -> str:
    """The text of explain().

    Args:
        heading: Its first line.
        reader: Makes the images; its `notes` are the lines that follow.
        measure: Whether to add the cost of each part of a sample: microseconds of CPU, over up to 32 samples that are
            made for it.  The states of the generators do not change.
        count: The number of samples.
        file: Returns the path or the bytes of a sample's file.
    """
    notes = [heading, *reader.notes]
    if measure and count:
        every = max(1, count // _MEASURED)
        notes += _costs(reader, [file(at) for at in range(0, count, every)][:_MEASURED])
    return "\n".join(notes)


def _costs(reader: Any, files: Sequence[Any]) -> list[str]:
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    read, failed = [], []
    try:
        for file in files:  # once before the measurement, because the first run finds nothing in the caches
            try:
                reader.costs([file])
                read.append(file)
            except Exception as error:
                failed.append(f"  one of {len(files)} samples failed and is not counted: {error}")
        costs = reader.costs(read) if read else []
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])
    total = sum(cost for _, cost in costs)
    lines = [f"  {name}: {cost:.0f} us" for name, cost in costs]
    return [f"A sample costs {total:.0f} us of CPU, over {len(read)} samples:", *lines, *failed]


class PictureDataset(Dataset[Any]):
    """Samples (image, target).  If you set another `transform`, also on the dataset inside, it makes the next samples.

    Args:
        reader: makes images.
        heading: the first line of explain().
    """

    is_fused = True

    def __init__(self, reader: Following, heading: str) -> None:
        self._following = reader
        self._early = EarlyFiles()
        self._heading = heading

    @property
    def _reader(self) -> Any:
        """The reader for the current transform."""
        if self._of.transform is not self._following.transform:
            self._following.transform = self._of.transform
        return self._following

    def explain(self, measure: bool = False) -> str:
        """What is fused, and what is not and why: a line for each transform.

        Args:
            measure: whether to add the cost of each part of a sample: microseconds of CPU, over up to 32 samples that
                are made for it.  The states of the generators do not change.
        """
        samples = self._of.samples
        return explained(self._heading, self._reader, measure, len(samples), lambda at: samples[at][0])

    @property
    def _of(self) -> Any:
        """The dataset that has the samples (paths and targets), and perhaps a target_transform."""
        return self

    @property
    def on_device(self) -> Callable[[Any], Any] | None:
        """For `DataLoader(device=..., on_device=...)`: finishes batches there; None if nothing is left to do."""
        on_device: Callable[[Any], Any] | None = self._reader.on_device
        return on_device

    def __report_lines__(self) -> list[tuple[str, str]]:
        """Lines of this dataset for a loader's report(): titles and texts."""
        text = "" if self._following.cache is None else self._following.cache.report()
        return [("cache", text)] if text else []

    def __len__(self) -> int:
        return len(self._of.samples)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        path, target = self._of.samples[index]
        return self._reader(self._early.source(path), at=index), self._target(target)

    def __getitem_into__(self, index: int, row: Any) -> tuple[Any, Any]:
        """The sample; its image is written to its place in a batch if it has that shape: see docs/images.md."""
        path, target = self._of.samples[index]
        return self._reader(self._early.source(path), row[0], at=index, must_fit=False), self._target(target)

    def __prefetch__(self, indices: Iterable[Any]) -> None:
        """Begin to read the files of samples that will be needed; returns at once.

        A loader calls it: see docs/look-ahead.md.  Pictures that are in the cache are left out.

        Args:
            indices: of the samples, in the order in which they will be needed.
        """
        cache = self._following.cache
        self._early.announce(self._of.samples, indices, None if cache is None else cache.has)

    def read_into(self, index: int, out: torch.Tensor) -> Any:
        """Write a sample's image to a tensor of yours.

        Args:
            index: of the sample.
            out: a tensor of the image's shape and dtype, with any strides.

        Returns:
            The sample's target.

        Raises:
            ValueError: `out` has another shape or dtype than the image.
            Exception: as __getitem__.
        """
        path, target = self._of.samples[index]
        self._reader(self._early.source(path), out, at=index)
        return self._target(target)

    def _target(self, target: Any) -> Any:
        transform = getattr(self._of, "target_transform", None)
        return target if transform is None else transform(target)


_MAKING = {method.__code__ for method in (PictureDataset.__getitem__, PictureDataset.__getitem_into__)}


def _files() -> str:
    """The files of the samples that are being made: the stack of an open() that hangs does not name its file."""
    found = []
    for frame in sys._current_frames().values():
        at: FrameType | None = frame
        while at is not None and at.f_code not in _MAKING:
            at = at.f_back
        path = None if at is None else at.f_locals.get("path")
        if isinstance(path, (str, PurePath)):  # other classes are the user's, and this runs in a signal's handler
            found.append(f"  {str(path)!r}\n")
    return "".join(["Files of the samples at hand:\n", *found]) if found else ""


FURTHER.append(_files)


class Wrapped(Dataset[Any]):
    """A dataset around another one, which may make its samples in another way.  All else comes from the inner one.

    Args:
        dataset: the inner one.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        # While a copy is made it has no attributes.  Of protocols, the outer dataset has only those that it defines.
        if name == "dataset" or (name.startswith("__") and name != "__getitems__"):
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        # The samples come from the inner dataset, so a `transform` or `samples` set on the outer one would do nothing.
        is_own = name == "dataset" or name.startswith("_") or name in self.__dict__ or hasattr(type(self), name)
        if is_own or not hasattr(self.__dict__.get("dataset"), name):
            super().__setattr__(name, value)
        else:
            setattr(self.dataset, name, value)
