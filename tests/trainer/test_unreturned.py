"""A signal's handler raises behind the step, before next() has returned its batch: the batch comes again."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
import torch
from torch.autograd import profiler
from torch.utils.data import IterableDataset

import shmloader
import shmloader.trainer.iterator
from shmloader.private import of_torch

BATCHES = 6


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(2 * BATCHES))

    def __len__(self) -> int:
        return 2 * BATCHES


@pytest.fixture
def loader() -> Iterator[Any]:
    with shmloader.DataLoader(Stream(), batch_size=2, num_workers=1, persistent_workers=True) as made:
        assert made.rides_ring
        yield made


def interrupted(monkeypatch: pytest.MonkeyPatch, iterator: Any) -> None:
    """Have the next call raise behind the step."""
    real = of_torch.warn_of_length

    def raising(_: Any) -> None:
        monkeypatch.setattr(of_torch, "warn_of_length", real)
        raise KeyboardInterrupt

    monkeypatch.setattr(of_torch, "warn_of_length", raising)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)


def test_it_comes_with_the_next_call_and_counts_once(loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    iterator = iter(loader)
    got = [next(iterator).tolist()]
    interrupted(monkeypatch, iterator)
    assert loader.state_dict()["batches"] == 1, "a run that resumes here would never get the batch"
    got.append(next(iterator).tolist())
    assert loader.state_dict()["batches"] == 2
    got += [batch.tolist() for batch in iterator]
    assert got == [[2 * k, 2 * k + 1] for k in range(BATCHES)]


def test_an_epoch_is_not_over_before_its_last_batch_is_returned(loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    iterator = iter(loader)
    got = [next(iterator).tolist() for _ in range(BATCHES - 1)]
    interrupted(monkeypatch, iterator)
    assert loader.state_dict()["epoch"] == 0 and loader.state_dict()["batches"] == BATCHES - 1
    assert [*got, *(batch.tolist() for batch in iterator)] == [[2 * k, 2 * k + 1] for k in range(BATCHES)]


class Bad(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 3:
            raise ValueError("bad")
        return index


def test_an_error_in_a_batchs_place_comes_after_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    real = of_torch.ExceptionWrapper.reraise

    def reraise(wrapper: Any) -> None:
        monkeypatch.setattr(of_torch.ExceptionWrapper, "reraise", real)
        raise KeyboardInterrupt

    monkeypatch.setattr(of_torch.ExceptionWrapper, "reraise", reraise)
    with shmloader.DataLoader(Bad(), batch_size=2, num_workers=1) as loader:
        iterator = iter(loader)
        got = next(iterator).tolist()
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        assert loader.state_dict()["batches"] == 1
        with pytest.raises(ValueError, match="bad"):
            next(iterator)
        assert loader.state_dict()["batches"] == 2
        assert [got, *(batch.tolist() for batch in iterator)] == [[0, 1], [4, 5], [6, 7]]


def test_a_state_counts_no_batch_that_a_prefetcher_has_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        """The measure of the user's turns, which is called last before next() returns."""

        def asked(self) -> None: ...

        def handed_out(self) -> None:
            iterator._turns = None
            raise KeyboardInterrupt

    with shmloader.DataLoader(
        Stream(), batch_size=2, num_workers=1, device="cpu", on_device=lambda batch: batch
    ) as made:
        iterator = iter(made)
        got = [next(iterator).tolist()]
        iterator._turns = Interrupted()
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        assert made.state_dict()["batches"] == 1
        got.append(next(iterator).tolist())
        assert made.state_dict()["batches"] == 2
        assert [*got, *(batch.tolist() for batch in iterator)] == [[2 * k, 2 * k + 1] for k in range(BATCHES)]


class TimedOut(torch.utils.data.Dataset[int]):
    """Limits the time of a sample by a timer, as many datasets do.  One sample takes too long."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 3:
            signal.raise_signal(signal.SIGALRM)
        return index


@pytest.mark.usefixtures("impatient_torch")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_handler_of_the_datasets_own_fails_its_batch_as_in_torch(workers: int) -> None:
    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("late")

    before = signal.signal(signal.SIGALRM, late)
    try:
        for kind in (shmloader.DataLoader, torch.utils.data.DataLoader):
            iterator, got = iter(kind(TimedOut(), batch_size=2, num_workers=workers)), []
            for _ in range(4):
                try:
                    got.append(next(iterator).tolist())
                except TimeoutError:
                    got.append("late")
            assert got == [[0, 1], "late", [4, 5], [6, 7]]
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("persistent", [False, True])
def test_the_end_counts_when_the_loop_has_it(persistent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shmloader.trainer.iterator.warn_if_all_dropped

    def raising(*given: Any) -> None:
        monkeypatch.setattr(shmloader.trainer.iterator, "warn_if_all_dropped", real)
        raise KeyboardInterrupt

    with shmloader.DataLoader(range(4), batch_size=2, num_workers=1, persistent_workers=persistent) as loader:  # type: ignore[arg-type]
        iterator = iter(loader)
        assert next(iterator).tolist() == [0, 1] and next(iterator).tolist() == [2, 3]
        monkeypatch.setattr(shmloader.trainer.iterator, "warn_if_all_dropped", raising)
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        assert loader.state_dict()["batches"] == 2, "the loop has not seen the end: the place is behind the last batch"
        assert next(iterator, "the end") == "the end"
        assert (loader.state_dict()["batches"], loader.state_dict()["epoch"]) == (0, 1)
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]


def test_a_new_epoch_begins_with_its_own_first_batch(loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    iterator = iter(loader)
    next(iterator)
    interrupted(monkeypatch, iterator)
    assert [batch.tolist()[0] for batch in loader] == list(range(0, 2 * BATCHES, 2))


def test_a_closed_iterator_gives_no_batch_that_was_pending(loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    iterator = iter(loader)
    next(iterator)
    interrupted(monkeypatch, iterator)
    iterator.close()
    assert next(iterator, "the end") == "the end"
    assert loader.state_dict()["batches"] == 1


class WatchdogError(Exception):
    pass


def test_a_handlers_exception_while_a_batch_is_opened_comes_out_and_loses_nothing(loader: Any) -> None:
    iterator = iter(loader)
    got, opened, real = [next(iterator).tolist()], [0], iterator._conductor.open

    def opening(*given: Any) -> Any:
        opened[0] += 1
        if opened[0] == 1:
            raise WatchdogError
        return real(*given)

    iterator._conductor.open = opening
    raised = 0
    while len(got) < BATCHES:
        try:
            got.append(next(iterator).tolist())
        except WatchdogError:
            raised += 1
    assert got == [[2 * k, 2 * k + 1] for k in range(BATCHES)]
    assert raised == 1


# --------------------------------------------------------------------------------------------------------- the profiler


class _InterruptedOnce(profiler.record_function):
    """The profiler's record of a next(), at whose end a Ctrl-C comes, once."""

    comes = True

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        if _InterruptedOnce.comes:
            _InterruptedOnce.comes = False
            raise KeyboardInterrupt


def test_a_batch_survives_a_ctrl_c_at_the_end_of_a_profiled_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """The profiler's record ends behind next(), and Python calls handlers there."""
    monkeypatch.setattr(profiler, "record_function", _InterruptedOnce)
    dataset: Any = torch.arange(6)
    with shmloader.DataLoader(dataset, batch_size=2, num_workers=1) as loader:
        assert loader.rides_ring
        batches = iter(loader)
        with profiler.profile():
            with pytest.raises(KeyboardInterrupt):
                next(batches)
            assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5]]
