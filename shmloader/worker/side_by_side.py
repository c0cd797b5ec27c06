"""Makes samples of a batch, and of the next ones, at the same time (`worker_threads`, `async def __getitem__`).
It raises if a sample draws from `random`, `numpy.random` or torch's generator meanwhile.

NOTE [ Side by side ]

A dataset with `async def __getitem__` (and look_ahead=k), or one that is `thread_safe` (and worker_threads=n), has
several samples under way: those of the current batch, and those of later batches whose tasks the worker has already
read (NOTE [ Look ahead ]).  Coroutines run on one event loop in the worker's main thread.  Samples of a `thread_safe`
dataset are made in n threads.

    1. Rows keep their order, and the first exception in this order is the batch's.  The batch's other samples are
       dropped.  If a sample that was begun early raises, its exception counts when its batch is made, and not before.
    2. The event loop runs while the worker waits for a sample.  It stands still while a batch is collated and
       published, and while the worker sleeps.  But a worker sleeps only if no batch is open for it, and then no sample
       is under way.
    3. `random`, `numpy.random` and torch's generator exist once in a process.  If samples drew from them here, each
       draw would depend on which sample is quicker.  So a worker makes its first sample alone, and compares the states.
       If the sample has drawn, this batch and all further ones raise.  NumPy's and torch's states are also compared for
       each batch.  Python's are not, because libraries draw from it, too: the delay of a retry, for example.
    4. A sample draws from `sample_generator()` instead (sample_generators.py). With `sample_seeds`, that generator has
       the seed of the sample, so the draws are the same in whatever thread the sample is made.
    5. Without workers, only the indices of the batch at hand are known.  Its coroutines run side by side, on an event
       loop of the loader: NOTE [ A loader's event loop ].  `worker_threads` has no effect.
    6. Threads run on while the worker's main thread does something else.  But a crew's worker has the random states and
       the get_worker_info() of one loader at a time: NOTE [ Crew ].  So before it turns to another loader, it waits for
       the samples that its threads have begun.  Those that have not begun are started when it has come back.
"""

from __future__ import annotations

import inspect
import random
from typing import Any

import numpy
import torch
from torch.utils.data import ConcatDataset, Subset

from shmloader.worker.look_ahead import indices_of, is_torchs
from shmloader.worker.random_states import mix
from shmloader.worker.replace_bad_samples import Skips
from shmloader.worker.runners import Coroutines, Runner, Threads
from shmloader.worker.sample_generators import UNSEEDED, Draws

__all__ = ["AtHand", "SideBySide", "is_asynchronous", "runner_for"]

_Batch = tuple[int, list[Any], int, int]  # the arguments of SideBySide.begin()


def is_asynchronous(dataset: Any) -> bool:
    """Whether a dataset, or one inside torch's Subset and ConcatDataset, has `async def __getitem__`."""
    if is_torchs(dataset, Subset):
        return is_asynchronous(dataset.dataset)
    if is_torchs(dataset, ConcatDataset):
        return any(map(is_asynchronous, dataset.datasets))
    return inspect.iscoroutinefunction(getattr(type(dataset), "__getitem__", None))


def runner_for(dataset: Any, look_ahead: int | None, threads: int | None) -> Runner | None:
    """The runner that makes a dataset's samples side by side in a worker; None: they are made one by one."""
    if threads is not None:
        return Threads(threads)
    return Coroutines(dataset) if look_ahead and is_asynchronous(dataset) else None


