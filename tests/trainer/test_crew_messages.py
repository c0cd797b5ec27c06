"""Messages that the kernel does not take: a worker's socket is full, or too many descriptors are under way."""

from __future__ import annotations

import errno
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import shmloader
from shmloader import Crew
from shmloader.system import handed_over
from shmloader.trainer.messages import UNHEARD


class Gated(Dataset[int]):
    """Its sample 1, which is worker 1's, is not there before a file is; another file says that it is asked for."""

    def __init__(self, gate: Path) -> None:
        self.gate, self.asked = gate, gate.with_name("asked")

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        if index == 1:
            self.asked.touch()
        while index == 1 and not self.gate.exists():
            threading.Event().wait(0.01)
        return index


class Tensors(Dataset[torch.Tensor]):
    """Each of its tensors is a descriptor, where it is handed over."""

    def __init__(self, count: int) -> None:
        self.tensors = [torch.tensor([k]) for k in range(count)]

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.tensors[index]


def replaced_send(monkeypatch: pytest.MonkeyPatch, before: Callable[[Any], None]) -> None:
    """Have `before` called with each packet that is about to be sent."""
    send = handed_over.send

    def hooked(channel: Any, packet: Any) -> None:
        before(packet)
        send(channel, packet)

    monkeypatch.setattr(handed_over, "send", hooked)


def test_a_loader_joins_when_descriptors_that_are_under_way_have_arrived(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They arrive when worker 1 has made its batch, and then nothing is refused."""
    refused: list[Any] = []

    def refuse(packet: Any) -> None:
        if packet[1] and len(refused) < 3:
            refused.append(packet)
            if len(refused) == 3:
                (tmp_path / "gate").touch()
            raise OSError(errno.ETOOMANYREFS, "Too many references: cannot splice")

    with Crew(2, multiprocessing_context="fork") as crew:
        busy = iter(shmloader.DataLoader(Gated(tmp_path / "gate"), crew=crew))
        next(busy)
        list(shmloader.DataLoader([5], crew=crew))  # so that worker 1 has something to hear
        replaced_send(monkeypatch, refuse)
        assert [batch.item() for batch in shmloader.DataLoader(range(4), crew=crew)] == [0, 1, 2, 3]
        assert refused
        assert next(busy).item() == 1


def test_descriptors_that_are_not_the_crews_are_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with Crew(1, multiprocessing_context="fork") as crew:
        list(shmloader.DataLoader(range(4), crew=crew))

        def refuse(packet: Any) -> None:
            if packet[1]:
                raise OSError(errno.ETOOMANYREFS, "Too many references: cannot splice")

        with monkeypatch.context() as patch:
            replaced_send(patch, refuse)
            with pytest.raises(OSError, match=r"Too many references.*ulimit -n.*fewer and larger tensors"):
                iter(shmloader.DataLoader(range(4), crew=crew))
        assert len(list(shmloader.DataLoader(range(4), crew=crew))) == 4


def test_ctrl_c_ends_the_wait_for_a_worker_that_hears_nothing(tmp_path: Path) -> None:
    with Crew(2, multiprocessing_context="fork") as crew:
        busy = iter(shmloader.DataLoader(Gated(tmp_path / "gate"), crew=crew))
        next(busy)
        while not (tmp_path / "asked").exists():  # until then worker 1 hears what is sent
            time.sleep(0.001)
        short = shmloader.DataLoader([7], crew=crew)  # worker 1 has nothing to give here, and much to hear
        begun = 0
        try:
            with pytest.raises(KeyboardInterrupt):
                while begun < 400:  # more than a socket takes
                    signal.setitimer(signal.ITIMER_REAL, 1)
                    assert [batch.item() for batch in short] == [7]
                    begun += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            (tmp_path / "gate").touch()
        assert UNHEARD // 2 <= begun <= UNHEARD
        assert next(busy).item() == 1
        assert [batch.item() for batch in shmloader.DataLoader(range(4), crew=crew)] == [0, 1, 2, 3]


@pytest.fixture(autouse=True)
def _alarm_is_ctrl_c() -> Any:
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGALRM, before)


def test_a_message_whose_rest_is_lost_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    def interrupt(packet: Any) -> None:
        sent.append(packet)
        if len(sent) == 2:
            raise KeyboardInterrupt

    with Crew(1, multiprocessing_context="fork") as crew:
        first = iter(shmloader.DataLoader(range(4), crew=crew))
        next(first)
        with monkeypatch.context() as patch:
            replaced_send(patch, interrupt)
            with pytest.raises(KeyboardInterrupt):
                iter(shmloader.DataLoader(Tensors(handed_over.AT_ONCE + 10), crew=crew))
        assert len(sent[0][1]) == handed_over.AT_ONCE
        assert [batch.item() for batch in first] == [1, 2, 3]
        several = shmloader.DataLoader(Tensors(handed_over.AT_ONCE + 10), crew=crew)
        assert [batch.item() for batch in several] == [0, 1, 2, 3]


def test_a_message_to_part_that_does_not_fit_is_sent_later(monkeypatch: pytest.MonkeyPatch) -> None:
    full = True
    parts: list[Any] = []

    def refuse(packet: Any) -> None:
        if not packet[1]:
            if full:
                raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
            parts.append(packet)

    with Crew(1, multiprocessing_context="fork") as crew:
        first = shmloader.DataLoader(range(4), crew=crew, persistent_workers=True)
        replaced_send(monkeypatch, refuse)
        assert len(list(first)) == 4
        began = time.monotonic()
        first.close()
        assert time.monotonic() - began < 3  # what owes nothing is not waited for
        assert not parts
        full = False
        assert len(list(shmloader.DataLoader(range(4), crew=crew))) == 4
        assert len(parts) >= 1
