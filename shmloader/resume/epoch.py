"""An epoch: one object with its counts, the source of its indices, and the place where it started.
It computes how many batches and samples a state has, and finds the source's place again.

NOTE [ Epoch ]

    1. Each count has one owner.  EpochCounts counts the batches that were drawn, opened and taken, and Progress counts
       those that were handed out.  The Source knows whether the sampler has more.  Whether the epoch is over follows
       from these, and there is no other counter.
    2. `delivered` is the epoch's Progress.  It counts the batches that the user has received, and a state saves its
       count.  The ring's iterator has a Progress, too: `handed_out` counts what the iterator hands out.  Without a
       prefetch thread, both are one object.  With a prefetch thread, the iterator hands batches to the thread, and the
       user receives them later.  So with each batch, the iterator hands the thread a copy of `handed_out`, and
       `delivered` is the copy that came with the last batch that the user received.
    3. An epoch holds no iterator and no ring, and outlives them.  So its place is known after its iterator is gone.

NOTE [ Source ]

The source finds its place again after a signal's handler has raised during a draw, and in another process that resumes
the epoch.  A sampler's iterator is usually a Python generator, which ends for good if it is interrupted.  But torch's
own samplers give the same indices again from the same random states.  So a source keeps the random states of the
epoch's beginning, and draws the indices again up to the lost place.  A loader's state saves the same random states, or
the seed that was drawn from one.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import GeneratorType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import BatchSampler

from shmloader.core.trainer import EpochCounts, Indices, Progress
from shmloader.private import of_torch
from shmloader.resume import stream_states
from shmloader.resume.generators import further, mix
from shmloader.resume.order import order_of
from shmloader.resume.rest_of_epoch import Rest, rest
from shmloader.resume.sampler_generators import AllGenerators, Generators
from shmloader.resume.sampler_states import SamplerStates, Saving
from shmloader.resume.samplers import KNOWN, Another, Samplers, samplers_of
from shmloader.resume.state import State
from shmloader.system.signals import held

if TYPE_CHECKING:
    from shmloader.resume.place import Place

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


class Epoch(EpochCounts):
    """An epoch that has begun.

    Args:
        fixed: A state with the fields that do not change during the epoch.
        start: Where it began: at its beginning, unless a state was loaded.
        rank: This rank, of those that share the epoch.
        workers: See EpochCounts.

    Attributes:
        number, base_seed, ranks: See State.
        epochs_before: `served` of State.
        seed: Of what is drawn once for the epoch: the sequences of replacements for bad samples.
        sample_seed: Of this rank's first sample.  The seeds of all other samples follow from it: the epoch has a
            sequence of seeds, and the sample at place k in the order of all ranks has seed number k.
        delivered: The batches that the user has received since `start`.
        source: The source of its indices; None before the first draw.
        states: For streams: the state of each after the last batch that the iterator handed out.
        carried: For streams that resume: the state of each before the epoch began.
        fresh: For a stream without workers: the state to load into its dataset before the next epoch; None: no state.
        follows: Whether dataset_epoch_of() has the dataset's number for each batch.
    """

    source: Source | None

    def __init__(self, fixed: State, start: State, rank: int, workers: int) -> None:
        super().__init__(workers)
        assert fixed.base_seed is not None
        self.number, self.base_seed, self.ranks = fixed.epoch, fixed.base_seed, fixed.ranks
        self.epochs_before = fixed.served
        self.fixed = fixed.as_dict()
        self.start = start
        self.seed = mix(self.base_seed, self.epochs_before)
        self.sample_seed = further(self.seed, start.samples + rank)
        self.delivered: Progress = self.handed_out
        self.states: Callable[[], list[bytes | None]] | None = None
        self.carried: Sequence[bytes | None] = ()
        self.fresh: Any = None
        self.follows = False

    @property
    def ended(self) -> bool:
        """Whether next() has raised StopIteration in the user's code because the epoch is over."""
        return self.stopped and self.delivered is self.handed_out

    def state(self, loader: Any) -> dict[str, Any]:
        """The user's place in the epoch: all fields of a state.

        Args:
            loader: The loader, with the same dataset and sampler as when the epoch began.

        Raises:
            RuntimeError: Batches come out of order, and not all have come.
        """
        source, start, delivered = self.source, self.start, self.delivered
        if self._may_lack_batches(loader):
            raise RuntimeError(
                f"state_dict() in mid-epoch needs batches in order, but got in_order=False with {loader.num_workers} "
                "workers. Save the state between two epochs, or use schedule='steal' in place of in_order=False: it "
                "keeps workers busy while one batch is slow, too, and delivers batches in order."
            )
        draws = self._about_to_draw(loader) if source is None else source.state(delivered.batches)
        state = self.fixed | draws
        if self.follows:
            state["dataset_epoch"] = self.dataset_epoch_of(delivered.batches)
        state["batches"] = start.batches + delivered.batches
        state["samples"] = start.samples + delivered.samples * self.ranks
        if self.states is not None:
            state |= stream_states.fields(loader, start, delivered, self.states, self.carried)
        return state

    def _may_lack_batches(self, loader: Any) -> bool:
        """Whether the user may have a batch, and not one before it.  Each worker of a stream keeps its own order."""
        had, source = self.delivered.batches, self.source
        if loader.in_order or loader.num_workers < 2 or self.states is not None or not had:
            return False
        return source is None or not source.is_exhausted or had != self.opened

    def _about_to_draw(self, loader: Any) -> dict[str, Any]:
        """The fields of a state for an epoch whose sampler has not drawn yet."""
        start = self.start if self.start.begun else None
        samplers = samplers_of(loader)
        own = samplers.own_state() if start is None else {}
        generators = Generators(samplers, loader.generator)
        draws = {**generators.fields(), **samplers.seeds(start, generators.of_global), **own}
        if start is not None:
            return {**draws, "sampler_state": start.sampler_state, "used_up": start.used_up, "drawn": start.drawn}
        if own["sampler_state"] is not None:
            draws["global_generator"] = None  # the sampler will not draw again what its state has
        return draws


def next_epoch_of(place: Place, base_seed: int, epochs_before: int, workers: int) -> Epoch:
    """The epoch that is about to begin at this place."""
    samplers, loaded = samplers_of(place.loader), place.loaded
    start = State() if loaded is None else loaded if loaded.begun else State(streams=loaded.streams)
    fixed = replace(place.next_epoch(samplers, base_seed, epochs_before), begun=True, sampler=order_of(samplers))
    return Epoch(fixed, start, samplers.ranks[0], workers)
