"""shmloader: a drop-in replacement for torch's DataLoader, whose batches travel through a ring of shared memory.

A training script needs only `import shmloader as loader`: `loader.DataLoader` and `loader.DistributedSampler` are ours,
and the datasets, other samplers and collate functions beside them are torch's.  `shmloader.images.decode` decodes
pictures; import it by its name.
"""

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

from shmloader.system import gil as _gil

_had_gil = _gil.is_enabled()

from shmloader import transforms as transforms  # noqa: E402
from shmloader.async_dataloader import AsyncDataLoader  # noqa: E402
from shmloader.commands.tuning.tune import tune  # noqa: E402
from shmloader.dataloader import DataLoader  # noqa: E402
from shmloader.frozen.freeze import freeze  # noqa: E402
from shmloader.patch import patch_torch  # noqa: E402
from shmloader.readers.attach import attach  # noqa: E402
from shmloader.resume.distributed import DistributedSampler  # noqa: E402
from shmloader.row_wise import row_wise  # noqa: E402
from shmloader.storage.shards import Shards  # noqa: E402

_gil.warn(_had_gil)

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
