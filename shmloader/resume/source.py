"""Where an epoch's indices come from, and how the place in them is found again: after a signal's handler has raised in
the middle of a draw, and in another process that goes on with the epoch.

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
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from shmloader.core.indices import Indices
from shmloader.resume import seek
from shmloader.resume.distributed import DistributedSampler as ElasticSampler
from shmloader.resume.drawn_from import Watch
from shmloader.resume.generators import pack
from shmloader.resume.state import State
from shmloader.system.signals import held

if TYPE_CHECKING:
    from shmloader.resume.epoch import Epoch

REPEATABLE = {
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    ElasticSampler,
}


class Source(Indices):
    """What gives the indices of one epoch: the sampler's iterator, where it is, and what it was begun from.

    Args:
        sampler: Gives the indices, or the batches of them.
        of_loader: The loader's generator.
        start: Where in the epoch to begin; None: at its beginning.
        indices: What the sampler gives, if it was asked already.
        watch: Looks at what is drawn from, as long as the epoch is not the user's yet; None: it is.
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
        self._begun_from: dict[str, Any] | None = None
        if start is not None and not start.drawn:
            seek.draw_as_if(sampler)
        given = self._begin() if indices is None else indices
        self._from = given, given  # what they come from, and what gives those that are left: replaced in one step
        self._watch = watch
        self._notes: Notes | None = None
        if (keeper := seek.keeps_state(sampler)) is not None:
            used_up = start is not None and start.used_up
            # with workers, the sampler is asked for more before its last batch is handed out
            length = None if indices is None else _length_of(sampler)
            self._notes = Notes(sampler, keeper, used_up, length)
        super().__init__(self._observed(given))

    def _begin(self) -> Iterator[Any]:
        return iter(self._sampler) if self._start is None else seek.rest(self._sampler, self._start)

    def _observed(self, indices: Iterator[Any]) -> Iterator[Any]:
        if self._watch is not None:
            self._watch.after_draw()  # iter() of a sampler may draw as well
        if self._watch is None and self._notes is None:
            return indices
        return _Observed(indices, self._watch, self._notes)

    def replay(self, count: int) -> Iterator[Any]:
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
                f"the sampler was interrupted after {count} batches, which ended it. {kinds[-1].__name__} may not give "
                "the same indices again, so this epoch cannot continue. Iterate over the DataLoader again."
            )
        with held():  # otherwise a signal's handler could leave the global generator elsewhere
            now = torch.get_rng_state()
            try:
                torch.set_rng_state(self._global)
                for generator, state in self._own:  # they stay where this leaves them: some samplers draw on from them
                    generator.set_state(state)
                source = self._begin()
                drawn = list(itertools.islice(source, count + 1))[count:]  # in here: the first one draws the seed
                if torch.equal(now, self._global):  # the handler was called before that had been drawn
                    now = torch.get_rng_state()
            finally:
                torch.set_rng_state(now)
            left = itertools.chain(drawn, source)
            self._from = source, left
            self.indices = self._observed(left)
        return self.indices

    # ------------------------------------------------------------------------------------------------- for a state

    def state(self, batches: int) -> dict[str, Any]:
        """The fields of State that say how to draw the same again, and where the sampler was behind some batches.

        Args:
            batches: How many of the epoch's batches the user has got from this source.
        """
        if self._begun_from is None:
            self._begun_from = {
                **seek.seeds(self._sampler, self._start, self._global),
                "drawn": True,
                "loader_generator": None if self._of_loader is None else pack(self._of_loader),
                "sampler_generator": next(map(pack, self._apart), None),
            }
        if self._notes is None:
            return {**self._begun_from, "sampler_state": None, "used_up": False}
        return {**self._begun_from, **self._notes.behind(batches)}

    def told(self) -> dict[str, Any] | None:
        """The same, where it does not depend on how many; None if it does, because the sampler keeps a state."""
        return self.state(0) if self._notes is None else None

    def belongs_to(self, epoch: Epoch) -> None:
        """Keep what a state of this epoch may ask for, from the batches that the user has got of it on."""
        if self._notes is not None:
            self._notes.epoch = epoch

    # --------------------------------------------------------------- of an epoch that was begun before it is asked for

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


class _Observed:
    """A sampler's indices, with somebody who looks at the sampler around each draw.

    It holds each index from the draw until it is given, so that a signal's handler may raise anywhere in between.  It
    is no generator, because one that is interrupted is at its end.

    Args:
        indices: What the sampler gives.
        watch, notes: Who looks; None: nobody.
    """

    def __init__(self, indices: Iterator[Any], watch: Watch | None, notes: Notes | None) -> None:
        self._indices = indices
        self._watch = watch
        self._notes = notes
        self._given = 0
        self._held: collections.deque[Any] = collections.deque()  # what was drawn and not given yet

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        held, number = self._held, self._given + 1
        try:
            if not held:  # otherwise a handler has raised behind the draw
                if self._watch is not None:
                    self._watch.before_draw()
                held.extend(itertools.islice(self._indices, 1))
            if self._notes is not None:
                self._notes.note(number, held, self._indices)
        finally:
            if self._watch is not None:
                self._watch.after_draw()
        if not held:
            raise StopIteration
        index, self._given = held[0], number
        del held[0]  # no call from here on, so no handler can raise: the index is given
        return index


class Notes:
    """What a sampler says of itself before the first index and behind each of those that are under way.

    Args:
        sampler: What gives the indices, in batches or one by one.
        keeper: The part of it that has the state.
        used_up: Whether a loaded state says that nothing is left.
        length: How many it gives.  Behind the last one, the sampler is asked for one more; None: it is not.
    """

    def __init__(self, sampler: Any, keeper: Any, used_up: bool, length: int | None = None) -> None:
        self._sampler = sampler
        self._keeper = keeper
        self._length = length
        self.epoch: Epoch | None = None
        self._states = {0: (self._sampler_state(), used_up)}

    def _sampler_state(self) -> bytes:
        return pickle.dumps(self._keeper.state_dict())  # at once: it may be what the sampler counts in

    def behind(self, batches: int) -> dict[str, Any]:
        """The fields of State for what the sampler said when it had given so many batches, and had more or not."""
        said, used_up = self._states[batches]
        return {"sampler_state": pickle.loads(said), "used_up": used_up}

    def note(self, number: int, drawn: collections.deque[Any], indices: Iterator[Any]) -> None:
        """Keep what the sampler says now.

        Args:
            number: The number of the index that was drawn, from 1.
            drawn: That index; empty where the sampler has no more.  One behind it may be drawn as well.
            indices: What gives it.
        """
        if not drawn:
            if number > 1:  # of a sampler that gives nothing at all, its state stays that of its beginning
                self._states[number - 1] = self._sampler_state(), True
            return
        if len(drawn) == 1:
            self._states[number] = self._sampler_state(), seek.is_last(self._sampler, drawn[0])
            if number == self._length:
                drawn.extend(itertools.islice(indices, 1))
                if len(drawn) == 1:
                    self._states[number] = self._sampler_state(), True
        if self.epoch is not None:
            for old in [count for count in self._states if count < self.epoch.delivered.batches]:
                del self._states[old]


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
