"""AsyncDataLoader: jobs go out without end, and come back as batches in the order they were asked for."""

from __future__ import annotations

import contextlib
import functools
import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import default_collate

import shmloader
from shmloader import async_dataloader


def sample(number: int, seconds: float = 0.0) -> Any:
    time.sleep(seconds)
    return {"x": torch.full((3,), number), "number": number, "name": f"sample {number}"}


def fails(number: int) -> Any:
    raise KeyError(f"job {number}")


def source(make: Callable[[int], Any]) -> Callable[[int], list[Any]]:
    """Jobs 0, 1, 2 and so on."""
    count = itertools.count()
    return lambda n: [make(next(count)) for _ in range(n)]


def in_turn(number: int) -> Any:
    return functools.partial(sample, number, 0.002 * (number % 3))  # the first ones are done first, and are not last


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("chunk_size", [None, 1, 2, 4])
def test_samples_keep_the_order_of_their_jobs(workers: int, chunk_size: int | None) -> None:
    with shmloader.AsyncDataLoader(source(in_turn), 4, "cpu", chunk_size, num_workers=workers) as loader:
        for k in range(12):
            batch = next(loader)
            numbers = list(range(4 * k, 4 * k + 4))
            assert batch["number"].tolist() == numbers
            assert batch["x"].tolist() == [[number] * 3 for number in numbers]
            assert batch["name"] == [f"sample {number}" for number in numbers]
        assert len(multiprocessing.active_children()) == max(1, workers)


both = multiprocessing.get_context("fork").Barrier(2)


def who() -> int:
    """The first chunk is not made before another worker makes one too."""
    with contextlib.suppress(threading.BrokenBarrierError):
        both.wait(60)
    both.abort()
    return os.getpid()


def test_chunks_of_one_batch_are_made_by_several() -> None:
    both.reset()
    with shmloader.AsyncDataLoader(source(lambda _: who), 8, "cpu", 1, num_workers=2) as loader:
        assert len(set(next(loader).tolist())) == 2


def test_samples_that_are_ready() -> None:
    with shmloader.AsyncDataLoader(source(lambda k: torch.full((2, 2), k)), 3, "cpu", 2, num_workers=2) as loader:
        assert torch.equal(next(loader), torch.stack([torch.full((2, 2), k) for k in range(3)]))


def test_an_exception_comes_in_its_place() -> None:
    jobs = source(lambda k: functools.partial(fails if k in (5, 6) else sample, k))
    with shmloader.AsyncDataLoader(jobs, 4, "cpu", 2, num_workers=2) as loader:
        assert next(loader)["number"].tolist() == [0, 1, 2, 3]
        with pytest.raises(KeyError, match="job 5"):
            next(loader)
        assert next(loader)["number"].tolist() == [8, 9, 10, 11]


def test_a_source_that_fails_and_one_that_ends() -> None:
    def broken(n: int) -> list[Any]:
        raise OSError("no jobs today")

    with pytest.raises(OSError, match="no jobs today"):
        shmloader.AsyncDataLoader(broken, 4, "cpu")

    batches = iter([[1, 2], [3, 4]])
    with shmloader.AsyncDataLoader(lambda n: next(batches), 2, "cpu", num_workers=2) as loader:
        assert [batch.tolist() for batch in loader] == [[1, 2], [3, 4]]


def test_a_source_that_gives_another_number() -> None:
    with pytest.raises(ValueError, match=r"data_source\(4\) returned 3 jobs"):
        shmloader.AsyncDataLoader(lambda n: [1, 2, 3], 4, "cpu")


def test_a_function_that_pickle_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cloudpickle")
    jobs = source(lambda k: lambda: k)
    with shmloader.AsyncDataLoader(jobs, 2, "cpu") as loader:
        assert next(loader).tolist() == [0, 1]
    monkeypatch.setattr(async_dataloader, "_dump_code", None)
    with pytest.raises(
        TypeError, match=r"data_source returned a job that cannot be pickled: <function .*install cloudpickle"
    ):
        shmloader.AsyncDataLoader(jobs, 2, "cpu")


@shmloader.row_wise
def doubled(samples: list[Any]) -> Any:
    return default_collate(samples) * 2


def test_a_collate_function() -> None:
    with shmloader.AsyncDataLoader(source(torch.tensor), 4, "cpu", 3, doubled, 2) as loader:
        assert next(loader).tolist() == [0, 2, 4, 6]
    with shmloader.AsyncDataLoader(source(int), 4, "cpu", collate_fn=sum, num_workers=2) as loader:
        assert next(loader) == 6


def test_closed() -> None:
    loader = shmloader.AsyncDataLoader(source(in_turn), 4, "cpu", num_workers=2)
    batch = next(loader)
    loader.close()
    loader.close()
    with pytest.raises(StopIteration):
        next(loader)
    assert batch["number"].tolist() == [0, 1, 2, 3]
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("batch_size", [0, -1, 2.0, True, None])
def test_a_batch_size_that_is_none(batch_size: Any) -> None:
    with pytest.raises(ValueError, match=f"positive integer, but got batch_size={batch_size!r}"):
        shmloader.AsyncDataLoader(source(in_turn), batch_size, "cpu")
