"""The user's place in each loader: the epoch, the batches received so far, and the loaded state to resume from.
It refuses a state that does not fit the loader, and drops a state if set_epoch() then names another epoch.

NOTE [ Place ]

    1. A place counts the batches that the user has received.  The iterator counts each batch that it hands out
       (epoch_counts.pxi).  With a prefetch thread, that iterator is ahead of the user.  So the thread sends a copy of
       the count along with each batch, and the copy becomes the place when the user receives the batch.  Batches under
       way are made again after a resume.
    2. A place belongs to a loader, but is not an attribute of it, because frameworks copy a loader's __dict__ and may
       make another loader of it.
    3. It holds no iterator.  An epoch that the user leaves half-way keeps its place when its iterator is gone.
    4. A loaded state takes effect at the next iter().  state_dict() returns that state until the user has
       received a batch of the resumed epoch.  An existing iterator continues its own epoch, unless its workers are
       needed for the loaded one.
    5. Saving a state draws nothing.  If a state needs the seed that a RandomSampler has drawn, the seed is computed
       only then: we kept the generator's state from before the draw, and draw once more from a copy of that state.  A
       resumed epoch takes its base seed from the state.  Every generator is then in the state that it would have in an
       uninterrupted run, if the user has restored the global one too.
"""

from __future__ import annotations

import warnings
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shmloader.protocols.user_objects import ByIdentity
from shmloader.resume import stream_states
from shmloader.resume.dataset_epochs import dataset_epoch, number_of, set_epoch
from shmloader.resume.order import why_doubtful, why_not, why_past_end
from shmloader.resume.sampler_generators import Generators, why_not_generators
from shmloader.resume.sampler_states import Saving
from shmloader.resume.samplers import (
    Another,
    Samplers,
    rank_of_state,
    sampler_of,
    samplers_of,
    set_epoch_of_samplers,
    this_rank,
    warn_of_unreached,
)
from shmloader.resume.state import State, nested_in_tuples, state_of
from shmloader.system.user_line import caller, warn_once

if TYPE_CHECKING:
    from shmloader.resume.epoch import Epoch  # off Linux, a module that it imports is missing


