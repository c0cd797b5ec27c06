"""DistributedSampler: torch's, and any number of ranks may go on with an epoch that others have begun."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, TypeVar

import torch.utils.data

T_co = TypeVar("T_co", covariant=True)


class DistributedSampler(torch.utils.data.DistributedSampler[T_co]):
    """Gives each rank its share of the samples: torch's sampler, whose epochs can go on with other ranks.

    It has torch's arguments, and gives what torch's gives.  It needs no sampler of another kind to be resumed: a loader
    that has loaded a state asks for what is left of the epoch with `after`.

    The epoch's order is one for all ranks.  Of W ranks, rank r has every W-th sample of it, from the r-th on.  So after
    n samples over all ranks, the order from the n-th on is left, whatever W was, and is dealt out to the ranks that
    there are now: each sample that is left once.  If batch size times ranks is what it was, the batches of all ranks
    together are the same, too.  As in torch, the last round is filled up from the order's beginning, or left out with
    `drop_last=True`.

    Example:
        >>> before = [DistributedSampler(range(8), 2, rank, shuffle=False) for rank in range(2)]
        >>> [list(sampler)[:2] for sampler in before]
        [[0, 2], [1, 3]]
        >>> now = [DistributedSampler(range(8), 4, rank, shuffle=False) for rank in range(4)]
        >>> [list(sampler.after(4)) for sampler in now]
        [[4], [5], [6], [7]]
    """

    def after(self, samples: int) -> Iterator[int]:
        """This rank's share of what is left of the epoch.

        Args:
            samples: How many samples of the epoch were dealt out before, over all ranks.
        """
        order = self._order()
        length = len(order)
        left = max(0, length - samples)
        share = left // self.num_replicas if self.drop_last else -(-left // self.num_replicas)
        end = samples + share * self.num_replicas
        dealt = order[samples:end]
        dealt += [order[place % length] for place in range(length, end) if left]
        return iter(dealt[self.rank :: self.num_replicas])

    def _order(self) -> list[int]:
        """The epoch's order for all ranks: what torch gives to one that is alone."""
        alone: Any = copy.copy(self)
        alone.num_replicas, alone.rank = 1, 0
        alone.num_samples = alone.total_size = len(alone.dataset)
        return list(torch.utils.data.DistributedSampler.__iter__(alone))
