"""An epoch: one object with its counts, the source of its indices, and the place where it started.
It computes how many batches and samples a state has, also if some came early (in_order=False).

NOTE [ Epoch ]

    1. Each count has one owner.  EpochCounts counts the batches that were drawn and opened, Reading counts those that
       were taken, and Progress counts those that were handed out.  The Source knows whether the sampler has more.
       Whether the epoch is over is computed from these, and there is no other counter.
    2. `delivered` is the epoch's Progress.  It counts the batches that the user has received, and a state saves its
       count.  The ring's iterator has a Progress, too: `reading.delivered` counts what the iterator hands out.  Without
       a prefetch thread, both are one object.  With a prefetch thread, the iterator hands batches to the thread, and
       the user receives them later.  So with each batch, the iterator hands the thread a copy of `reading.delivered`,
       and `delivered` is the copy that came with the last batch that the user received.
    3. An epoch holds no iterator and no ring, and outlives them.  So its place is known after its iterator is gone.
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
    """An epoch that has begun.

    Args:
        number: Its number.
        base_seed, served: See State.
        start: Where it began: at its beginning, unless a state was loaded.
        ranks: This rank, and how many share the epoch.
        fixed: The fields of a state that do not change during the epoch.
        numbered, workers: See EpochCounts.

    Attributes:
        seed, sample_seed: Of the whole epoch, and of its first sample here: seeds.py.
        delivered: The batches that the user has received since `start`.
        source: The source of its indices; None before the first draw.
        states: For streams: the state of each after the last batch that the iterator handed out.
        carried: For streams that resume: the state of each before the epoch began.
        fresh: For a stream without workers: the state to load into its dataset before the next epoch; None: no state.
        batch_size: The samples of each batch but the last; 0 if it is not known.
        follows: Whether dataset_epoch_of() has the dataset's number for each batch.
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
        self.batch_size = 0
        self.follows = False

    @property
    def ended(self) -> bool:
        """Whether next() has raised StopIteration in the user's code because the epoch is over."""
        return self.reading.ended and self.delivered is self.reading.delivered

    def state(self, loader: Any) -> dict[str, Any]:
        """The user's place in the epoch: all fields of a state.

        Args:
            loader: The loader, with the same dataset and sampler as when the epoch began.
        """
        source = self.source
        draws = self._about_to_draw(loader) if source is None else source.state(self.delivered.batches)
        state = self.fixed | draws
        if self.follows:
            state["dataset_epoch"] = self.dataset_epoch_of(self.delivered.batches)
        state["batches"], state["samples"], state["beyond"] = self._got()
        if self.states is not None:
            state["streams"], state["latest"] = iterables.states(
                loader, self.start, self.delivered, self.states, self.carried
            )
        return state

    def _about_to_draw(self, loader: Any) -> dict[str, Any]:
        """The fields of a state for an epoch whose sampler has not drawn yet."""
        start = self.start if self.start.begun else None
        sampler = sampler_of(loader)
        own = seek.own_state(sampler) if start is None else {"sampler_state": start.sampler_state}
        draws = {**where_generators_are(loader), **seek.seeds(sampler, start, torch.get_rng_state()), **own}
        if start is not None:
            return {**draws, "used_up": start.used_up, "drawn": start.drawn}
        if own["sampler_state"] is not None:
            draws["global_generator"] = None  # the sampler will not draw again what its state has
        return {**draws, "used_up": False, "drawn": False}

    def _got(self) -> tuple[int, int, list[list[int]]]:
        """The user's place: where the epoch started, and what was delivered since.

        Returns:
            The number of batches before the first missing one, the samples of all ranks in these, and State.beyond, the
            batches that were delivered after it.
        """
        start, delivered = self.start, self.delivered
        batches, samples = start.batches + delivered.batches, delivered.samples
        if not start.beyond and not delivered.beyond:
            return batches, start.samples + samples * self.ranks, []
        before = {each[0]: each[1] for each in start.beyond}
        had = before | {_number(start, k): count for k, count in delivered.beyond.items()}
        batches = _number(start, delivered.batches)
        samples += sum(count for number, count in before.items() if number < batches)
        beyond = sorted([number, count, self.batch_size] for number, count in had.items() if number > batches)
        return batches, start.samples + samples * self.ranks, beyond


def _number(start: State, k: int) -> int:
    """The number in its epoch of the k-th batch since the start.  Batches in `beyond` are not made again."""
    number = start.batches + k
    for other in sorted(each[0] for each in start.beyond):
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
        sampler=str(seek.order_of(sampler)),
        sampler_epoch=place.sampler_epoch(),
        dataset_epoch=epochs.dataset_epoch(loader.dataset),
        rank=rank_of_state(loader),
        workers=iterables.workers_of(loader),
    )
    made = Epoch(place.next_number, base_seed, served, start, ranks, fixed.as_dict(), numbered, workers)
    made.batch_size = seek.batch_size_of(sampler)
    return made
