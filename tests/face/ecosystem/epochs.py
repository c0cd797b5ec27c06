"""Epochs through a framework, once with torch's loader and once with ours: what the training step saw is the same.

A test gives a function that trains with a loader class and returns a Record of every process that trained.
"""

from __future__ import annotations

import contextlib
import copy
import os
import pathlib
import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any

# before any framework is imported: nothing may ask a network
os.environ.update(
    HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", TOKENIZERS_PARALLELISM="0"
)

import torch
import torch.utils.data
import tqdm
from conftest import as_torchs, assert_same, seed_all
from torch.utils.data.dataloader import _BaseDataLoaderIter

import shmloader

WAYS = ("swapped import", "patched torch")

torch.set_num_threads(1)  # two frameworks fork processes that train: OpenMP's threads would not be there
tqdm.tqdm.monitor_interval = 0  # otherwise it starts a thread, which would count as left behind
_missing: list[Any] = []  # a library's operators go with it


def _import_torchvision() -> None:
    """Import torchvision, which timm needs and Lightning imports where it is installed.

    PyPI's is built for CUDA; beside a torch without, its C library does not load, and importing it fails at the first
    operator it then misses.  The two it registers are about detection boxes: to declare them is enough.
    """
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        _missing.append(torch.library.Library("torchvision", "FRAGMENT"))
        for name in "nms", "qnms":
            _missing[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision  # noqa: F401


_import_torchvision()


class Record:
    """What a process saw: its batches, and of what kind each iterator over a loader was."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.iterators: list[str] = []

    def see(self, what: Any) -> None:
        self.seen.append(copy.deepcopy(what))

    def save(self, path: pathlib.Path) -> None:
        path.write_bytes(pickle.dumps(self))


def saved(folder: pathlib.Path, processes: int) -> list[Record]:
    paths = sorted(folder.iterdir())
    assert len(paths) == processes, paths
    records = [pickle.loads(path.read_bytes()) for path in paths]
    for path in paths:
        path.unlink()
    return records


@contextlib.contextmanager
def recording() -> Iterator[Record]:
    record = Record()
    init = _BaseDataLoaderIter.__init__

    def note(self: Any, loader: Any) -> None:
        record.iterators.append(type(self).__name__)
        init(self, loader)

    _BaseDataLoaderIter.__init__ = as_torchs(note)
    try:
        yield record
    finally:
        _BaseDataLoaderIter.__init__ = init


def assert_same_epochs(train: Callable[[Any], list[Record]], way: str) -> list[Record]:
    """Train with torch's loader and with ours, named as a user would; returns our records once they are found equal."""
    seed_all()
    theirs = train(torch.utils.data.DataLoader)
    seed_all()
    if way == "swapped import":
        ours = train(shmloader.DataLoader)
    else:
        with shmloader.patch_torch():
            ours = train(torch.utils.data.DataLoader)
    for our, their in zip(ours, theirs, strict=True):
        assert their.seen and their.iterators
        assert_same(our.seen, their.seen)
        assert set(their.iterators) == {"_MultiProcessingDataLoaderIter"}
        assert our.iterators == ["RingIterator"] * len(their.iterators)
    return ours
