"""A far worker is asked for several batches at once, and makes one while another one travels."""

from __future__ import annotations

import pathlib
import pickle
import select
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from engine import Here
from pretended import DATASET, GOOD, PLAN, SECRET, Admitting, Pretending, is_ready, receive_ask, until_gone, words
from torch.utils.data import Dataset

import shmloader
from shmloader.far.door import Door
from shmloader.far.frames import (
    ANSWER,
    ASK,
    Answer,
    Ask,
)
from shmloader.far.link import Link


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door("127.0.0.1", 3, 4, SECRET, 60.0)
    yield made
    made.close()
    made.close_note()


@pytest.mark.parametrize("in_flight", [pytest.param(1, marks=pytest.mark.long), 2])
def test_so_many_batches_are_asked_for_at_once(in_flight: int) -> None:
    asked: list[int] = []
    waits: list[bool] = []
    opened = threading.Event()

    def speak(link: Link) -> None:
        assert opened.wait(60)  # otherwise the second one may not be open when the first one is claimed
        asked.append(is_ready(link).sequence)
        for _ in range(in_flight - 1):  # of which none is answered yet
            asked.append(receive_ask(link).sequence)
        poll = select.poll()
        poll.register(link, select.POLLIN)
        waits.append(not poll.poll(200))  # the next one is not asked for
        for k in range(4):
            plan = b"" if k > 1 else PLAN  # it is kept the second time
            answer = GOOD._replace(sequence=asked[k], plan=len(plan))
            link.send(ANSWER.pack(*answer), words(7, 0, 1, 4), plan, bytes([k] * 4))
            if len(asked) < 4:
                asked.append(receive_ask(link).sequence)
        until_gone(link)

    far = Pretending(speak, in_flight=in_flight)
    with shmloader.DataLoader(range(16), batch_size=4, far_workers=far, prefetch_factor=4) as loader:
        iterator = iter(loader)
        opened.set()
        assert [batch.tolist() for batch in iterator] == [[k] * 4 for k in range(4)]
    assert asked == [0, 1, 2, 3] and waits == [True]


@pytest.mark.parametrize(
    ("sizes", "in_flight", "known"),
    [((1, 1, 100_000, 1), 2, (2, 2, 4, 4)), ((8_000, 8_000, 8_000, 8_000), 4, (2, 2, 4, 4))],
    ids=["one is long", "together they are long"],
)
def test_a_long_request_waits(sizes: tuple[int, ...], in_flight: int, known: tuple[int, ...]) -> None:
    """The far worker would not read it while it sends a batch: so many requests have come before each answer."""
    asked: list[int] = []
    waits: list[bool] = []
    opened = threading.Event()

    def speak(link: Link) -> None:
        poll = select.poll()
        poll.register(link, select.POLLIN)
        assert opened.wait(60)
        asked.append(is_ready(link).sequence)
        for k in range(4):
            while len(asked) < known[k]:
                asked.append(receive_ask(link).sequence)
            waits.append(not poll.poll(200))
            plan = b"" if k > 1 else PLAN  # it is kept the second time
            answer = GOOD._replace(sequence=k, plan=len(plan))
            link.send(ANSWER.pack(*answer), words(7, 0, 1, 4), plan, bytes([k] * 4))
        until_gone(link)

    far = Pretending(speak, in_flight=in_flight)
    sampler: Any = [[1 << 20] * size for size in sizes]  # of five bytes each
    with shmloader.DataLoader(DATASET, batch_sampler=sampler, far_workers=far, prefetch_factor=4) as loader:
        iterator = iter(loader)
        opened.set()
        assert [batch.tolist() for batch in iterator] == [[k] * 4 for k in range(4)]
    assert asked == [0, 1, 2, 3] and waits == [True] * 4


class Touching(Dataset[torch.Tensor]):
    """Its samples are larger than what the kernel holds for a connection, and the second one leaves a file."""

    def __init__(self, mark: pathlib.Path) -> None:
        self.mark = mark

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 1:
            self.mark.touch()
        return torch.full((96 << 20,), index, dtype=torch.uint8)


def test_a_batch_is_made_while_the_one_before_it_travels(door: Door, tmp_path: pathlib.Path) -> None:
    with shmloader.DataLoader(Touching(tmp_path / "mark"), far_workers=(far := Here(1))) as loader:
        begun: list[dict[str, Any]] = []
        far.begin = lambda tickets, arguments: begun.append(arguments) or Here.begin(far, tickets, arguments)  # type: ignore[method-assign,func-returns-value]
        iterator = iter(loader)
        for k in range(2):
            assert next(iterator)[0, 0] == k
        (tmp_path / "mark").unlink()
        iterator.close()
    waiting = Admitting(door)
    session = Here(1).begin([door.ticket], {**begun[0], "num_workers": 4})
    link = waiting.end()
    assert link is not None
    with link:
        ready = Answer(*ANSWER.unpack(link.receive(ANSWER.size)))
        link.receive(ready.plan)
        for k in range(2):
            task = pickle.dumps([k])
            link.send(ASK.pack(*Ask(k, 0, 0, 0, 0, len(task), 0, 0)), task)
        end = time.monotonic() + 60
        while not (tmp_path / "mark").exists():  # although no byte of the first batch is read
            assert time.monotonic() < end
            time.sleep(0.01)
    door.close()
    session.close()