class SideBySide:
    """Makes samples of a map-style dataset side by side.

    Args:
        dataset: The dataset.
        runner: Runs its calls.
        stride: How far apart in the epoch's order the samples of a batch are; None: samples are not seeded.
        skips: Replaces bad samples; None: they raise.
    """

    def __init__(self, dataset: Any, runner: Runner, stride: int | None, skips: Skips | None) -> None:
        self._dataset = dataset
        self._runner = runner
        self._stride = stride
        self._skips = skips
        self._begun: dict[int, tuple[_Batch, list[Any]]] = {}  # by sequence
        self._is_known = False  # whether the first sample has drawn nothing
        # Later batches that the next one begins: from before that was known, or from before put_aside(). In the second
        # case they include all of _begun.
        self._waiting: list[_Batch] = []
        self._drew: list[str] = []

    def begin(self, sequence: int, indices: list[Any], seed: int, row: int) -> None:
        """Begin the samples of a batch that is made next, or soon.

        Args:
            sequence: The batch's.
            indices: The indices of its samples.
            seed, row: The batch's seed, and the place of its first sample in it.
        """
        if self._is_known and not self._waiting:
            self._begin(sequence, indices, seed, row)
        else:
            self._waiting.append((sequence, indices, seed, row))

    def put_aside(self) -> None:
        """Have no sample under way until the next batch is made: wait for those that threads have begun."""
        if isinstance(self._runner, Threads):  # coroutines run only while a batch waits for them
            self._runner.stand_still([running for _, running in self._begun.values()])
            self._waiting = self._waiting or [batch for batch, _ in self._begun.values()]

    def samples(self, sequence: int, indices: list[Any], seed: int, row: int) -> list[Any]:
        """The samples of a batch, in their order.  The arguments are begin()'s.

        Raises:
            Exception: What the first bad sample raised.
            RuntimeError: A sample has drawn random numbers that are not its own.
        """
        for earlier in [each for each in self._begun if each < sequence]:
            _drop(self._runner, self._begun.pop(earlier)[1])
        begun, made = self._begun.pop(sequence, None), []
        running = [] if begun is None else begun[1]
        self._waiting = [each for each in self._waiting if each[0] > sequence]
        before = _States()
        try:
            if not self._is_known and indices:
                running = self._start(indices[:1], seed, row)
                made.append(self._made(indices[0], *running[0]))
                self._check(before.changed(with_pythons=True))
                self._is_known = True
            if len(running) < len(indices):
                running += self._start(indices[len(running) :], seed, row + len(running))
            if self._is_known and self._waiting:
                waiting, self._waiting = self._waiting, []
                for each in waiting:
                    self._begin(*each)
            for at in range(len(made), len(indices)):
                made.append(self._made(indices[at], *running[at]))
        except BaseException:
            _drop(self._runner, running[len(made) :])
            raise
        self._check(before.changed())
        return made

    def _begin(self, sequence: int, indices: list[Any], seed: int, row: int) -> None:
        """Start those samples of a later batch that were not started."""
        _, running = self._begun.setdefault(sequence, ((sequence, indices, seed, row), []))
        running += self._start(indices[len(running) :], seed, row + len(running))

    def _start(self, indices: list[Any], seed: int, row: int) -> list[tuple[Any, Draws]]:
        running: list[tuple[Any, Draws]] = []
        try:
            for at, index in enumerate(indices, row):
                draws = UNSEEDED if self._stride is None else Draws(mix(seed, at * self._stride))
                running.append((self._runner.start(self._get, index, draws), draws))
        except BaseException:
            _drop(self._runner, running)
            raise
        return running

    def _get(self, index: Any) -> Any:
        return self._dataset[index]

    def _made(self, index: Any, running: Any, draws: Draws) -> Any:
        if self._skips is None:
            return self._runner.result(running)
        first = iter([running])  # replacements come after it, one by one

        def get(another: Any) -> Any:
            under_way = next(first, None)
            if under_way is None:
                under_way = self._runner.start(self._get, another, draws)
            return self._runner.result(under_way)

        return self._skips.sample(index, get)

    def _check(self, drew: list[str]) -> None:
        self._drew = self._drew or drew
        if self._drew:
            raise RuntimeError(
                f"a sample of {type(self._dataset).__name__} drew from {' and '.join(self._drew)} while samples are "
                "made side by side. A process has only one such generator, so their speed would decide which sample "
                "gets which number. Draw from shmloader.sample_generator() and give sample_seeds=True, or leave out "
                "worker_threads and async."
            )


def _drop(runner: Runner, running: list[tuple[Any, Draws]]) -> None:
    for each, _ in running:
        runner.cancel(each)


class AtHand:
    """Makes the samples of the batch at hand from its task, for fetch_from().

    Args:
        side: Makes samples side by side.
        auto_collation: Whether a task is the indices of a batch.
        where: An object with the sequence, the seed and the row of the batch at hand.
    """

    def __init__(self, side: SideBySide, auto_collation: bool, where: Any) -> None:
        self._side = side
        self._auto_collation = auto_collation
        self._where = where

    def __call__(self, task: Any) -> list[Any]:
        indices = indices_of(task, self._auto_collation)
        if not indices and self._auto_collation:
            indices = list(task)  # one that cannot be read raises here
        return self._side.samples(self._where.sequence, indices, self._where.seed, self._where.row)


class _States:
    """The states of the three generators of this process, as they are now."""

    def __init__(self) -> None:
        self._random = random.getstate()
        self._numpy: Any = numpy.random.get_state()
        self._torch = torch.get_rng_state()

    def changed(self, with_pythons: bool = False) -> list[str]:
        """The generators that have drawn since."""
        found = ["random"] if with_pythons and random.getstate() != self._random else []
        now: Any = numpy.random.get_state()
        if now[2:] != self._numpy[2:] or not numpy.array_equal(now[1], self._numpy[1]):
            found.append("numpy.random")
        return found + ["torch's generator"] * (not torch.equal(torch.get_rng_state(), self._torch))
