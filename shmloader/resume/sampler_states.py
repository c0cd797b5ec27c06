"""A sampler's own states in an epoch: at its start, and after each index if somebody saves states.

NOTE [ Sampler states ]

A sampler's state_dict() may be slow or large, or it may fail.  Most loops never save a state, and must not notice.

    1. The sampler is asked for its state once, when an epoch starts.  It is asked after each draw as well, but only
       after somebody has asked this loader for a state, or has given it one (Saving).
    2. The first state of a loader may be saved in mid-epoch.  The sampler was not asked at that place, and it has drawn
       further since.  So that state has the sampler's state at the epoch's start, the states of all generators there,
       and the number of draws.  A loader that resumes from it (rest_of_epoch.py) loads them, and draws as often again.
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
from shmloader.resume.sampler_generators import AllGenerators
from shmloader.resume.samplers import NO_STATE, Samplers, is_last
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
        used_up: Whether it has given all of this epoch's indices.

    Attributes:
        is_none: Whether the sampler has no state here.
    """

    def __init__(self, keeper: Any, used_up: bool = False) -> None:
        self.is_none, self._has_raised = False, False
        self._used_up = used_up
        try:
            self._pickled = _pickled_state(keeper)
        except Exception as error:
            self.is_none, self._has_raised = isinstance(error, NotImplementedError), True
            self._pickled = pickle.dumps(caught(f"in state_dict() of the sampler {type(keeper).__name__}"))

    def fields(self) -> dict[str, Any]:
        """The fields of State for this state.

        Raises:
            Exception: What state_dict() raised.
        """
        found = pickle.loads(self._pickled)
        if self._has_raised:
            raise_again(found)
        return {"sampler_state": found, "used_up": self._used_up, "global_generator": None}


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


class _Loaded:
    """The state that a sampler was given.  Before its first index, it may return another one."""

    is_none = False

    def __init__(self, start: State) -> None:
        self._start = start

    def fields(self) -> dict[str, Any]:
        start = self._start
        return {
            "sampler_state": copy.deepcopy(start.sampler_state),
            "used_up": start.used_up,
            "global_generator": start.global_generator,
        }


class SamplerStates:
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
        self._length = samplers.left(start)
        self._saving = saving
        self.epoch: Epoch | None = None
        self._loaded = None if start is None or start.sampler_state is None else start
        self._at_start = Answer(self._keeper) if self._loaded is None else _Loaded(self._loaded)
        self._begins_within = start is not None and start.batches > 0
        self._after: dict[int, Answer] = {}
        self._has_drawn = False

    def after(self, batches: int) -> dict[str, Any]:
        """The fields of State that depend on the sampler's state, after this number of batches.

        Raises:
            Exception: What its state_dict() has raised there.
        """
        loaded, there = self._loaded, self._after.get(batches)
        if there is not None and not there.is_none:
            return there.fields()
        if self._at_start.is_none:
            return NO_STATE
        if loaded is not None and loaded.draws_again:  # the loaded state leads there, too, by more draws
            return self._at_start.fields()
        if not batches and (self._begins_within or not self._has_drawn):  # it is the place at which we started
            return self._at_start.fields()
        if not self._begins_within:
            return {**self._at_start.fields(), "used_up": False, "global_generator": self._generators.text()}
        # no draws lead there, because those before our start are not known
        if loaded is None:
            return NO_STATE
        assert there is not None  # whoever loads a state has the sampler asked after each draw
        return there.fields()  # raises its NotImplementedError

    def record(self, number: int, drawn: collections.deque[Any], indices: Iterator[Any]) -> bool:
        """Record the sampler's state, if somebody saves states.

        Args:
            number: The number of the index that was drawn, from 1.
            drawn: That index; empty if the sampler has no more.  The one after it may be drawn as well.
            indices: The iterator that gives it.

        Returns:
            Whether the sampler has ended.
        """
        self._has_drawn = True
        if not self._saving.asked:
            return not drawn
        if not drawn:
            if number > 1:  # an empty sampler keeps the state of its beginning
                self._after[number - 1] = Answer(self._keeper, used_up=True)
            return True
        ended = False
        if len(drawn) == 1:
            self._after[number] = Answer(self._keeper, used_up=is_last(self._sampler, drawn[0]))
            if number == self._length:
                # After the last index we draw once more, so that its state says "ended".  If the length is unknown, we
                # do not.
                drawn.extend(map(next, (indices,)))
                ended = len(drawn) == 1
                if ended:
                    self._after[number] = Answer(self._keeper, used_up=True)
        if self.epoch is not None:
            for old in [count for count in self._after if count < self.epoch.delivered.batches]:
                del self._after[old]
        return ended
