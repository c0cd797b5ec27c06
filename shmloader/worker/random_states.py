"""The random generators that a worker may draw from: the three that torch seeds there.
It seeds them once, as torch does, or before each sample (`sample_seeds`), and saves and restores their states.

If each worker has its own batches, as in torch, it draws on from batch to batch, and the worker that replaces it gets
its states.  If work is stolen, it is not known in advance which worker makes a sample.  So each sample is seeded, from
(base_seed, epoch, place in the epoch's order).  It is then the same for any number of workers, with chunks and without,
and after a resume.  If ranks share the order, the place is that in the order of all ranks.

Worker.make in loop.py saves the states after each batch, and Worker._take_over restores them, both only with
on_worker_death="respawn" and without seeds for each sample.  A loader's state_dict() has none of them.

A generator that a dataset makes is not covered: it is not seeded, and it is lost with its worker.  The state of a
stream with a state_dict() is another matter: Worker._leave_state in loop.py saves it, restore_stream() and
pass_over() in fetch.py load it, and NOTE [ Cells ] in resume/stream_states.py says after which batch it is.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy.random  # here, because NumPy imports it at its first use, which takes 11 ms in each forked worker
import torch

from shmloader.protocols.user_objects import is_got_one_by_one
from shmloader.resume.generators import mix


def seed_worker(base_seed: int, worker: int) -> int:
    """Give a worker's generators torch's first seeds; returns the value of get_worker_info().seed.

    A worker is seeded once, when it starts.  New workers of another epoch get a new base seed, and persistent workers
    draw on.

    Args:
        base_seed: Of the loader's iterator (trainer/conductor.py).
        worker: Which worker this is.
    """
    seed = base_seed + worker
    random.seed(seed)
    torch.manual_seed(seed)
    # the result of torch's _generate_state(), so that worker 1 of seed 7 is not worker 0 of seed 8
    words = numpy.random.SeedSequence([worker, base_seed & 0xFFFFFFFF, base_seed >> 32, 0])
    numpy.random.seed(words.generate_state(4))
    return seed


def states() -> bytes:
    """The states of `random`, `numpy.random` and `torch` in this process: about 11 KiB, and 0.1 ms."""
    return pickle.dumps((random.getstate(), numpy.random.get_state(), torch.get_rng_state().numpy().tobytes()), 5)


def restore(left: bytes) -> None:
    """Set the generators to the states() of another process."""
    of_random, of_numpy, of_torch = pickle.loads(left)
    random.setstate(of_random)
    numpy.random.set_state(of_numpy)
    torch.set_rng_state(torch.frombuffer(bytearray(of_torch), dtype=torch.uint8))


@contextmanager
def untouched() -> Iterator[None]:
    """Restore the three generators of this process at the end."""
    of_random, of_numpy, of_torch = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(of_random)
        numpy.random.set_state(of_numpy)
        torch.set_rng_state(of_torch)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the generators as for a sample, and restore them at the end."""
    with untouched():
        _seed(seed)
        yield


class Seeded(list[Any]):
    """A batch's indices.  Reading the next index seeds its sample, so read one only when its sample is made next."""

    seed: int
    rows: Sequence[int]
    stride: int

    def __iter__(self) -> Iterator[Any]:
        for row, index in zip(self.rows, super().__iter__(), strict=False):
            _seed(mix(self.seed, row * self.stride))
            yield index


def makes_at_once(dataset: Any, indices: Any) -> Callable[[Any], Any] | None:
    """A dataset's `__getitems__`; None if it has none, or if samples must be made one by one.

    If each sample is seeded when its index is read, a Subset of a Subset, or of a StackDataset, would read all indices
    before it makes a sample, and all samples would have the draws of the last seed.
    """
    at_once: Callable[[Any], Any] | None = getattr(dataset, "__getitems__", None)
    if at_once and isinstance(indices, Seeded) and is_got_one_by_one(dataset):
        return None
    return at_once


class _Unreadable(list[Any]):
    """Stands in for indices that could not be read.  The fetch raises, and the error comes in place of the batch."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def __iter__(self) -> Iterator[Any]:
        raise self.error


def seed_all(indices: Any, seed: int, rows: int | list[int], stride: int) -> list[Any]:
    """The indices of a batch or a chunk, so that each of its samples is seeded: about 6 us a sample.

    Args:
        indices: The indices, as any batch sampler gives them.
        seed: The batch's.
        rows: The place of each index in the batch, or of the first, if the others follow it.
        stride: How far apart in the epoch's order the samples are: the number of ranks that share it.
    """
    first = rows if isinstance(rows, int) else rows[0]
    _seed(mix(seed, first * stride))  # for a dataset that makes all samples in one call (__getitems__)
    try:
        marked = Seeded(indices)
    except Exception as error:  # a batch sampler may give anything, and raising here would end the worker
        return _Unreadable(error)
    marked.seed, marked.stride = seed, stride
    # A range and not an iterator, because what __getitems__ has begun to read is read again, one by one.
    marked.rows = range(first, first + len(marked)) if isinstance(rows, int) else rows
    return marked


def seed_one(index: Any, seed: int, first: int, stride: int) -> Any:
    """The index of a single sample, without automatic batching, seeded as the first of a batch."""
    _seed(mix(seed, first * stride))
    return index


def _seed(seed: int) -> None:
    random.seed(seed)
    numpy.random.seed(seed & 0xFFFFFFFF)  # it accepts 32 bits
    torch.default_generator.manual_seed(seed)
