"""Where each loader is: in which epoch, how far the user has got in it, and where a loaded state says to go on.

NOTE [ Place ]

    1. What counts is what the user has got.  It is counted where a batch is handed out (progress.pyx), by the
       iterator, or by the thread that is ahead of the user, with what it hands on.  Batches under way are made again
       after a resume.
    2. A place is of a loader, but not in it: frameworks copy a loader's __dict__, and may make another one of it.
    3. It holds no iterator.  An epoch that was left half-way keeps its place when its iterator is gone.
    4. A state that is loaded takes effect at the next iter().  Until then it is what state_dict() tells.  An iterator
       that exists goes on as it is.
    5. Nothing is drawn for it.  A seed that a RandomSampler has drawn is drawn again from a copy of the generator, as
       that was before the first draw, and only when it is asked for.  When an epoch goes on, its base seed is that of
       the state, and no generator is where it would not be in the run that was not interrupted, if the user has
       restored the global one too.
    6. An epoch that was begun early (start(), prefetch_epochs) is not where the user is.  It is `ahead` until it is
       asked for, and told as the `next` of the one that the user is in.  If by then something else was said than it
       assumes, it is given up: its state is loaded, with what was said, so that what it has drawn is drawn once.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from shmloader.resume import epochs, iterables, seek
from shmloader.resume.loader_generators import where_generators_are, why_not_generators
from shmloader.resume.seek import sampler_of
from shmloader.resume.state import State, changed, closed, opened, state_of

if TYPE_CHECKING:
    from shmloader.core.progress import Progress  # there is none off Linux


class Drawn(Protocol):
    """What an epoch's indices are drawn from: Source in trainer/source.py."""

    def state(self, batches: int) -> dict[str, Any]:
        """The fields of State that say how to draw the same again, and where the sampler was behind some batches."""

    def is_changed(self) -> bool:
        """Whether the order would be another one now."""

    def asked_for(self) -> None:
        """The epoch is the user's."""

    def put_back(self, loader: Any) -> dict[str, Any]:
        """Put back what was drawn from; returns the fields of State for what somebody else has set since."""


@dataclass
class Epoch:
    """An epoch that was begun.

    Attributes:
        number: Its number.
        base_seed, served: See State.
        start: Where it was begun; its beginning, unless a state was loaded.
        delivered: What the user has got since then.
        ranks: How many ranks share it.
        told: What a state has of it that does not change while it is under way.
        drawn: None while nothing is.
        states: Of streams: what each says of itself behind the last batch that was handed out by the iterator.
        carried: Of streams: what each said of itself before it began, where it did not begin as its dataset was made.
        fresh: Of a stream without workers: what its dataset is to be told when the next epoch begins; None: nothing.
        loads, from_loaded: How often a state was loaded when it was begun, and whether it was begun with such a state.
        length: The dataset's when it was begun, if that is told epochs: it may be another one in each.
    """

    number: int
    base_seed: int
    served: int
    start: State
    delivered: Progress
    ranks: int
    told: dict[str, Any]
    drawn: Drawn | None = None
    states: Callable[[], list[bytes | None]] | None = None
    carried: Sequence[bytes | None] = ()
    fresh: Any = None
    loads: int = 0
    from_loaded: bool = False
    length: int | None = None


