"""An epoch: one object that has all its numbers, what its indices come from, and where it was begun.

NOTE [ Epoch ]

    1. Each number has one owner.  What was drawn and opened is counted in EpochCounts, by whoever opens batches; what
       was taken in its Reading, by whoever takes them; what was handed out in a Progress.  Whether a sampler has more
       is known to the Source.  Nobody else keeps a count, and whether the epoch is over is computed from these.
    2. `delivered` is what the user has got, and what a state tells.  It is the Progress that the reader counts with,
       unless a thread is ahead of the user: then it is a copy, which came with the batch that the user got last.
    3. Two epochs may be under way, `current` and `next`.  They share nothing, so a failure of the next one leaves the
       current one as it is.
    4. An epoch holds no iterator and no ring, and outlives them.  So its place is known when its iterator is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from shmloader.core.epoch_counts import EpochCounts
from shmloader.core.progress import Progress
from shmloader.resume import epochs, iterables, seek
from shmloader.resume.loader_generators import where_generators_are
from shmloader.resume.ranks import rank_of_state
from shmloader.resume.seek import sampler_of
from shmloader.resume.source import Source
from shmloader.resume.state import State

if TYPE_CHECKING:
    from shmloader.resume.place import Place


class Epoch(EpochCounts):
    """An epoch that was begun.

    Args:
        number: Its number.
        base_seed, served: See State.
        start: Where it was begun; its beginning, unless a state was loaded.
        ranks: This rank, and how many share the epoch.
        fixed: The fields of a state that stay the same while it is under way.
        numbered, workers: See EpochCounts.

    Attributes:
        seed, sample_seed: Of the whole epoch, and of its first sample here: seeds.py.
        delivered: The user's count since `start`.
        source: What its indices come from; None while nothing was drawn.
        states: Of streams: what each says of itself behind the last batch that was handed out by the iterator.
        carried: Of streams: what each said of itself before it began, where it did not begin as its dataset was made.
        fresh: Of a stream without workers: what its dataset is to be told when the next epoch begins; None: nothing.
        loads, from_loaded: How often a state was loaded when it was begun, and whether it was begun with such a state.
        length: The dataset's when it was begun, if it has a set_epoch(), which may change it.
    """

    source: Source | None

    def __init__(
        self,
        number: int,
        base_seed: int,
        served: int,
        start: State,
        ranks: tuple[int, int],
        fixed: dict[str, Any],
        numbered: bool,
        workers: int,
    ) -> None:
        super().__init__(numbered, workers)
        self.number = number
        self.base_seed = base_seed
        self.served = served
        self.start = start
        self.rank, self.ranks = ranks
        self.fixed = fixed
        self.seed = self.sample_seed = 0
        self.delivered: Progress = self.reading.delivered
        self.states: Callable[[], list[bytes | None]] | None = None
        self.carried: Sequence[bytes | None] = ()
        self.fresh: Any = None
        self.loads = 0
        self.from_loaded = False
        self.length: int | None = None

    @property
    def ended(self) -> bool:
        """Whether next() has raised StopIteration in the user's code because the epoch is over."""
        return self.reading.ended and self.delivered is self.reading.delivered

    def state(self, loader: Any) -> dict[str, Any]:
        """Where the user is in it: all fields of a state.

        Args:
            loader: The loader, which must have the same dataset and sampler as when the epoch was begun.
        """
        source = self.source
        draws = self._about_to_draw(loader) if source is None else source.state(self.delivered.batches)
        state = self.fixed | draws
        state["batches"], state["samples"], state["beyond"] = self._got()
        if self.states is not None:
            state["streams"], state["latest"] = iterables.states(
                loader, self.start, self.delivered, self.states, self.carried
            )
        return state

    def _about_to_draw(self, loader: Any) -> dict[str, Any]:
        """What the sampler is about to draw, and from where."""
        start = self.start if self.start.begun else None
        sampler = sampler_of(loader)
        return {
            **where_generators_are(loader),
            **seek.seeds(sampler, start, torch.get_rng_state()),
            "sampler_state": seek.state_of_sampler(sampler) if start is None else start.sampler_state,
            "used_up": start is not None and start.used_up,
        }

    def _got(self) -> tuple[int, int, list[list[int]]]:
        """How far the user is, from where the epoch was started and what was delivered since.

        Returns:
            The batches before the first one that is missing, the samples of all ranks in them, and the numbers and
            samples of those that were delivered behind it.
        """
        start, delivered = self.start, self.delivered
        batches, samples = start.batches + delivered.batches, delivered.samples
        if not start.beyond and not delivered.beyond:
            return batches, start.samples + samples * self.ranks, []
        had = dict(start.beyond) | {_number(start, k): count for k, count in delivered.beyond.items()}
        batches = _number(start, delivered.batches)
        samples += sum(count for number, count in start.beyond if number < batches)
        beyond = sorted([number, count] for number, count in had.items() if number > batches)
        return batches, start.samples + samples * self.ranks, beyond


def _number(start: State, k: int) -> int:
    """The number in its epoch of the k-th batch since the start: those beyond it are not made again."""
    number = start.batches + k
    for other, _ in sorted(start.beyond):
        number += other <= number
    return number


def next_epoch_of(place: Place, base_seed: int, served: int, numbered: bool, workers: int) -> Epoch:
    """The epoch that is about to begin at this place."""
    loader = place.loader
    start = State() if place.loaded is None else State(streams=place.loaded.streams)
    if place.loaded is not None and place.loaded.begun:
        start = place.loaded
    sampler = sampler_of(loader)
    ranks = seek.ranks_of(loader)
    fixed = State(
        epoch=place.next_number,
        begun=True,
        ranks=ranks[1],
        base_seed=base_seed,
        served=served,
        sampler=seek.name_of(sampler),
        sampler_epoch=epochs.of_sampler(sampler),
        dataset_epoch=epochs.dataset_epoch(loader.dataset),
        rank=rank_of_state(loader),
        workers=iterables.workers_of(loader),
    )
    made = Epoch(place.next_number, base_seed, served, start, ranks, fixed.as_dict(), numbered, workers)
    made.loads, made.from_loaded = place.loads, place.loaded is not None
    made.length = epochs.length_of(loader.dataset)
    return made
