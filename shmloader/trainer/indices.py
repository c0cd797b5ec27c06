"""The sampler's place, and how it is found again: after a signal handler has raised in the middle of a draw, and in
another process that goes on with the epoch.

A sampler's iterator is usually a Python generator, and one that is interrupted is at its end for good.  But torch's own
samplers give the same indices again if their random generators are set back.  So the random states at the epoch's
beginning are kept, and its indices are drawn again up to the place where they were lost.  The same states, or the seed
that was drawn from one, are what a loader's state needs of the sampler.
"""

from __future__ import annotations

import itertools
import pickle
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

from shmloader.resume import seek
from shmloader.resume.distributed import DistributedSampler as ElasticSampler
from shmloader.resume.generators import pack
from shmloader.resume.place import Epoch
from shmloader.resume.state import State
from shmloader.system.signals import held

REPEATABLE = {
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    ElasticSampler,
}


class Draws:
    """An epoch's indices, with the random states from before the first draw.

    Args:
        sampler: Gives the indices, or the batches of them.
        of_loader: The loader's generator.
        start: Where in the epoch to begin; None: at its beginning.
        indices: What the sampler gives, if it was asked already.
    """

    def __init__(
        self,
        sampler: Any,
        of_loader: torch.Generator | None = None,
        start: State | None = None,
        indices: Iterator[Any] | None = None,
    ) -> None:
        self._sampler = sampler
        self._start = start
        self._global = torch.get_rng_state()
        self._of_loader = None if of_loader is None else of_loader.get_state()
        self._own = [(of, of.get_state()) for of in _generators(sampler)]
        self._apart = [state for of, state in self._own if of is not of_loader]
        self._told: dict[str, Any] | None = None
        if start is not None and not start.drawn:
            seek.draw_as_if(sampler)
        self.indices: Iterator[Any] = self._begin() if indices is None else indices
        self._from = self.indices, self.indices  # what they come from, and what gives those that are left: one step
        self._noting: Noting | None = None
        if (keeper := seek.keeps_state(sampler)) is not None:
            used_up = start is not None and start.used_up
            # with workers, the sampler is asked for more before its last batch is handed out
            length = None if indices is None else _length_of(sampler)
            self.indices = self._noting = Noting(sampler, keeper, self.indices, used_up, length)

    def _begin(self) -> Iterator[Any]:
        return iter(self._sampler) if self._start is None else seek.rest(self._sampler, self._start)

    def again(self, count: int) -> Iterator[Any]:
        """The indices after the first `count`, which were used, when a handler has raised in the next draw.

        Raises:
            RuntimeError: That has ended the sampler's iterator, and the sampler is not known to repeat itself.
        """
        source, left = self._from
        if not (isinstance(source, GeneratorType) and source.gi_frame is None):
            return self._noting or left  # it goes on
        kinds = [type(of) for of in seek.chain(self._sampler)]
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
                source = self._begin()
                drawn = list(itertools.islice(source, count + 1))[count:]  # in here, for the first draws the seed
                if torch.equal(now, self._global):  # the handler was called before that had been drawn
                    now = torch.get_rng_state()
            finally:
                torch.set_rng_state(now)
            left = itertools.chain(drawn, source)
            self._from = source, left
        return left

    # --------------------------------------------------------------------------------------------- for a state

    def tell(self) -> dict[str, Any]:
        """The fields of State that say how to draw the same again.  It is asked once an epoch."""
        if self._told is None:
            self._told = {
                **seek.seeds(self._sampler, self._start, self._global),
                "drawn": True,
                "loader_generator": None if self._of_loader is None else pack(self._of_loader),
                "sampler_generator": next(map(pack, self._apart), None),
            }
        return self._told

    def sampler_state(self, batches: int) -> dict[str, Any]:
        """What the sampler said of itself when it had given so many batches, and whether it has more."""
        if self._noting is None:
            return {"sampler_state": None, "used_up": False}
        said, used_up = self._noting.states[batches]
        return {"sampler_state": pickle.loads(said), "used_up": used_up}

    def draw_for(self, epoch: Epoch) -> None:
        """Of what a sampler says of itself, keep what may be asked for, from what the user has got in this epoch on."""
        if self._noting is not None:
            self._noting.epoch = epoch


class Noting:
    """Indices, and what the sampler says of itself before the first and after each of those that are under way.

    A class and no generator: one that is interrupted would be at its end.

    Args:
        sampler: What gives the indices, in batches or one by one.
        keeper: What of it has the state.
        indices: What it gives.
        used_up: Whether a loaded state says that nothing is left.
        length: How many it gives.  Behind the last of them it is asked whether it has more; None: it is not asked.
    """

    def __init__(
        self, sampler: Any, keeper: Any, indices: Iterator[Any], used_up: bool, length: int | None = None
    ) -> None:
        self._sampler = sampler
        self._keeper = keeper
        self._indices = indices
        self._count = 0
        self._length = length
        self._further: list[Any] = []  # what it gave beyond its length
        self.epoch: Epoch | None = None
        self.states = {0: (self._said(), used_up)}

    def _said(self) -> bytes:
        return pickle.dumps(self._keeper.state_dict())  # at once: it may be what the sampler counts in

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            index = self._further.pop() if self._further else next(self._indices)
        except StopIteration:
            self._end()
            raise
        self._count += 1
        self.states[self._count] = self._said(), seek.is_last(self._sampler, index)
        if self._count == self._length:
            self._look_further(index)
        if self.epoch is not None:
            for old in [count for count in self.states if count < self.epoch.delivered.batches]:
                del self.states[old]
        return index

    def _look_further(self, index: Any) -> None:
        """Ask the sampler for more behind its last index, so that its state is that of its end."""
        try:
            self._further.append(next(self._indices))
        except StopIteration:
            self._end()
        except BaseException:  # it comes one index early, and the index with the next call
            self._count -= 1
            self._further.append(index)
            raise

    def _end(self) -> None:
        """The sampler has no more.  Where it gave nothing at all, whoever goes on asks it again."""
        if self._count:
            self.states[self._count] = self._said(), True


def _length_of(sampler: Any) -> int | None:
    """How many indices or batches a sampler says that it gives; None where it does not say."""
    try:
        return len(sampler)
    except (TypeError, NotImplementedError):
        return None


def _generators(sampler: Any) -> list[torch.Generator]:
    """Those that it draws from, the innermost first: a state has one, that of seek.generator_of()."""
    found = (getattr(part, "generator", None) for part in reversed(seek.within(sampler)))
    return [each for each in found if isinstance(each, torch.Generator)]
