"""DistributedSampler: torch's, and another number of ranks can continue an epoch.

Place.load() refuses a state that does not fit: why_not() in order.py.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, TypeVar

import torch.utils.data

T_co = TypeVar("T_co", covariant=True)


class DistributedSampler(torch.utils.data.DistributedSampler[T_co]):
    """Gives each rank its share of the samples, as torch's sampler does; other ranks can continue its epochs.

    It takes torch's arguments and gives the same indices.  A loader that resumes from a state calls `after()` for the
    rest of the epoch.

    All ranks share one order of the epoch.  With W ranks, rank r has every W-th sample of it, starting with the r-th.
    So once all ranks together have received n samples, the rest of the epoch is the order from the n-th sample on,
    whatever W is.  The present ranks divide it, and each sample comes once.  If batch size times ranks stays the same,
    the batches of all ranks together stay the same, too.  As in torch, the last round is filled up from the order's
    beginning, or left out with `drop_last=True`.

    Example:
        >>> before = [DistributedSampler(range(8), 2, rank, shuffle=False) for rank in range(2)]
        >>> [list(sampler)[:2] for sampler in before]
        [[0, 2], [1, 3]]
        >>> now = [DistributedSampler(range(8), 4, rank, shuffle=False) for rank in range(4)]
        >>> [list(sampler.after(4)) for sampler in now]
        [[4], [5], [6], [7]]
    """

    def after(self, samples: int) -> Iterator[int]:
        """This rank's share of the rest of the epoch.

        Args:
            samples: How many samples of the epoch all ranks together have received.
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
        """The epoch's order for all ranks: what torch gives to a single rank."""
        single: Any = copy.copy(self)
        single.num_replicas, single.rank = 1, 0
        single.num_samples = single.total_size = len(single.dataset)
        return list(torch.utils.data.DistributedSampler.__iter__(single))