class Place:
    """The place of one loader."""

    def __init__(self) -> None:
        self.next_number = 0
        self.counts_with = -1  # so many workers, that it is known to be counted what is given
        self.loads = 0
        self.loaded: State | None = None
        self.then: State | None = None  # what is loaded when the epoch of `loaded` is over
        self.epoch: Epoch | None = None
        self._ahead: weakref.ref[Epoch] | None = None
        self.is_early = False
        self._steps: tuple[int, int] = (1, 1)  # from epoch to epoch, of what the sampler and the dataset were told

    # -------------------------------------------------------------------------------------------- what is told

    def tell(self, loader: Any) -> dict[str, Any]:
        """Where the user is."""
        return closed(self._told(loader))

    def _told(self, loader: Any) -> dict[str, Any]:
        epoch, ahead = self.epoch, self.ahead
        if self.loaded is not None:
            return self.loaded.as_dict() | {"next": None if self.then is None else self.then.as_dict()}
        if epoch is None or epoch.delivered.over:
            if self.then is not None:  # it has the numbers that were assumed when its epoch was prefetched
                return self._as_told(loader, self.then).as_dict()
            return self._between(loader, epoch).as_dict() if ahead is None else self._told_of_ahead(loader, ahead)
        told = self._told_of(loader, epoch)
        if ahead is not None or self.then is not None:
            told["next"] = self._told_of(loader, ahead) if ahead is not None else self.then.as_dict()  # type: ignore[union-attr]
        return told

    def _told_of_ahead(self, loader: Any, ahead: Epoch) -> dict[str, Any]:
        told = self._told_of(loader, ahead)
        if self.holds(loader, ahead):
            return told | {"epoch": self.next_number}
        return self._as_told(loader, state_of(told)).as_dict()

    def _told_of(self, loader: Any, epoch: Epoch) -> dict[str, Any]:
        drawn = epoch.drawn
        draws = self._about_to_draw(loader, epoch) if drawn is None else drawn.state(epoch.delivered.batches)
        told = epoch.told | draws
        told["batches"], told["samples"], told["beyond"] = _sum_of(epoch.start, epoch.delivered, epoch.ranks)
        if epoch.states is not None:
            told["streams"], told["latest"] = iterables.tell(
                loader, epoch.start, epoch.delivered, epoch.states, epoch.carried
            )
        return told

    def _between(self, loader: Any, over: Epoch | None) -> State:
        """Before the first epoch, or at the end of one."""
        sampler = sampler_of(loader)
        lasts = over is not None and loader.persistent_workers and loader._iterator is not None
        return State(
            epoch=self.next_number,
            base_seed=over.base_seed if over is not None and lasts else None,  # it serves the next epoch as well
            served=over.served + 1 if over is not None and lasts else 0,
            ranks=seek.ranks_of(loader)[1],
            sampler=seek.name_of(sampler),
            sampler_epoch=epochs.of_sampler(sampler),
            dataset_epoch=epochs.told(loader.dataset),
            rank=_rank_of_state(loader),
            sampler_state=seek.said_by(sampler),
            workers=iterables.workers_of(loader),
            streams=None if over is None or over.states is None else iterables.at_end(loader, over.states),
            **where_generators_are(loader),
        )

    def _about_to_draw(self, loader: Any, epoch: Epoch) -> dict[str, Any]:
        """What the sampler is about to draw, and from where."""
        start = epoch.start if epoch.start.begun else None
        sampler = sampler_of(loader)
        return {
            **where_generators_are(loader),
            **seek.seeds(sampler, start, torch.get_rng_state()),
            "sampler_state": seek.said_by(sampler) if start is None else start.sampler_state,
            "used_up": start is not None and start.used_up,
        }

    # ------------------------------------------------------------------------------------------- what is loaded

    def load(self, loader: Any, given: Any) -> None:
        """Have the next iter() go on from there."""
        state = state_of(opened(given))
        sampler = sampler_of(loader)
        ranks = seek.ranks_of(loader)[1]
        if why := seek.why_not(sampler, state, ranks):
            raise ValueError(f"this state cannot be loaded: {why}")
        if state.rank is not None and state.rank != this_rank():
            raise ValueError(
                f"this state is that of rank {state.rank}, and this is rank {this_rank()}: what a stream, or a sampler "
                "of your own, says of itself is for its own rank. Save the state of each rank, and load it there"
            )
        if why := why_not_generators(loader, state):
            raise ValueError(f"this state cannot be loaded: {why}")
        state = iterables.fitted(loader, state)
        if state.batches and seek.is_guessed(sampler):
            _say_that_it_is_guessed(seek.name_of(sampler))
        self.loaded, self.next_number = changed(state, next=None), state.epoch
        self.then = None if state.next is None else iterables.fitted(loader, state_of(state.next))
        self.loads += 1
        if state.sampler_epoch is not None:
            epochs.tell_samplers(loader, state.sampler_epoch)
        if state.dataset_epoch is not None:
            epochs.tell(loader.dataset, state.dataset_epoch)

    def starting(self, loader: Any) -> State | None:
        """The loaded state that the next epoch starts from; None if it starts anew."""
        if self.loaded is None and self.then is not None:
            self.loaded, self.then = self._as_told(loader, self.then), None
        state = self.loaded
        if state is None:
            return None
        now = epochs.of_sampler(sampler_of(loader))
        if state.begun and now != state.sampler_epoch:
            self._drop(f"the sampler was told epoch {now}, and the state is of its epoch {state.sampler_epoch}")
        return self.loaded

    def _drop(self, why: str) -> None:
        """Have the next epoch come whole, though a state was loaded that is in the midst of one."""
        state, self.loaded = self.loaded, None
        assert state is not None
        warnings.warn(
            f"{why}, so the next epoch comes whole: the place that was loaded, behind {state.samples} samples of epoch "
            f"{state.epoch}, is dropped",
            RuntimeWarning,
            stacklevel=4,
        )

    # ------------------------------------------------------------------------------------------------- an epoch

    def epoch_of(self, loader: Any, base_seed: int, served: int, delivered: Progress) -> Epoch:
        """The next epoch, which is about to begin."""
        start = State() if self.loaded is None else State(streams=self.loaded.streams)
        if self.loaded is not None and self.loaded.begun:
            start = self.loaded
        sampler = sampler_of(loader)
        ranks = seek.ranks_of(loader)[1]
        told = State(
            epoch=self.next_number,
            begun=True,
            ranks=ranks,
            base_seed=base_seed,
            served=served,
            sampler=seek.name_of(sampler),
            sampler_epoch=epochs.of_sampler(sampler),
            dataset_epoch=epochs.told(loader.dataset),
            rank=_rank_of_state(loader),
            workers=iterables.workers_of(loader),
        )
        made = Epoch(self.next_number, base_seed, served, start, delivered, ranks, told.as_dict())
        made.loads, made.from_loaded = self.loads, self.loaded is not None
        made.length = epochs.length_of(loader.dataset)
        return made

    def began(self, epoch: Epoch) -> None:
        """This epoch is under way."""
        if self.is_early:
            self._ahead = weakref.ref(epoch)
            return
        before = {} if self.epoch is None else self.epoch.told
        told = epoch.told
        self._steps = (
            _step(before.get("sampler_epoch"), told["sampler_epoch"]),
            _step(before.get("dataset_epoch"), told["dataset_epoch"]),
        )
        self.epoch, self.loaded, self._ahead = epoch, None, None
        self.next_number = epoch.number + 1

    # ------------------------------------------------------------------------------------------ an epoch begun early

    @property
    def ahead(self) -> Epoch | None:
        """The epoch that was begun early and not asked for yet, as long as there is its iterator."""
        return None if self._ahead is None else self._ahead()

    @contextmanager
    def early(self) -> Iterator[None]:
        """Meanwhile, an epoch that is begun is ahead of the user."""
        self.is_early = True
        try:
            yield
        finally:
            self.is_early = False

    def begun_early(self, epoch: Epoch) -> None:
        """This epoch is ahead of the user."""
        self._ahead = weakref.ref(epoch)

    def assumed(self, epoch: Epoch) -> tuple[int | None, int | None]:
        """What sampler and dataset are going to be told for the epoch after this one, if set_epoch() goes on as it
        did."""
        sampler, dataset = epoch.told["sampler_epoch"], epoch.told["dataset_epoch"]
        return (
            None if sampler is None else sampler + self._steps[0],
            None if dataset is None else dataset + self._steps[1],
        )

    def holds(self, loader: Any, epoch: Epoch) -> bool:
        """Whether an epoch that was begun early is the one that iter() would begin now."""
        return (
            epoch.loads == self.loads
            and epoch.from_loaded == (self.loaded is not None)
            and epoch.told["sampler_epoch"] == epochs.of_sampler(sampler_of(loader))
            and epoch.told["dataset_epoch"] == epochs.told(loader.dataset)
            and epoch.length == epochs.length_of(loader.dataset)
            and (epoch.drawn is None or not epoch.drawn.is_changed())
        )

    def ask_for(self, epoch: Epoch) -> None:
        """The user asks for the epoch that was begun early."""
        epoch.number = epoch.told["epoch"] = self.next_number
        if epoch.drawn is not None:
            epoch.drawn.asked_for()
        self.began(epoch)

    def give_up(self, loader: Any, epoch: Epoch) -> None:
        """Have the next iter() begin that epoch anew; if another state was loaded meanwhile, as that says."""
        self._ahead = None
        if epoch.loads != self.loads or (epoch.from_loaded and self.loaded is not None and self.loaded.begun):
            return
        state = state_of(self._told_of(loader, epoch))
        if epoch.from_loaded and self.loaded is None:  # dropped: the epoch comes whole
            state = _whole(state)
        if epoch.drawn is not None:
            state = changed(state, **epoch.drawn.put_back(loader))
        self.loaded = self._as_told(loader, state)

    def _as_told(self, loader: Any, state: State) -> State:
        """The state of an epoch that nothing was got of, with what sampler and dataset were told since."""
        now = epochs.of_sampler(sampler_of(loader))
        if now != state.sampler_epoch:  # what the sampler said of itself was before it was told that
            state = changed(_whole(state), sampler_state=None)
        return changed(state, epoch=self.next_number, sampler_epoch=now, dataset_epoch=epochs.told(loader.dataset))

    def set_epoch(self, loader: Any, epoch: Any) -> None:
        """Have the next epoch be this one, and tell the samplers and the dataset."""
        number = epochs.number_of(epoch)
        state = self.loaded
        # nothing was got of it, so there is nothing to drop, and what was drawn for it stays drawn
        whole = state is not None and state.begun and not state.batches and not state.beyond
        if state is not None and state.epoch != number and not whole:
            if state.begun:
                self._drop(f"set_epoch({number}) was called")
            else:
                self.loaded = changed(state, epoch=number)
        self.next_number = number
        epochs.tell_samplers(loader, number)
        epochs.tell(loader.dataset, number)
        if self.loaded is None:
            return
        if whole:
            self.loaded = self._as_told(loader, self.loaded)
        else:
            self.loaded = changed(self.loaded, sampler_epoch=epochs.of_sampler(sampler_of(loader)))


