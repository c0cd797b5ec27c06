"""An epoch: one object with its counts, the source of its indices, and the place where it started.
It computes how many batches and samples a state has.

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
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shmloader.core.trainer import EpochCounts, Progress
from shmloader.resume import stream_states
from shmloader.resume.generators import further, mix
from shmloader.resume.order import order_of
from shmloader.resume.sampler_generators import Generators
from shmloader.resume.samplers import samplers_of
from shmloader.resume.source import Source
from shmloader.resume.state import State

if TYPE_CHECKING:
    from shmloader.resume.place import Place


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
