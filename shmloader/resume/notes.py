"""A sampler's own states in an epoch: at its start, and after each index if somebody saves states.

NOTE [ Notes ]

A sampler's state_dict() may be slow or large, or it may fail.  Most loops never save a state, and must not notice.

    1. The sampler is asked for its state once, when an epoch starts.  It is asked after each draw as well, but only
       after somebody has asked this loader for a state, or has given it one (Saving).
    2. The first state of a loader may be saved in mid-epoch.  The sampler was not asked at that place, and it has drawn
       further since.  So that state has the sampler's state at the epoch's start, the states of all generators there,
       and the number of draws.  A loader that resumes from it loads them, and draws as often again (rest.py).
    3. If state_dict() raises NotImplementedError, the sampler counts as one without a state.  If it does so only in
       mid-epoch, the place is found by draws from the epoch's start, as in 2.
    4. Any other exception is kept.  The state_dict() of the loader raises it if it needs that state, and no draw does.
"""

from __future__ import annotations

import collections
import copy
import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from shmloader.batch.exceptions import caught, raise_again
from shmloader.resume.all_generators import AllGenerators
from shmloader.resume.seek import NO_STATE, Samplers, is_last
from shmloader.resume.state import State

if TYPE_CHECKING:
    from shmloader.resume.epoch import Epoch


class Saving:
    """Whether somebody saves states of a loader.

    Attributes:
        asked: Whether the loader was asked for a state, or got one.
    """

    asked = False


class Answer:
    """What a sampler's state_dict() has returned, pickled at once, because the sampler may change it later.

    An exception is kept as text, because its traceback would keep the frames of all callers alive, and so the iterator.

    Args:
        keeper: The sampler.

    Attributes:
        is_none: Whether the sampler has no state here.
        is_there: Whether there is a state.
    """

    def __init__(self, keeper: Any) -> None:
        self.is_none, self.is_there = False, True
        try:
            self._pickled = _pickled_state(keeper)
        except Exception as error:
            self.is_none, self.is_there = isinstance(error, NotImplementedError), False
            self._pickled = pickle.dumps(caught(f"in state_dict() of the sampler {type(keeper).__name__}"))

    def state(self) -> Any:
        """The state, a new copy each time.

        Raises:
            Exception: What state_dict() raised.
        """
        found = pickle.loads(self._pickled)
        if not self.is_there:
            raise_again(found)
        return found


def _pickled_state(keeper: Any) -> bytes:
    state = keeper.state_dict()
    try:
        return pickle.dumps(state)
    except Exception as error:
        kind = type(keeper).__name__
        raise RuntimeError(
            f"the state of the sampler {kind} cannot be pickled ({type(error).__name__}: {error}). The loader pickles "
            f"it at once, because {kind} may change it later. Have its state_dict() return only types that JSON has."
        ) from None


class Notes:
    """The state of a sampler before its first index, and after each index under way.

    Args:
        samplers: Give the indices, in batches or one by one.  One of the chain has the state_dict().
        generators: The states of all generators before the first index.
        start: The place from which the epoch continues; None: its beginning.
        saving: Whether somebody saves states.
    """

    def __init__(self, samplers: Samplers, generators: AllGenerators, start: State | None, saving: Saving) -> None:
        self._sampler, self._keeper = samplers.outer, samplers.keeper
        self._generators = generators
        # before its first index, a sampler may return another state than the one that it was given
        self._start = None if start is None or start.sampler_state is None else start
        # If the sampler is asked for its states, it is asked for one index more after its last one, because its state
        # may not say that it has ended; None: it has no length, and is not.
        self._length = samplers.left(start)
        self._saving = saving
        self.epoch: Epoch | None = None
        self._at_start = Answer(self._keeper) if self._start is None else None
        self._is_within = start is not None and start.batches > 0
        self._states: dict[int, tuple[Answer, bool]] = {}
        self._has_drawn = False

    def after(self, batches: int) -> dict[str, Any]:
        """The fields of State that depend on the sampler's state, after this number of batches.

        Raises:
            Exception: What its state_dict() has raised there.
        """
        noted, used_up = self._states.get(batches, (None, False))
        if noted is not None and not noted.is_none:
            return {"sampler_state": noted.state(), "used_up": used_up, "global_generator": None}
        start, first = self._start, self._at_start
        if start is not None:
            if start.draws_again or (not batches and (self._is_within or not self._has_drawn)):
                return {"sampler_state": copy.deepcopy(start.sampler_state), "used_up": start.used_up and not batches}
            if self._is_within:  # the draws since the epoch's start are not known
                assert noted is not None
                noted.state()  # raises
            state = copy.deepcopy(start.sampler_state)
        elif first is None or first.is_none or (self._is_within and batches):
            return {**NO_STATE, "used_up": False}
        else:
            state = first.state()
        draws = self._has_drawn and not self._is_within
        return {
            "sampler_state": state,
            "used_up": False,
            "global_generator": self._generators.text() if draws else None,
        }

    def note(self, number: int, drawn: collections.deque[Any], indices: Iterator[Any]) -> bool:
        """Record the sampler's state, if somebody saves states.

        Args:
            number: The number of the index that was drawn, from 1.
            drawn: That index; empty if the sampler has no more.  The one after it may be drawn as well.
            indices: The iterator that gives it.

        Returns:
            Whether the sampler has ended.
        """
        if not self._has_drawn:
            self._has_drawn = True
            self._generators.look()  # most samplers draw their order here, and the user may seed again later
        if not self._saving.asked:
            return not drawn
        if not drawn:
            if number > 1:  # an empty sampler keeps the state of its beginning
                self._states[number - 1] = Answer(self._keeper), True
            return True
        ended = False
        if len(drawn) == 1:
            self._states[number] = Answer(self._keeper), is_last(self._sampler, drawn[0])
            if number == self._length:
                drawn.extend(map(next, (indices,)))
                ended = len(drawn) == 1
                if ended:
                    self._states[number] = Answer(self._keeper), True
        if self.epoch is not None:
            for old in [count for count in self._states if count < self.epoch.delivered.batches]:
                del self._states[old]
        return ended