def _step(before: int | None, now: int | None) -> int:
    return 1 if before is None or now is None else now - before


def _whole(state: State) -> State:
    """The state before its epoch."""
    streams = iterables.at_start(state.streams)
    return changed(state, begun=False, batches=0, samples=0, beyond=(), used_up=False, streams=streams, latest=-1)


_said: set[str] = set()


def _say_that_it_is_guessed(sampler: str) -> None:
    if sampler not in _said:
        _said.add(sampler)
        warnings.warn(
            f"a loader is resumed whose samples are ordered by {sampler}: what it has given is passed over, which is "
            "right if it gives the same order again. Give it a state_dict() and a load_state_dict(), or use one of "
            "torch's samplers",
            RuntimeWarning,
            stacklevel=4,
        )


_places: weakref.WeakKeyDictionary[Any, Place] = weakref.WeakKeyDictionary()


def place_of(loader: Any) -> Place:
    """The place of this loader."""
    place = _places.get(loader)
    if place is None:
        place = _places[loader] = Place()
    return place


def this_rank() -> int:
    """Which of the job's processes this is."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK") or 0)  # torchrun's


def _sum_of(start: State, delivered: Progress, ranks: int) -> tuple[int, int, list[list[int]]]:
    """How far the user is, from where the epoch was started and what was delivered since.

    Returns:
        The batches before the first one that is missing, the samples of all ranks in them, and the numbers and samples
        of those that were delivered behind it.
    """
    batches, samples = start.batches + delivered.batches, delivered.samples
    if not start.beyond and not delivered.beyond:
        return batches, start.samples + samples * ranks, []
    had = dict(start.beyond) | {_number(start, k): count for k, count in delivered.beyond.items()}
    batches = _number(start, delivered.batches)
    samples += sum(count for number, count in start.beyond if number < batches)
    beyond = sorted([number, count] for number, count in had.items() if number > batches)
    return batches, start.samples + samples * ranks, beyond


def _number(start: State, k: int) -> int:
    """The number in its epoch of the k-th batch since the start: those beyond it are not made again."""
    number = start.batches + k
    for other, _ in sorted(start.beyond):
        number += other <= number
    return number


def _rank_of_state(loader: Any) -> int | None:
    """This rank, if the loader's state is no other's."""
    own = seek.keeps_state(sampler_of(loader)) is not None or iterables.workers_of(loader) is not None
    return this_rank() if own else None
