"""Warns once for each loader if an epoch had no batch because drop_last=True dropped all samples.

With a stream, each worker drops its own last batch.  If every worker's part is smaller than a batch, nothing is left.
"""

from __future__ import annotations

import warnings
from typing import Any

from torch.utils.data import BatchSampler, IterableDataset

from shmloader.resume.epoch import Epoch
from shmloader.system.by_identity import ByIdentity
from shmloader.system.user_line import caller

_warned: ByIdentity[bool] = ByIdentity()


def warn_if_all_dropped(loader: Any, epoch: Any) -> None:
    """Warn if this epoch, which is over, had no batch for that reason.  The rest of an epoch may be empty.

    Args:
        loader: The loader; None if it is gone.
        epoch: The epoch; of a closed ring it is none.
    """
    if loader is None or not isinstance(epoch, Epoch):
        return
    if epoch.handed_out.batches or epoch.start.begun or loader in _warned:
        return
    why = _of_stream(loader) if isinstance(loader.dataset, IterableDataset) else _of_sampler(loader.batch_sampler)
    if why:
        _warned[loader] = True
        text = f"the epoch had no batch, because drop_last=True drops what does not fill one. {why}"
        warnings.warn(text, RuntimeWarning, stacklevel=caller()[1])


def _of_stream(loader: Any) -> str:
    if not loader.drop_last:
        return ""
    kind, size = type(loader.dataset).__name__, loader.batch_size
    if loader.num_workers < 2:
        return f"The stream {kind} has fewer than batch_size={size}. Give drop_last=False, or a smaller batch_size."
    return (
        f"Each of the {loader.num_workers} workers drops its own last batch, and none of their parts of the stream "
        f"{kind} has batch_size={size} samples. Give drop_last=False, fewer workers, or a smaller batch_size."
    )


def _of_sampler(sampler: Any) -> str:
    if not isinstance(sampler, BatchSampler) or not sampler.drop_last:
        return ""
    try:
        count = len(sampler.sampler)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return ""
    if not 0 < count < sampler.batch_size:
        return ""
    return (
        f"The sampler gives {count} of them, and a batch has {sampler.batch_size}. Give drop_last=False, or a smaller "
        "batch_size."
    )
