"""A worker's copy of the dataset, and the number that it has from set_epoch(): which tasks need another number.

NOTE [ Numbers of copies ]

set_epoch() may do anything: choose samples, seed, shuffle or count in place, take long.  The trainer's call reaches the
trainer's dataset alone.  So the number decides what is called on a copy, and it travels with the copy.

    1. A copy has the number that the trainer's dataset had when it was forked or pickled (Numbers in
       resume/dataset_epochs.py).  It also has everything else that the call did, and what the user set after it.  So it
       is not called again.
    2. Each task has the number that the dataset had when its index was drawn (EpochCounts.dataset_has).  A sampler may
       call the dataset's set_epoch() there, once or many times, and without workers its samples follow at once.
    3. A worker calls set_epoch() if a task's number differs from its copy's: so persistent workers once for each new
       number, before the first sample that has it, and a worker that replaces a dead one only if the trainer's number
       has changed since the task was opened.  If nobody called it, or the datasets inside the copy were given different
       numbers, tasks have none, and nothing is called.
    4. A state that is loaded into a stream may contain another number.  So the copy's number is unknown then.  Before
       the state of a resumed epoch is loaded, set_epoch() is called, as in the trainer: some streams go back to their
       beginning in it.  Before the next epoch it is called again, also with the same number.
    5. During the call the three generators are seeded, by the epoch's seed and the number.  So copies that shuffle or
       draw in it agree, as they would if the trainer had called it before they were made.  Afterwards the generators
       are in the states that they had, because workers must not draw alike.
    6. A stream has one number from its iter() to its end, because its state would not say at which place the number has
       changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shmloader.protocols.user_objects import hearers
from shmloader.resume.generators import mix
from shmloader.worker.random_states import seeded


class NumberedCopy:
    """A worker's copy of the dataset.

    Args:
        dataset: The copy.
        numbers: Gives the number of each dataset with a set_epoch() inside it, when it came to the worker.

    Attributes:
        number: What all of them have; None: they have different ones, or it is not known.
    """

    def __init__(self, dataset: Any, numbers: Callable[[], list[int | None]]) -> None:
        self._dataset = dataset
        self._numbers = dict(enumerate(numbers()))
        found = set(self._numbers.values())
        self.number = found.pop() if len(found) == 1 else None

    def forget(self) -> None:
        """Its number is not known any more, because a state is loaded into it."""
        self._numbers.clear()
        self.number = None

    def set_epoch(self, number: int, seed: int) -> None:
        """Call set_epoch() of those that have another number.

        Args:
            number: The number.
            seed: The epoch's, which all workers have.
        """
        self.number = None  # if it raises, the next epoch tries again
        if parts := hearers(self._dataset):
            with seeded(mix(seed, number)):
                for k, part in enumerate(parts):
                    if self._numbers.pop(k, None) != number:
                        part.set_epoch(number)
                    self._numbers[k] = number
        self.number = number