class Place:
    """The place of one loader.

    Args:
        loader: The loader, to which it keeps a weak reference only.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = weakref.ref(loader)
        self.next_number = 0
        self.counts_with = -1  # `num_workers` for which counting was checked
        self.loads = 0  # calls of load()
        self.saving = Saving()
        self.loaded: State | None = None
        self.current: Epoch | None = None  # the user's epoch, or the last one
        self._epoch_set: int | None = None  # the last set_epoch() since an epoch began
        self._current_set: int | None = None  # the last set_epoch() before the current one began
        self._without_batch: list[int] = []  # the workers that gave no batch in an epoch before the current one

    # -------------------------------------------------------------------------------------------- the state

    @property
    def loader(self) -> Any:
        """The loader of this place; None if it is gone."""
        return self._loader()

    @property
    def _samplers(self) -> Samplers:
        return samplers_of(self.loader)

    def state(self) -> dict[str, Any]:
        """The state of the place, for state_dict()."""
        self.saving.asked = True
        return nested_in_tuples(self._state())

    def _state(self) -> dict[str, Any]:
        current = self.current
        if self.loaded is not None:
            return self.loaded.as_dict()
        if current is None or current.ended:
            return self._between(current).as_dict()
        return current.state(self.loader)

    def _between(self, over: Epoch | None) -> State:
        """The state before the first epoch, or after one."""
        loader, samplers = self.loader, self._samplers
        lasts = over is not None and loader.persistent_workers and loader._iterator is not None
        used_again = (over.base_seed, over.epochs_before + 1) if over is not None and lasts else (None, 0)
        return replace(
            self.next_epoch(samplers, *used_again),
            streams=None if over is None or over.states is None else stream_states.at_end(loader, over.states),
            **Generators(samplers, loader.generator).fields() | samplers.own_state(),
        )

    def next_epoch(self, samplers: Samplers, base_seed: int | None, epochs_before: int) -> State:
        """The fields of State that do not change until the next epoch is over."""
        loader, loaded, sampler_epoch = self.loader, self.loaded, samplers.epoch
        if loaded is not None and not loaded.begun and loaded.sampler_state is not None:
            sampler_epoch = loaded.sampler_epoch  # the sampler's state may hold an older one: NOTE [ Used up ]
        return State(
            epoch=self.next_number,
            base_seed=base_seed,
            served=epochs_before,
            ranks=samplers.ranks[1],
            sampler=samplers.name,
            sampler_epoch=sampler_epoch,
            dataset_epoch=dataset_epoch(loader.dataset),
            rank=rank_of_state(loader, samplers),
            workers=stream_states.workers_of(loader),
        )

    # ------------------------------------------------------------------------------------------- what is loaded

    def load(self, given: Any) -> None:
        """Have the next iter() resume from this state.

        Another number of ranks: why_not() in order.py says whether it can be.  Another batch size: rest() in
        rest_of_epoch.py takes the order sample by sample.  Another number of workers matters only for streams: in
        mid-epoch fitted() in stream_states.py raises, and between epochs it drops their states with a warning, if they
        differ.
        """
        loader, samplers = self.loader, self._samplers
        state = state_of(given)
        if why := why_not(samplers, state):
            raise ValueError(f"this state cannot be loaded: {why}")
        if state.rank not in (None, here := this_rank()):
            raise ValueError(
                f"this state is that of rank {state.rank}, and this is rank {here}. It holds the place of a stream or "
                "of a sampler of your own, which differs from rank to rank. Save a state on each rank, and load it "
                "there."
            )
        if why := why_not_generators(loader, state):
            raise ValueError(f"this state cannot be loaded: {why}")
        state = stream_states.fitted(loader, state)
        if state.batches and samplers.is_guessed(state):
            warn_once(
                f"the sampler {samplers.name} has no state_dict(), so a resumed loader draws from its beginning and "
                "skips what was delivered. That is right only if it gives the same order again. Give it a state_dict() "
                "and a load_state_dict(), or use one of torch's samplers."
            )
        self.loaded, self.next_number = state, state.epoch
        self.loads += 1
        self.saving.asked = True
        if state.sampler_epoch is not None:
            set_epoch_of_samplers(state.sampler_epoch, loader.sampler, loader.batch_sampler)
        if state.dataset_epoch is not None:
            set_epoch(loader.dataset, state.dataset_epoch)

    def starting(self, warns: bool = True) -> State | None:
        """The loaded state from which the next epoch starts; None if it starts at its beginning.

        Args:
            warns: Whether to warn of another length.  Of two calls for one epoch, only the first does.
        """
        state = self.loaded
        if state is None:
            return None
        samplers = self._samplers
        now = samplers.epoch
        if warns and not state.begun:  # keep the user's set_epoch(): restore_sampling() may load an older one
            self.loaded = replace(state, sampler_epoch=now)
        elif state.begun and now != state.sampler_epoch:
            self._drop(f"set_epoch({now}) was called, and the state is of epoch {state.sampler_epoch}")
        elif warns and state.batches and (why := why_past_end(samplers, state) or why_doubtful(samplers, state)):
            # not when it is loaded, because set_epoch() may decide how many samples there are
            warnings.warn(why, RuntimeWarning, stacklevel=caller()[1])
        return self.loaded

    def another(self) -> Another | None:
        """What makes a second iterator of the sampler in the next epoch, if a state was loaded into the sampler."""
        state, current, epoch = self.loaded, self.current, self._epoch_set
        if state is None:  # whether the sampler holds an end-of-epoch state, and iter() was not called since
            may_be_at_end = current is not None and current.start.used_up
        else:
            may_be_at_end = state.sampler_state is not None and not (state.used_up or state.batches)
            epoch = state.sampler_epoch
        return Another(sampler_of(self.loader), epoch) if may_be_at_end else None

    def _drop(self, why: str) -> None:
        """Start the next epoch at its beginning, although the loaded state is in the middle of one."""
        state, self.loaded = self.loaded, None
        assert state is not None
        warnings.warn(
            f"{why}, so the next epoch starts at its beginning. The loaded place, after {state.samples} samples of "
            f"epoch {state.epoch}, is dropped. To resume there, begin the loop with the state's epoch.",
            RuntimeWarning,
            stacklevel=caller()[1],
        )

    # ------------------------------------------------------------------------------------------------- an epoch

    def begin(self, epoch: Epoch) -> None:
        """Record an epoch that has begun."""
        self._without_batch = self.without_batch()
        self._current_set, self._epoch_set = self._epoch_set, None
        self.current, self.loaded = epoch, None
        self.next_number = epoch.number + 1

    def without_batch(self) -> list[int]:
        """The workers whose streams gave no batch in a whole epoch: the latest epoch in which there were any."""
        found = [] if self.current is None else stream_states.without_batch(self.current)
        return found or self._without_batch

    def _with_current_epochs(self, state: State) -> State:
        """The state of an epoch of which the user has no batch, with the current epochs of sampler and dataset."""
        now = self._samplers.epoch
        if now != state.sampler_epoch:  # the sampler's state belongs to the former epoch
            streams = stream_states.at_start(state.streams)
            state = replace(state, begun=False, sampler_state=None, streams=streams, latest=-1)
        return replace(
            state, epoch=self.next_number, sampler_epoch=now, dataset_epoch=dataset_epoch(self.loader.dataset)
        )

    def set_epoch(self, epoch: Any) -> None:
        """Make this the number of the next epoch, and call set_epoch() of the samplers and the dataset."""
        number, loader = number_of(epoch), self.loader
        state = self.loaded
        if state is not None and not state.begun:
            self.loaded = replace(state, epoch=number)
        elif state is not None and state.batches and state.epoch != number:
            self._drop(f"set_epoch({number}) was called")
        if self._current_set is not None:
            warn_of_unreached(loader, self._current_set, number)
        self.next_number = self._epoch_set = number
        set_epoch_of_samplers(number, loader.sampler, loader.batch_sampler)
        set_epoch(loader.dataset, number)
        state = self.loaded
        if state is not None and state.begun and not state.batches:  # nothing was dropped, and its draws stay
            self.loaded = self._with_current_epochs(state)
        elif state is not None:
            self.loaded = replace(state, sampler_epoch=self._samplers.epoch)


_places: ByIdentity[Place] = ByIdentity()


def place_of(loader: Any) -> Place:
    """The place of a loader."""
    place = _places.get(loader)
    if place is None:
        place = _places[loader] = Place(loader)
    return place
