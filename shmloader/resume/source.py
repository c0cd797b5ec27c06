"""The source of an epoch's indices.  It finds its place again after a signal's handler has raised during a draw, and in
another process that resumes the epoch.

A sampler's iterator is usually a Python generator, which ends for good if it is interrupted.  But torch's own samplers
give the same indices again from the same random states.  So a source keeps the random states of the epoch's beginning,
and draws the indices again up to the lost place.  A loader's state saves the same random states, or the seed
that was drawn from one.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator
from types import GeneratorType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import BatchSampler

from shmloader.core.trainer import Indices
from shmloader.private import of_torch
from shmloader.resume.rest_of_epoch import Rest, rest
from shmloader.resume.sampler_generators import AllGenerators, Generators
from shmloader.resume.sampler_states import SamplerStates, Saving
from shmloader.resume.samplers import KNOWN, Another, Samplers
from shmloader.resume.state import State
from shmloader.system.signals import held

if TYPE_CHECKING:
    from shmloader.resume.epoch import Epoch

REPEATABLE = {BatchSampler, *KNOWN, of_torch._InfiniteConstantSampler}  # the last is of streams


class Source(Indices):
    """The indices of one epoch: the sampler's iterator, its place, and the random states from which it began.

    Args:
        sampler: Gives the indices, or the batches of them.
        loader_generator: The loader's generator.
        start: Where in the epoch to begin; None: at its beginning.
        indices: The sampler's iterator, if it was made already.
        before: The generators' states before that, if making it has drawn from them; None: they are as they are now.
        another: Makes another iterator if the first one gives nothing; None: then the epoch is empty.
        saving: Whether somebody saves states of the loader; None: nobody does.
    """

    def __init__(
        self,
        sampler: Any,
        loader_generator: torch.Generator | None = None,
        start: State | None = None,
        indices: Iterator[Any] | None = None,
        before: Generators | None = None,
        another: Another | None = None,
        saving: Saving | None = None,
    ) -> None:
        self._samplers = samplers = Samplers(sampler)
        before = Generators(samplers, loader_generator) if before is None else before
        self._start = start
        self._loader_generator = loader_generator
        self._before = before
        self._origin: dict[str, Any] | None = None
        generators = None if samplers.keeper is None else AllGenerators(sampler)
        if start is not None and not start.drawn:
            samplers.draw_as_if()
        given = self._begin() if indices is None else indices
        self._from = given
        self._another = another
        self._states: SamplerStates | None = None
        if generators is not None:
            self._states = SamplerStates(samplers, generators, start, Saving() if saving is None else saving)
        super().__init__(self._observed(given))

    def _begin(self) -> Iterator[Any]:
        if self._start is None:
            return iter(self._samplers.outer)
        return rest(self._samplers, self._start, self._loader_generator)

    def _observed(self, indices: Iterator[Any]) -> Iterator[Any]:
        return indices if self._states is None else _Observed(indices, self._states, self._another)

    def replay(self, count: int) -> Iterator[Any]:
        """The indices after the first `count`, when a handler has raised in the next draw.

        Raises:
            RuntimeError: The interrupt has ended the sampler's iterator, and the sampler may not repeat its order.
        """
        given = self._from if self._another is None or self._another.iterator is None else self._another.iterator
        source = given.source if isinstance(given, Rest) else given
        if not (isinstance(source, GeneratorType) and source.gi_frame is None):
            return self.indices  # it can continue
        kinds = [type(each) for each in self._samplers.chain]
        if not set(kinds) <= REPEATABLE:
            raise RuntimeError(
                f"the sampler was interrupted after {count} batches, which ended it. {kinds[-1].__name__} may not give "
                "the same indices again, so this epoch cannot continue. Iterate over the DataLoader again."
            )
        with held():  # otherwise a signal's handler could leave the global generator in a wrong state
            now = torch.get_rng_state()
            try:
                torch.set_rng_state(self._before.of_global)
                for generator, state in self._before.own:  # they stay rewound, because the replay draws from them
                    generator.set_state(state)
                source = self._begin()
                drawn = list(itertools.islice(source, count + 1))[count:]  # here, because the first one draws the seed
                if torch.equal(now, self._before.of_global):  # the handler ran before that draw
                    now = torch.get_rng_state()
            finally:
                torch.set_rng_state(now)
            self._from = source
            self.indices = self._observed(itertools.chain(drawn, source))
        return self.indices

    # ------------------------------------------------------------------------------------------------- for a state

    def state(self, batches: int) -> dict[str, Any]:
        """The fields of State that reproduce the order, and the sampler's own state after some batches.

        Args:
            batches: How many of the epoch's batches the user has received from this source.
        """
        if self._origin is None:
            self._origin = {
                **self._samplers.seeds(self._start, self._before.of_global),
                **self._before.fields(),
                "drawn": True,
            }
        return self._origin if self._states is None else {**self._origin, **self._states.after(batches)}

    def belongs_to(self, epoch: Epoch) -> None:
        """Be the source of this epoch, and keep the sampler's states from the user's last batch on."""
        epoch.source = self
        if self._states is not None:
            self._states.epoch = epoch


class _Observed:
    """The indices of a sampler that has a state, which is recorded after each draw.

    It holds each index from the draw until it is given, so a signal's handler may raise at any moment.  It is not a
    generator, because an interrupted generator ends.

    Args:
        indices: The sampler's iterator.
        states: Where.
        another: Makes another iterator if this one gives nothing; None: there is no other one.
    """

    def __init__(self, indices: Iterator[Any], states: SamplerStates, another: Another | None) -> None:
        self._indices = indices
        self._states = states
        self._another = another
        self._given = 0
        self._drawn: collections.deque[Any] = collections.deque()  # drawn and not given yet

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        drawn, number = self._drawn, self._given + 1
        if not drawn:  # otherwise a handler has raised after the draw
            # All in C.  It calls no iter(), which starts a sampler again that is its own iterator.
            drawn.extend(map(next, (self._indices,)))
            if not drawn and number == 1 and self._another is not None:
                self._indices = self._another.made()
                drawn.extend(map(next, (self._indices,)))
                self._another.warn_if_empty(drawn)
        if self._states.record(number, drawn, self._indices):
            self._indices = iter(())  # not asked again, because a sampler may start over at its end
        if not drawn:
            raise StopIteration
        index, self._given = drawn[0], number
        del drawn[0]  # no call follows, so no handler can raise: the index is given
        return index
