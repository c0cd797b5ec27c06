"""How many batches an epoch has: a bound for those under way, and a warning if there is none.

As many batches may be under way as with torch, but if these are very many, not more than the epoch has, and one.  A
ring has an entry and a slot for each.  With `prefetch_factor=100_000` and an epoch of a hundred batches, almost all of
them would be made for nothing.  The one more has the loader ask for an index behind the last one in iter(), if torch
would: a RandomSampler draws from the loader's generator there, which decides the next order.

The length is only a bound.  If a sampler's `len()` is too small, or a later epoch of persistent workers is longer,
fewer batches are under way than could be, and none is lost.
"""

from __future__ import annotations

import operator
import warnings
from typing import Any

from torch.utils.data import IterableDataset

from shmloader.protocols.attributes import attribute, length_of
from shmloader.resume.epoch import Epoch
from shmloader.system.by_identity import ByIdentity
from shmloader.system.user_line import caller

MANY = 1024  # batches under way.  For fewer, no `len()` is called: torch calls none, and a user's may draw numbers


def most_under_way(loader: Any) -> int:
    """How many batches of a loader may be under way, at least one for each worker."""
    usual = operator.index(loader.num_workers * loader.prefetch_factor)  # torch takes no float
    batches = _batches_of(loader) if usual > MANY else None
    return usual if batches is None else min(usual, max(batches + 1, int(loader.num_workers)))


def _batches_of(loader: Any) -> int | None:
    """How many batches an epoch has; None if that is not known."""
    if not isinstance(loader.dataset, IterableDataset):
        return length_of(loader.batch_sampler if loader.batch_sampler is not None else loader.sampler)
    samples = length_of(loader.dataset)  # each worker's last batch may be smaller
    return None if samples is None else -(-samples // (loader.batch_size or 1)) + loader.num_workers


_warned: ByIdentity[bool] = ByIdentity()


def warn_if_all_dropped(loader: Any, epoch: Any) -> None:
    """Warn once for each loader if an epoch, which is over, had no batch because of drop_last=True.

    Args:
        loader: The loader; None if it is gone.
        epoch: The epoch; of a closed ring it is none.  The rest of one may be empty.
    """
    if loader is None or not isinstance(epoch, Epoch) or loader in _warned:
        return
    if epoch.handed_out.batches or epoch.start.begun or not _drops(loader):
        return
    _warned[loader] = True
    warnings.warn(
        "the epoch had no batch, because drop_last=True drops what does not fill one. With a stream, each worker drops "
        "its own last batch. Give drop_last=False, fewer workers, or a smaller batch_size.",
        RuntimeWarning,
        stacklevel=caller()[1],
    )


def _drops(loader: Any) -> bool:
    """Whether a loader drops the last batch, and has samples, as far as it shows."""
    if isinstance(loader.dataset, IterableDataset):
        return bool(loader.drop_last)
    sampler = loader.batch_sampler
    return attribute(sampler, "drop_last") is True and bool(length_of(attribute(sampler, "sampler")))
