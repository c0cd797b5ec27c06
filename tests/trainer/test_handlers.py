"""Which exceptions are a signal's handler's: NOTE [ Handlers ] in handlers.pxi."""

from __future__ import annotations

import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import shmloader
from shmloader.batch import exceptions
from shmloader.core.process import is_handlers
from shmloader.resume import iterables
from shmloader.trainer.delivery import Delivery

Install = Callable[[Any], None]


@pytest.fixture
def install() -> Iterator[Install]:
    """Installs a handler of SIGALRM."""
    before = signal.getsignal(signal.SIGALRM)
    yield lambda handler: signal.signal(signal.SIGALRM, handler) and None
    signal.signal(signal.SIGALRM, before)


def raises(signum: int, frame: Any) -> None:
    raise TimeoutError("the handler's")


def test_functions_of_one_decorator_share_code_and_only_the_handler_is_one(install: Install) -> None:
    install(torch.no_grad()(raises))

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def fails() -> None:
        raise ValueError("the user's")

    with pytest.raises(ValueError, match="the user's") as own:
        fails()
    assert not is_handlers(own.value)
    with pytest.raises(TimeoutError) as handlers:
        signal.raise_signal(signal.SIGALRM)
    assert is_handlers(handlers.value)


class Interrupts:
    """Unpickling it lets the handler run."""

    def __reduce__(self) -> Any:
        return signal.raise_signal, (signal.SIGALRM,)


def test_a_state_of_streams_does_not_take_a_handlers_exception_for_a_streams(install: Install) -> None:
    install(raises)
    interrupts = pickle.dumps(Interrupts())
    with pytest.raises(TimeoutError, match="the handler's"):
        iterables._read(interrupts, 0, [])
    with pytest.raises(TimeoutError, match="the handler's"):
        iterables._between_epochs(interrupts, 0, [])
    with pytest.raises(TimeoutError, match="the handler's"):
        exceptions._class_or_name(interrupts, "")


class Meets(torch.utils.data.Dataset[int]):
    """Its first two samples are made at the same time, in two threads."""

    def __init__(self) -> None:
        self.both = threading.Barrier(2)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if not self.both.broken and index < 2:
            self.both.wait(10)
        return index


def test_threads_that_share_an_iterator_without_workers_get_each_batch_once() -> None:
    loader: Any = shmloader.DataLoader(Meets(), batch_size=None)
    iterator, got = iter(loader), []
    threads = [threading.Thread(target=lambda: got.append(next(iterator))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [0, 1]
    assert loader.state_dict()["batches"] == 2
    assert list(iterator) == list(range(2, 8)) and loader.state_dict()["epoch"] == 1


def test_batches_that_exceptions_keep_cost_memory_and_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    with shmloader.DataLoader(torch.arange(8), 2, num_workers=1, persistent_workers=True) as loader:
        kept: list[Any] = []
        iter(loader)
        read = Delivery.read

        def interrupted(self: Delivery) -> Any:
            kept.append(self._ring.lend())
            raise KeyboardInterrupt

        monkeypatch.setattr(Delivery, "read", interrupted)
        with pytest.raises(MemoryError, match=r"no slot of the ring is free: \d of \d have batches that are still"):
            for _ in range(20):
                with pytest.raises(KeyboardInterrupt):
                    next(iter(loader))
        monkeypatch.setattr(Delivery, "read", read)
        kept.clear()
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
