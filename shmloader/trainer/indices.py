"""The sampler's place, and how it is found again: after a signal handler has raised in the middle of a draw, and in
another process that goes on with the epoch.

A sampler's iterator is usually a Python generator, and one that is interrupted is at its end for good.  But torch's own
samplers give the same indices again if their random generators are set back.  So the random states at the epoch's
beginning are kept, and its indices are drawn again up to the place where they were lost.  The same states, or the seed
that was drawn from one, are what a loader's state needs of the sampler.
"""

from __future__ import annotations

import collections
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
from shmloader.resume.drawn_from import Watch, Watched
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
        watch: Looks at what is drawn from; None: the epoch is the user's already.
    """

    def __init__(
        self,
        sampler: Any,
        of_loader: torch.Generator | None = None,
        start: State | None = None,
        indices: Iterator[Any] | None = None,
        watch: Watch | None = None,
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
        self._watch = watch
        self._noting: Noting | None = None
        if (keeper := seek.keeps_state(sampler)) is not None:
            used_up = start is not None and start.used_up
            # with workers, the sampler is asked for more before its last batch is handed out
            length = None if indices is None else _length_of(sampler)
            self.indices = self._noting = Noting(sampler, keeper, self.indices, used_up, length)
        self.indices = self._watched(self.indices)

    def _watched(self, indices: Iterator[Any]) -> Iterator[Any]:
        if self._watch is None:
            return indices
        self._watch.after_draw()  # iter() of a sampler may draw as well
        return Watched(indices, self._watch)

    def is_changed(self) -> bool:
        """Whether the order would be another one now: NOTE [ Drawn from ]."""
        return self._watch is not None and self._watch.is_changed()

    def asked_for(self) -> None:
        """The epoch is the user's."""
        if self._watch is not None:
            self._watch.end()

    def put_back(self, loader: Any) -> dict[str, Any]:
        """Put back what was drawn from, as it was before; returns the fields of State for what somebody else set."""
        watch = self._watch
        if watch is None or not watch.is_changed():
            return {}
        now: dict[str, Any] = {"sampler_state": None}
        for generator in _generators(self._sampler):
            if (state := watch.state_set(generator)) is not None:
                name = "loader_generator" if generator is loader.generator else "sampler_generator"
                now[name] = pack(state)
                if name == "loader_generator":
                    now["base_seed"] = None  # an iterator that begins draws it first
        watch.put_back()
        if seek.leaves_global(self._sampler) and watch.put_global_back():
            now["drawn"] = False  # what it draws then is drawn again: draw_as_if()
        return now

    def _begin(self) -> Iterator[Any]:
        return iter(self._sampler) if self._start is None else seek.rest(self._sampler, self._start)

    def again(self, count: int) -> Iterator[Any]:
        """The indices after the first `count`, which were used, when a handler has raised in the next draw.

        Raises:
            RuntimeError: That has ended the sampler's iterator, and the sampler is not known to repeat itself.
        """
        source, left = self._from
        if not (isinstance(source, GeneratorType) and source.gi_frame is None):
            return self.indices  # it goes on
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
            self.indices = self._watched(left)
        return self.indices

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
        self._length = length
        self._given = 0
        self._held: collections.deque[Any] = collections.deque()  # what was drawn and not given yet
        self.epoch: Epoch | None = None
        self.states = {0: (self._said(), used_up)}

    def _said(self) -> bytes:
        return pickle.dumps(self._keeper.state_dict())  # at once: it may be what the sampler counts in

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        held, number = self._held, self._given + 1
        if not held:  # otherwise a handler has raised behind the draw
            held.extend(itertools.islice(self._indices, 1))
        if not held:
            if self._given:  # of a sampler that gives nothing at all, its state stays that of its beginning
                self.states[self._given] = self._said(), True
            raise StopIteration
        if len(held) == 1:
            self.states[number] = self._said(), seek.is_last(self._sampler, held[0])
            if number == self._length:
                held.extend(itertools.islice(self._indices, 1))
                if len(held) == 1:
                    self.states[number] = self._said(), True
        if self.epoch is not None:
            for old in [count for count in self.states if count < self.epoch.delivered.batches]:
                del self.states[old]
        index, self._given = held[0], number
        del held[0]  # no call from here on, so no handler can raise: the index is given
        return index


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
