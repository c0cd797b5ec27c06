"""shmloader: a drop-in replacement for torch's DataLoader, whose batches travel through a ring of shared memory.

A training script needs only `import shmloader as loader`: `loader.DataLoader` and `loader.DistributedSampler` are ours,
and the datasets, other samplers and collate functions beside them are torch's.  `shmloader.images` reads pictures.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    default_convert,
    get_worker_info,
    random_split,
)

from shmloader import transforms as transforms
from shmloader.dataloader import DataLoader
from shmloader.patch import patch_torch
from shmloader.protocols.row_wise import row_wise
from shmloader.resume.distributed import DistributedSampler

if _TYPE_CHECKING:
    from shmloader import frozen as frozen
    from shmloader import images as images
    from shmloader.async_dataloader import AsyncDataLoader
    from shmloader.commands.tuning.tune import tune
    from shmloader.frozen.freeze import freeze
    from shmloader.readers.attach import attach
    from shmloader.storage.shards import Shards

# Imported when they are used: most scripts use none of them, and they have a fifth of all modules.
_WHEN_USED = {
    "AsyncDataLoader": "shmloader.async_dataloader",
    "Shards": "shmloader.storage.shards",
    "attach": "shmloader.readers.attach",
    "freeze": "shmloader.frozen.freeze",
    "frozen": "shmloader.frozen",
    "images": "shmloader.images",
    "tune": "shmloader.commands.tuning.tune",
}


def __getattr__(name: str) -> _Any:
    if name not in _WHEN_USED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _import_module(_WHEN_USED[name])
    globals()[name] = found = getattr(module, name, module)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHEN_USED})


__version__ = "0.2.0"  # pyproject.toml reads it here

__all__ = [
    "AsyncDataLoader",
    "BatchSampler",
    "ChainDataset",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "IterableDataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "Shards",
    "StackDataset",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "attach",
    "default_collate",
    "default_convert",
    "freeze",
    "get_worker_info",
    "patch_torch",
    "random_split",
    "row_wise",
    "tune",
]
