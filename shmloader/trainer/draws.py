"""The sampler's place, and how it is found again after a signal handler has raised in the middle of a draw.

A sampler's iterator is usually a Python generator, and one that is interrupted is at its end for good.  But torch's own
samplers give the same indices again if their random generators are set back.  So the random states at the epoch's
beginning are kept, and its indices are drawn again up to the place where they were lost.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import GeneratorType
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from shmloader.system.signals import held

REPEATABLE = {
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
}


class Draws:
    """An epoch's indices, with the random states from before the first draw.

    Args:
        sampler: Gives the indices, or the batches of them.
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._global = torch.get_rng_state()
        self._own = [(of, of.get_state()) for of in _generators(sampler)]
        self.indices: Iterator[Any] = iter(sampler)
        self._from = self.indices, self.indices  # what they come from, and what gives those that are left: one step

    def again(self, count: int) -> Iterator[Any]:
        """The indices after the first `count`, which were used, when a handler has raised in the next draw.

        Raises:
            RuntimeError: That has ended the sampler's iterator, and the sampler is not known to repeat itself.
        """
        source, left = self._from
        if not (isinstance(source, GeneratorType) and source.gi_frame is None):
            return left  # it goes on
        kinds = [type(of) for of in _chain(self._sampler)]
        if not set(kinds) <= REPEATABLE:
            raise RuntimeError(
                f"the sampler was interrupted after {count} batches, which ended it, and whether {kinds[-1].__name__} "
                "gives the same indices again is not known: iterate over the DataLoader anew"
            )
        with held():  # else what is heard in here could leave the global generator elsewhere
            now = torch.get_rng_state()
            try:
                torch.set_rng_state(self._global)
                for generator, state in self._own:  # they stay where this leaves them: some samplers draw on from them
                    generator.set_state(state)
                source = iter(self._sampler)
                drawn = list(itertools.islice(source, count + 1))[count:]  # in here, for the first draws the seed
            finally:
                torch.set_rng_state(now)
            left = itertools.chain(drawn, source)
            self._from = source, left
        return left


def _chain(sampler: Any) -> list[Any]:
    """A batch sampler and what it batches."""
    chain = [sampler]
    while type(chain[-1]) is BatchSampler:
        chain.append(chain[-1].sampler)
    return chain


def _generators(sampler: Any) -> list[torch.Generator]:
    return [of for part in _chain(sampler) if isinstance(of := getattr(part, "generator", None), torch.Generator)]
