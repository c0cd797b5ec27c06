"""The samplers of drawn programs: torch's, and users' own, which may have a state, raise, or give odd batches.
They are importable, so that a printed program can use them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DistributedSampler, Sampler

# What a printed program gives to the loader for each kind of order; `dataset`, `batch_size` and `at` are filled in.
ORDERS: dict[str, str] = {
    "in order": "",
    "shuffle": "shuffle=True",
    "generator": "shuffle=True, generator=torch.Generator().manual_seed(3)",
    "replacement": "sampler=RandomSampler(dataset, replacement=True, num_samples={length})",
    "own generator": "sampler=RandomSampler(dataset, generator=torch.Generator().manual_seed(4))",
    "weighted": "sampler=WeightedRandomSampler([1.0] * {length}, {length})",
    "subset": "sampler=SubsetRandomSampler(range(1, {length}))",
    "distributed": "sampler={distributed}(dataset, num_replicas={ranks}, rank={rank}, seed=5)",
    "list": "sampler=list(range({length}))[::-1]",
    "own": "sampler=samplers.Backwards({length})",
    "stateful": "sampler=samplers.Keeper({length})",
    "raising": "sampler=samplers.Raising({length}, {at})",
    "batches": "batch_sampler=BatchSampler(RandomSampler(dataset), {batch_size}, False)",
    "own batches": "batch_sampler=samplers.Batches({length}, {batch_size})",
    "odd batches": "batch_sampler=samplers.OddBatches({length}, {batch_size}, {at})",
    "stateful batches": "batch_sampler=BatchSampler(samplers.Keeper({length}), {batch_size}, False)",
}
IN_BATCHES = ("batches", "own batches", "odd batches", "stateful batches")
DRAW_FROM_GLOBAL = ("shuffle", "replacement", "weighted", "subset", "batches")
DRAWS = (*DRAW_FROM_GLOBAL, "generator", "own generator")
WITHOUT_STATE = (
    "own",
    "own batches",
    "odd batches",
    "raising",
)  # of which a loader can only guess that they repeat themselves


class SamplerError(Exception):
    """Raised by a sampler."""


class Remainder(DistributedSampler[Any]):
    """torch's sampler, whose first epoch is what other ranks left of theirs.

    Attributes:
        dealt: How many samples of that epoch they had, over all ranks.
    """

    dealt = 0

    def __iter__(self) -> Iterator[Any]:
        dealt, self.dealt = self.dealt, 0  # at its first index, because torch's loader asks for two iterators
        if not dealt:
            yield from super().__iter__()
            return
        single = DistributedSampler[Any](self.dataset, 1, 0, shuffle=self.shuffle, seed=self.seed)
        single.set_epoch(self.epoch)
        order = list(single)
        left, fill = order[dealt:], iter(order * self.num_replicas)
        while len(left) % self.num_replicas:
            left.append(next(fill))
        yield from left[self.rank :: self.num_replicas]

    def forget(self) -> None:
        """Begin the next epoch, although nobody asked for an index of the rest."""
        self.dealt = 0


class Backwards(Sampler[int]):
    """A sampler of the user's: the same order in each epoch."""

    def __init__(self, length: int) -> None:
        self.length, self.flag = length, 0

    def __iter__(self) -> Iterator[int]:
        return iter([(i + self.flag) % self.length for i in range(self.length)][::-1])

    def __len__(self) -> int:
        return self.length


class Batches(Sampler[list[int]]):
    """A batch sampler of the user's, whose batches are of two sizes."""

    def __init__(self, length: int, batch_size: int) -> None:
        self.length, self.batch_size = length, batch_size

    def __iter__(self) -> Iterator[list[int]]:
        start, size = 0, self.batch_size
        while start < self.length:
            yield list(range(start, min(start + size, self.length)))
            start, size = start + size, self.batch_size + 1 if size == self.batch_size else self.batch_size

    def __len__(self) -> int:
        return len(list(iter(self)))


class OddBatches(Batches):
    """One of its batches is none: a number in place of a list."""

    def __init__(self, length: int, batch_size: int, at: int) -> None:
        super().__init__(length, batch_size)
        self.at = at

    def __iter__(self) -> Iterator[Any]:
        return (number if number == self.at else batch for number, batch in enumerate(super().__iter__()))


class Keeper(Sampler[int]):
    """A sampler that shuffles each epoch in another way and says where it is."""

    def __init__(self, length: int) -> None:
        self.length, self.epoch, self.position = length, 0, 0

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.length))
        random.Random(self.epoch).shuffle(order)
        while self.position < self.length:
            self.position += 1
            yield order[self.position - 1]
        self.position, self.epoch = 0, self.epoch + 1

    def __len__(self) -> int:
        return self.length

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position, self.epoch = state["position"], state["epoch"]


class Raising(Sampler[int]):
    """A sampler that raises within an epoch, and ends there."""

    def __init__(self, length: int, at: int) -> None:
        self.length, self.at = length, at

    def __iter__(self) -> Iterator[int]:
        for i in range(self.length):
            if i == self.at:
                raise SamplerError(f"no index after {i}")
            yield i

    def __len__(self) -> int:
        return self.length
