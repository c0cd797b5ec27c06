"""Samples that raise, replaced by others: `on_bad_sample="skip"`.

NOTE [ Bad samples ]

A sample whose `__getitem__` raises is replaced by another one of the dataset.  Which one follows from the loader's
seed, the epoch and the index alone: the index has a sequence of its own, and the first of it that does not raise comes
in its place.  So batches are the same for any number of workers, whoever makes them, in chunks or not, where a worker
was replaced, and where an epoch goes on.

    1. A worker finds the epoch's seed in the ring's header when it meets a task of another epoch.  No task is longer.
    2. Only what the dataset raises is replaced: nothing that is raised by the collate function or the ring, and no
       KeyboardInterrupt or SystemExit, which are no Exceptions.
    3. An exception is kept as text.  It would keep its frames, and with them the row that was being written.
    4. What was replaced is told behind the description of the batch (WorkerSide.report), and noted when the batch is
       taken.  A batch without bad samples has no report, and says so by a word that was there before.
    5. A dataset whose samples all raise must end.  So no more than TRIES others are tried.
    6. Only what the sampler may give comes instead (trainer/replacements.py).  Workers are given that when they start,
       and are ended when an epoch begins for which it is something else.
"""

from __future__ import annotations

import contextlib
import copy
import operator
import pickle
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy
import torch

from shmloader.worker.getitems import makes_at_once
from shmloader.worker.random_states import mix

TRIES = 16  # others, until it is given up: where every second sample is bad, once in 65,536 bad ones
TOLD = 10  # bad samples of a batch that are told with their errors
_LONGEST = 4000  # characters of a traceback: its end says what was raised
_DRAWS = 64 * TRIES  # numbers of a sequence that are looked at: of a small dataset many are the same
_OF_INDICES = -1  # no sample's place, so that no sequence begins with the seed of a sample

Bad = tuple[Any, Any, str]  # the index that raised, the one that came in its place, the traceback


class Skips:
    """Gets the samples of a map-style dataset, and others for those that raise.

    Args:
        dataset: Where samples are got.
        pool: The indices of those that may replace them.
    """

    def __init__(self, dataset: Any, pool: Sequence[int]) -> None:
        self._dataset = dataset
        self._pool = pool
        self._seed = 0
        self._count = 0
        self._first: list[Bad] = []

    def begin(self, epoch_seed: int) -> None:
        """Another epoch begins."""
        self._seed = mix(epoch_seed, _OF_INDICES)

    def report(self) -> bytes:
        """What was replaced since this was asked last; empty where nothing was."""
        if not self._count:
            return b""
        told = pickle.dumps((self._count, self._first))
        self._count, self._first = 0, []
        return told

    def sample(self, index: Any) -> Any:
        """The dataset's sample, or another one."""
        return self._or_another(self._get, index)

    def _get(self, index: Any) -> Any:
        return self._dataset[index]

    def into(self, into: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """The same for a dataset's __getitem_into__: whatever comes overwrites a row that was half written."""
        return lambda index, row: self._or_another(lambda other: into(other, row), index)

    def samples(self, indices: Any, one_each: bool = False) -> Any:
        """The samples of a batch.  If the dataset makes all at once and raises, they are made one by one.

        Args:
            one_each: Whether they must be as many as the indices: what collates them takes any number.

        Raises:
            RuntimeError: They are not as many.
        """
        at_once = makes_at_once(self._dataset, indices)
        if not at_once:
            return [self.sample(index) for index in indices]
        if not hasattr(indices, "__len__"):
            indices = list(indices)
        # a copy, for a dataset that takes indices off its list would leave none to be made one by one
        given = indices.copy() if type(indices) is list else copy.deepcopy(indices)
        try:
            samples = at_once(given)
        except Exception:  # if none of them raises now, all are at hand: none is bad, whatever it was
            return [self.sample(index) for index in indices]
        if one_each and hasattr(samples, "__len__") and len(samples) != len(indices):
            raise RuntimeError(
                f"__getitems__ of {type(self._dataset).__name__} gave {len(samples)} samples for {len(indices)} "
                "indices. With on_bad_sample='skip' a batch keeps its size. Have __getitems__ raise if a sample is "
                "bad. The worker then makes the samples one by one and replaces the bad one."
            )
        return samples

    def _or_another(self, get: Callable[[Any], Any], index: Any) -> Any:
        try:
            return get(index)
        except Exception as error:
            said = _text(error)
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
                sample = get(_like(index, other))
            except Exception as error:
                tried.append(other)
                last = _text(error)
                continue
            self._count += 1
            if len(self._first) < TOLD:
                self._first.append((number, other, said))
            return sample
        raise RuntimeError(
            f"on_bad_sample='skip' found no sample to replace sample {number}. It raised, and so did the "
            f"{len(tried) - 1} others that were tried ({str(tried[1:])[1:-1]}). Its error was:\n\n{said}"
            + (f"\n\nThe last of the others' errors was:\n\n{last}" if last else "")
        )

    def _others(self, index: int) -> Iterator[int]:
        """The sequence of an index, each number once."""
        seed, count, met = mix(self._seed, index), len(self._pool), {index}
        for k in range(_DRAWS if count else 0):
            other = int(self._pool[mix(seed, k) % count])
            if other not in met:
                met.add(other)
                yield other
            if len(met) > TRIES:
                return


def _like(index: Any, number: int) -> Any:
    """A number as the sampler would give it: a dataset may know by the type what it is asked for."""
    made: Any = number
    with contextlib.suppress(OverflowError, RuntimeError):  # no such number fits into that type
        if isinstance(index, numpy.integer):
            made = type(index)(number)
        elif isinstance(index, numpy.ndarray):
            made = numpy.full_like(index, number)
        elif isinstance(index, torch.Tensor):
            made = torch.full_like(index, number)
    return made if int(made) == number else number  # numpy 1 wraps


def _text(error: BaseException) -> str:
    said = "".join(traceback.format_exception(error))
    return said if len(said) <= _LONGEST else f"[...]{said[-_LONGEST:]}"
