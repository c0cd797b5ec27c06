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
    6. An epoch that was begun early (start(), prefetch_epochs) is not where the user is.  It is `next` until it is
       asked for, and a state has it under that name beside the one that the user is in.  If by then set_epoch() has
       said something else than it assumes, it is given up: its state is loaded, with what was said, so that what it
       has drawn is drawn once.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shmloader.resume import epochs, iterables, seek
from shmloader.resume.loader_generators import where_generators_are, why_not_generators
from shmloader.resume.ranks import rank_of_state, this_rank
from shmloader.resume.seek import sampler_of
from shmloader.resume.state import State, changed, closed, opened, state_of

if TYPE_CHECKING:
    from shmloader.resume.epoch import Epoch  # what it builds on is not there off Linux


class Place:
    """The place of one loader.

    Args:
        loader: The loader, which it does not keep.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = weakref.ref(loader)
        self.next_number = 0
        self.counts_with = -1  # so many workers, that it is known to be counted what is given
        self.loads = 0
        self.loaded: State | None = None
        self.then: State | None = None  # what is loaded when the epoch of `loaded` is over
        self.current: Epoch | None = None  # the one that the user is in, or was in last
        self._next: weakref.ref[Epoch] | None = None
        self.begins_next = False
        self._steps: tuple[int, int] = (1, 1)  # from epoch to epoch, of what the sampler and the dataset were told

    # -------------------------------------------------------------------------------------------- the state

    @property
    def loader(self) -> Any:
        """Whose place it is; None where that is gone."""
        return self._loader()

    @property
    def _sampler(self) -> Any:
        return sampler_of(self.loader)

    def state(self) -> dict[str, Any]:
        """Where the user is."""
        return closed(self._state())

    def _state(self) -> dict[str, Any]:
        current, coming = self.current, self.next
        if self.loaded is not None:
            return self.loaded.as_dict() | {"next": None if self.then is None else self.then.as_dict()}
        if current is None or current.ended:
            if self.then is not None:  # it has the numbers that were assumed when its epoch was prefetched
                return self._with_current_epochs(self.then).as_dict()
            return self._between(current).as_dict() if coming is None else self._state_of_next(coming)
        state = current.state(self.loader)
        if coming is not None:
            state["next"] = coming.state(self.loader)
        elif self.then is not None:
            state["next"] = self.then.as_dict()
        return state

    def _state_of_next(self, coming: Epoch) -> dict[str, Any]:
        state = coming.state(self.loader)
        if self.holds(coming):
            return state | {"epoch": self.next_number}
        return self._with_current_epochs(state_of(state)).as_dict()

    def _between(self, over: Epoch | None) -> State:
        """Before the first epoch, or at the end of one."""
        loader, sampler = self.loader, self._sampler
        lasts = over is not None and loader.persistent_workers and loader._iterator is not None
        return State(
            epoch=self.next_number,
            base_seed=over.base_seed if over is not None and lasts else None,  # it serves the next epoch as well
            served=over.served + 1 if over is not None and lasts else 0,
            ranks=seek.ranks_of(loader)[1],
            sampler=seek.name_of(sampler),
            sampler_epoch=epochs.of_sampler(sampler),
            dataset_epoch=epochs.dataset_epoch(loader.dataset),
            rank=rank_of_state(loader),
            sampler_state=seek.state_of_sampler(sampler),
            workers=iterables.workers_of(loader),
            streams=None if over is None or over.states is None else iterables.at_end(loader, over.states),
            **where_generators_are(loader),
        )

    # ------------------------------------------------------------------------------------------- what is loaded

    def load(self, given: Any) -> None:
        """Have the next iter() go on from there."""
        loader, sampler = self.loader, self._sampler
        state = state_of(opened(given))
        ranks = seek.ranks_of(loader)[1]
        if why := seek.why_not(sampler, state, ranks):
            raise ValueError(f"this state cannot be loaded: {why}")
        if state.rank is not None and state.rank != this_rank():
            raise ValueError(
                f"this state is that of rank {state.rank}, and this is rank {this_rank()}. It holds the place of a "
                "stream or of a sampler of your own, which differs from rank to rank. Save a state on each rank, and "
                "load it there."
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
            epochs.set_epoch_of_samplers(loader, state.sampler_epoch)
        if state.dataset_epoch is not None:
            epochs.set_epoch(loader.dataset, state.dataset_epoch)

    def starting(self) -> State | None:
        """The loaded state that the next epoch starts from; None if it starts anew."""
        if self.loaded is None and self.then is not None:
            self.loaded, self.then = self._with_current_epochs(self.then), None
        state = self.loaded
        if state is None:
            return None
        now = epochs.of_sampler(self._sampler)
        if state.begun and now != state.sampler_epoch:
            self._drop(f"set_epoch({now}) was called, and the state is of epoch {state.sampler_epoch}")
        return self.loaded

    def _drop(self, why: str) -> None:
        """Have the next epoch come whole, though a state was loaded that is in the midst of one."""
        state, self.loaded = self.loaded, None
        assert state is not None
        warnings.warn(
            f"{why}, so the next epoch starts at its beginning. The loaded place, after {state.samples} samples of "
            f"epoch {state.epoch}, is dropped. To resume there, begin the loop with the state's epoch.",
            RuntimeWarning,
            stacklevel=4,
        )

    # ------------------------------------------------------------------------------------------------- an epoch

    def begin(self, epoch: Epoch) -> None:
        """This epoch is under way: the user's, or the next one if it is begun early."""
        if self.begins_next:
            self.next = epoch
            return
        before = {} if self.current is None else self.current.fixed
        self._steps = (
            _step(before.get("sampler_epoch"), epoch.fixed["sampler_epoch"]),
            _step(before.get("dataset_epoch"), epoch.fixed["dataset_epoch"]),
        )
        self.current, self.loaded, self.next = epoch, None, None
        self.next_number = epoch.number + 1

    # ------------------------------------------------------------------------------- an epoch that was begun early

    @property
    def next(self) -> Epoch | None:
        """The epoch that was begun early and not asked for yet, as long as there is its iterator."""
        return None if self._next is None else self._next()

    @next.setter
    def next(self, epoch: Epoch | None) -> None:
        self._next = None if epoch is None else weakref.ref(epoch)

    @contextmanager
    def beginning_next(self) -> Iterator[None]:
        """Meanwhile, an epoch that is begun is the one after the user's."""
        self.begins_next = True
        try:
            yield
        finally:
            self.begins_next = False

    def assumed(self, epoch: Epoch) -> tuple[int | None, int | None]:
        """What sampler and dataset are going to be told for the epoch after this one, if set_epoch() goes on as it
        did."""
        sampler, dataset = epoch.fixed["sampler_epoch"], epoch.fixed["dataset_epoch"]
        return (
            None if sampler is None else sampler + self._steps[0],
            None if dataset is None else dataset + self._steps[1],
        )

    def holds(self, epoch: Epoch) -> bool:
        """Whether an epoch that was begun early is the one that iter() would begin now."""
        dataset = self.loader.dataset
        return (
            epoch.loads == self.loads
            and epoch.from_loaded == (self.loaded is not None)
            and epoch.fixed["sampler_epoch"] == epochs.of_sampler(self._sampler)
            and epoch.fixed["dataset_epoch"] == epochs.dataset_epoch(dataset)
            and epoch.length == epochs.length_of(dataset)
            and (epoch.source is None or not epoch.source.is_changed())
        )

    def turn(self, epoch: Epoch) -> None:
        """The user asks for the epoch that was begun early."""
        epoch.number = epoch.fixed["epoch"] = self.next_number
        if epoch.source is not None:
            epoch.source.asked_for()
        self.begin(epoch)

    def give_up(self, epoch: Epoch) -> None:
        """Have the next iter() begin that epoch once more; if another state was loaded meanwhile, as that says."""
        self.next = None
        if epoch.loads != self.loads or (epoch.from_loaded and self.loaded is not None and self.loaded.begun):
            return
        state = state_of(epoch.state(self.loader))
        if epoch.from_loaded and self.loaded is None:  # dropped: the epoch comes whole
            state = _whole(state)
        if epoch.source is not None:
            state = changed(state, **epoch.source.put_back(self.loader))
        self.loaded = self._with_current_epochs(state)

    def outlive_workers(self) -> None:
        """Have the next epoch begin as if its workers persisted, with their base seed, though they are about to end."""
        if self.next is not None:
            self.give_up(self.next)
        elif self.loaded is None and self.then is None and self.current is not None:
            self.loaded = self._between(self.current)

    def _with_current_epochs(self, state: State) -> State:
        """The state of an epoch that nothing was got of, with the epochs that sampler and dataset have now."""
        now = epochs.of_sampler(self._sampler)
        if now != state.sampler_epoch:  # its own state is of before that
            state = changed(_whole(state), sampler_state=None)
        return changed(
            state, epoch=self.next_number, sampler_epoch=now, dataset_epoch=epochs.dataset_epoch(self.loader.dataset)
        )

    def set_epoch(self, epoch: Any) -> None:
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
        epochs.set_epoch_of_samplers(self.loader, number)
        epochs.set_epoch(self.loader.dataset, number)
        if self.loaded is None:
            return
        if whole:
            self.loaded = self._with_current_epochs(self.loaded)
        else:
            self.loaded = changed(self.loaded, sampler_epoch=epochs.of_sampler(self._sampler))


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
            f"the sampler {sampler} has no state_dict(), so a resumed loader draws from its beginning and skips what "
            "was delivered. That is right only if it gives the same order again. Give it a state_dict() and a "
            "load_state_dict(), or use one of torch's samplers.",
            RuntimeWarning,
            stacklevel=4,
        )


_places: weakref.WeakKeyDictionary[Any, Place] = weakref.WeakKeyDictionary()


def place_of(loader: Any) -> Place:
    """The place of this loader."""
    place = _places.get(loader)
    if place is None:
        place = _places[loader] = Place(loader)
    return place
