"""Asks a sampler for another iterator, if the state that was loaded into it was that of its end.

NOTE [ Used up ]

A sampler with a state_dict() may keep in it that it has given all of an epoch.  torchdata's samplers do, and lhotse's.
After such a state is loaded, the sampler's first iterator gives nothing, and the next one gives a whole epoch.  If the
state was saved between two epochs, or before the first batch of one, the user needs that second iterator: the first
epoch after the load is a whole one.  If it was saved after the last batch, the epoch under way is over
(State.used_up), and its rest is empty without a question to the sampler.  So the question comes in the epoch after it.

Other samplers start over at their end.  Their state is that of the next epoch, and their first iterator gives it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from shmloader.protocols.attributes import length_of
from shmloader.resume.sampler_epochs import set_epoch_of_samplers
from shmloader.system.user_line import caller


class Another:
    """Makes another iterator of a sampler whose first one gave nothing.

    Args:
        sampler: The sampler.
        epoch: The number that set_epoch() gave it, which the loaded state may have replaced; None: there is none.
    """

    def __init__(self, sampler: Any, epoch: int | None) -> None:
        self._sampler = sampler
        self._epoch = epoch
        self.iterator: Iterator[Any] | None = None

    def made(self) -> Iterator[Any]:
        """Another iterator of the sampler; an empty one if the sampler's length is 0."""
        if length_of(self._sampler) == 0:
            return iter(())
        if self._epoch is not None:
            set_epoch_of_samplers(self._epoch, self._sampler)
        self.iterator = iter(self._sampler)
        return self.iterator

    def warn_if_empty(self, drawn: Any) -> None:
        """Warn if nothing was drawn from that iterator either."""
        if drawn or self.iterator is None:
            return
        length = length_of(self._sampler)
        given = "no length" if length is None else f"length {length}"
        warnings.warn(
            f"{type(self._sampler).__name__}, of {given}, gave nothing after its state was loaded, in two attempts. So "
            "this epoch is empty. Let its iter() begin an epoch again after a load_state_dict() of its end's state.",
            RuntimeWarning,
            stacklevel=caller()[1],
        )
