"""Replaces samples whose `__getitem__` raises: `on_bad_sample="skip"`.
It chooses the sample that comes in place of a bad one, and limits how many others are tried.

NOTE [ Bad samples ]

A sample whose `__getitem__` raises is replaced by another one of the dataset.  Which one depends only on the loader's
seed, the epoch and the index: each index has a sequence of replacements, and the first that does not raise is taken.
So batches are the same for any number of workers, with chunks and without, after a worker was replaced, and after a
resume.

    1. A worker reads the epoch's seed from the ring's header when it meets a task of another epoch.  So the option adds
       nothing to a task.
    2. Only exceptions of the dataset count: none of the collate function or the ring, and no KeyboardInterrupt or
       SystemExit, which are not Exceptions.
    3. An exception is kept as text.  The object would keep its frames, and with them the row that was being written.
    4. The report of replaced samples lies after the description of the batch (WorkerSide.report), and is counted when
       the batch is taken.  A batch without bad samples has report size 0.
    5. If all samples raise, the search must stop.  So at most TRIES others are tried.
    6. Only samples that the sampler may give are used as replacements (trainer/sample_pool.py).  Workers get the
       indices of these samples when they start, and workers that persist keep them.
"""

from __future__ import annotations

import copy
import operator
import pickle
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from shmloader.resume.generators import mix
from shmloader.worker.random_states import makes_at_once

TRIES = 16  # replacements: if every second sample is bad, one bad one in 65,536 finds none
TOLD = 10  # bad samples of a batch that are reported with their errors
_LONGEST = 4000  # characters of a traceback: its end has the exception
_DRAWS = 64 * TRIES  # how many numbers a sequence draws at most, because in a small dataset many are equal
_OF_INDICES = -1  # no sample has this place, so no sequence begins with the seed of a sample

Bad = tuple[Any, Any, str]  # the index that raised, the one that came in its place, the traceback


class Skips:
    """Gets the samples of a map-style dataset, and replaces those that raise.

    Args:
        dataset: The dataset.
        pool: The indices of the samples that may replace bad ones.
    """

    def __init__(self, dataset: Any, pool: Sequence[int]) -> None:
        self._dataset = dataset
        self._pool = pool
        self._seed = 0
        self._count = 0
        self._first: list[Bad] = []

    def begin(self, epoch_seed: int) -> None:
        """Begin another epoch."""
        self._seed = mix(epoch_seed, _OF_INDICES)

    def report(self) -> bytes:
        """The replacements since the last call; empty if there were none."""
        if not self._count:
            return b""
        pickled = pickle.dumps((self._count, self._first))
        self._count, self._first = 0, []
        return pickled

    def sample(self, index: Any) -> Any:
        """A sample of the dataset, or its replacement."""
        return self._or_another(lambda other: self._dataset[other], index)

    def into(self, into: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """sample() for a dataset's __getitem_into__.  The replacement overwrites a row that was half written."""
        return lambda index, row: self._or_another(lambda other: into(other, row), index)

    def samples(self, indices: Any) -> Any:
        """The samples of a batch.  If the dataset makes them all in one call and raises, they are made one by one."""
        at_once = makes_at_once(self._dataset, indices)
        if not at_once:
            return [self.sample(index) for index in indices]
        if not hasattr(indices, "__len__"):
            indices = list(indices)
        try:
            # a copy, because a dataset that removes indices from its list would leave none to be made one by one
            return at_once(copy.copy(indices))
        except Exception:  # if none of them raises now, none is bad
            return [self.sample(index) for index in indices]

    def _or_another(self, get: Callable[[Any], Any], index: Any) -> Any:
        try:
            return get(index)
        except Exception as error:
            text = _text(error)
            try:
                number = operator.index(index)
            except TypeError:
                raise TypeError(
                    "on_bad_sample='skip' replaces a sample by its number, and this index is a "
                    f"{type(index).__name__}: {index!r:.200}. Have the sampler give ints, or leave the option out."
                ) from error
        tried, last = [number], ""
        for other in self._others(number):
            try:
                sample = get(other)
            except Exception as error:
                tried.append(other)
                last = _text(error)
                continue
            self._count += 1
            if len(self._first) < TOLD:
                self._first.append((number, other, text))
            return sample
        raise RuntimeError(
            f"on_bad_sample='skip' found no sample to replace sample {number}. It raised, and so did the "
            f"{len(tried) - 1} others that were tried ({str(tried[1:])[1:-1]}). Its error was:\n\n{text}"
            + (f"\n\nThe last of the others' errors was:\n\n{last}" if last else "")
        )

    def _others(self, index: int) -> Iterator[int]:
        """The sequence of replacements for an index, each number once."""
        seed, count, met = mix(self._seed, index), len(self._pool), {index}
        for k in range(_DRAWS if count else 0):
            other = int(self._pool[mix(seed, k) % count])
            if other not in met:
                met.add(other)
                yield other
            if len(met) > TRIES:
                return


def _text(error: BaseException) -> str:
    text = "".join(traceback.format_exception(error))
    return text if len(text) <= _LONGEST else f"[...]{text[-_LONGEST:]}"
