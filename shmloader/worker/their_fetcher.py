"""Makes batches with a fetcher that other code has put in place of torch's: NOTE [ Replaced ], (a).

NOTE [ Their fetcher ]

Such a fetcher decides itself which samples a batch has, so a batch says nothing about how many samples it took from a
stream.  Therefore a stream without a state is resumed by batches: the fetcher makes the delivered batches again, and
they are dropped.  A batch counts as the samples that torch's fetcher would have taken for it, and one that raised as an
error at its place.  A stream with a state continues from its state.  What the fetcher itself has kept of its samples is
lost then, because nobody else knows of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import IterableDataset

from shmloader.private import replaced
from shmloader.protocols.user_objects import attribute, load_state
from shmloader.worker.fetch import Left, pass_errors_over, restore_stream, state_at_first, state_of_parts, with_states


def theirs(
    dataset: Any,
    auto_collation: bool,
    collate_fn: Callable[[Any], Any],
    drop_last: bool,
    option: str | None,
    left: Left | None,
    fetched: Callable[[], None],
) -> Any:
    """The function that makes batches from tasks, if other code has replaced torch's fetcher in this process.

    Args:
        dataset, auto_collation, collate_fn, drop_last, left, fetched: As in fetch_from().
        option: An option that needs torch's fetcher; None: there is none.

    Returns:
        The function; None if torch's fetcher was not replaced.

    Raises:
        ValueError: It was replaced, and there is such an option.  The trainer raises that, too, if it was replaced
            there.
    """
    streams = isinstance(dataset, IterableDataset)
    by = replaced.fetcher(streams)
    if by is None:
        return None
    if option is not None:
        raise ValueError(replaced.refusal(option, by))
    arguments = dataset, auto_collation, collate_fn, drop_last
    if not streams:
        fetcher = replaced.make_fetcher(False, *arguments)

        def fetch(task: Any) -> Any:
            batch = fetcher.fetch(task)
            fetched()  # it was collated, too, so all its time counts as the samples'
            return batch

        return fetch
    restore_stream(dataset, left)
    has_ended = left is not None and left.ended  # iter() is not called on such a stream, as in fetch_from()
    return TheirStream(dataset, None if has_ended else replaced.make_fetcher(True, *arguments), left, fetched)


class TheirStream:
    """Batches of an iterable dataset, by a fetcher of other code: NOTE [ Their fetcher ].

    Args:
        dataset: The stream, whose own state is restored.
        fetcher: The fetcher; None if the stream has ended.
        left: The place from which the stream continues; None: its beginning.
        fetched: Called when a batch is there.

    Attributes:
        ended: Whether the stream has ended in this epoch.
    """

    def __init__(
        self, dataset: Any, fetcher: Any, left: Left | None, fetched: Callable[[], None] = lambda: None
    ) -> None:
        self._dataset = dataset
        self._fetcher = fetcher
        self._fetched = fetched
        self.ended = left is not None and left.ended
        self._given = 0 if left is None else left.samples
        self._errors = [] if left is None else list(left.errors)
        self._delivered: Left | None = None  # what is made again at the first task
        self._rest: Iterator[Any] | None = None  # the batches behind that
        self._failed: Exception | None = None
        if left is None or left.ended:
            return
        if left.state is None:
            self._delivered = left
        elif left.state["iterator"] is not None:
            load_state(fetcher.dataset_iter, left.state["iterator"])
            restore_stream(dataset, left)  # again, because iter() may have counted the new iterator in the dataset

    def state(self) -> bytes:
        """See state_of_stream()."""
        if self._delivered is not None and self._rest is None:
            return state_at_first(self._delivered)
        parts = with_states(self._dataset, attribute(self._fetcher, "dataset_iter"))
        # torch's fetcher notes the end with the last batch if that is not full, and a state that restarts has it then
        notes_end = any(part is not None for part in parts.values()) and attribute(self._fetcher, "ended") is True
        return state_of_parts(parts, self.ended or notes_end, self._given, self._errors)

    def __call__(self, task: Any) -> Any:
        if self.ended:
            raise StopIteration
        size = len(task) if isinstance(task, (list, tuple)) else 1
        if self._rest is None:
            self._rest = self._behind_delivered(task, size)
        try:
            batch = next(self._rest)
        except StopIteration:
            self.ended = True
            raise
        except Exception:
            self._errors.append(self._given)
            raise
        self._given += size
        self._fetched()
        return batch

    def _behind_delivered(self, task: Any, size: int) -> Iterator[Any]:
        """The batches behind the delivered ones, which are made once more and dropped.

        Args:
            task: What the fetcher gets for each batch.  All tasks of a stream are the same.
            size: How many samples a batch counts as.

        Raises:
            ValueError: They had another size.
            Exception: One of them raised, and did not before.  Each further call raises it, too.
        """
        if self._failed is not None:  # the place is not known any more
            raise self._failed.with_traceback(None)
        batches = map(self._fetch, itertools.repeat(task))
        if self._delivered is None:
            return batches
        try:
            if self._delivered.samples % size:
                raise ValueError(_other_batches(self._delivered.samples, size))
            rest: Iterator[Any] = pass_errors_over(self._dataset, batches, self._delivered, size)
        except Exception as error:
            self._failed = error
            raise
        return rest

    def _fetch(self, task: Any) -> Any:
        """A batch.  The fetcher may change its task, and replace its own fetch()."""
        return self._fetcher.fetch(list(task) if isinstance(task, list) else task)


def _other_batches(samples: int, size: int) -> str:
    return (
        f"the state is that of {samples} samples in whole batches, and batches of {size} do not end there. Other code "
        "has replaced torch's fetcher, so a stream without a state_dict() resumes by batches. Give the batch_size with "
        "which the state was made, or give the stream a state_dict()."
    )
