"""A worker that claims several sequences at a time, and makes them in the order in which it has claimed them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from shmloader.batch import objects
from shmloader.batch.chunk_walk import walk_chunk
from shmloader.core.batch_reader import BatchReader
from shmloader.core.batch_writer import Writer
from shmloader.core.ring import ANY, FILLED, Meter
from shmloader.core.trainer import TrainerSide
from shmloader.core.worker import Claims, WorkerSide
from shmloader.private.of_torch import ExceptionWrapper
from shmloader.ring.segment import Segment


class Sides:
    """A trainer and two workers, in one process."""

    def __init__(self) -> None:
        self.segment = Segment(2, 8, 6, 2, "memfd", None, False)
        self.meter = Meter(2)
        self.trainer = TrainerSide(self.segment, False, 2, True, pickle.dumps, self.meter)
        self.segment.format(self.trainer)
        self.workers = [WorkerSide(self.segment, False, number, 0) for number in range(2)]
        self.claims = [*map(Claims, self.workers)]

    def hire(self, number: int) -> None:
        oldest = self.trainer.sequences.oldest
        self.workers[number] = WorkerSide(self.segment, False, number, oldest)
        self.claims[number] = Claims(self.workers[number])

    def make(self, number: int, task: Any) -> None:
        writer = Writer(self.workers[number], objects, walk_chunk)
        writer.begin(0, None)
        writer.write(torch.tensor(task))
        self.workers[number].publish(FILLED)

    def take(self) -> Any:
        return BatchReader(ExceptionWrapper).read(self.trainer.take(), True).tolist()


@pytest.fixture
def sides() -> Iterator[Sides]:
    both = Sides()
    yield both
    both.trainer.close()
    both.segment.close()


@pytest.mark.parametrize("owner", [0, ANY], ids=["its own", "anybody's"])
def test_several_are_claimed_and_made_one_after_the_other(sides: Sides, owner: int) -> None:
    trainer, worker, claims = sides.trainer, sides.workers[0], sides.claims[0]
    for k in range(4):
        trainer.open(owner, [k, 10 * k])
    assert worker.claim() == [0, 0]
    claims.put_aside()
    assert claims.claim_at_once() == [1, 10] and worker.sequence == 1
    claims.put_aside()
    assert trainer.sequences.holds(0) == [0, 1] and worker.current == -1 and len(claims) == 2
    for k in range(2):
        claims.take_up()
        assert worker.sequence == k and worker.used == 0
        sides.make(0, [k, 10 * k])
        assert sides.take() == [k, 10 * k]
    assert claims.claim_at_once() == [2, 20]
    sides.make(0, [2, 20])
    assert sides.take() == [2, 20] and trainer.sequences.holds(0) == []


def test_all_that_a_dead_worker_has_claimed_is_opened_again(sides: Sides) -> None:
    trainer, claims = sides.trainer, sides.claims[0]
    for k in range(3):
        trainer.open(ANY, [k])
    for _ in range(2):
        claims.claim_at_once()
        claims.put_aside()
    claims.take_up()
    sides.make(0, [0])
    assert trainer.sequences.holds(0) == [1]
    trainer.revoke(0)
    sides.hire(0)
    for k in (1, 2):
        assert sides.claims[0].claim_at_once() == [k]
        sides.make(0, [k])
    assert [sides.take() for _ in range(3)] == [[0], [1], [2]]


def test_what_is_opened_again_below_is_found(sides: Sides) -> None:
    """Although the worker has passed it, with something of its own put aside."""
    one, other = sides.workers
    claims = sides.claims[0]
    for k in range(3):
        sides.trainer.open(ANY, [k])
    other.claim()
    one.claim()
    claims.put_aside()
    sides.trainer.revoke(1)
    assert claims.claim_at_once() == [0]
    sides.make(0, [0])
    claims.take_up()
    sides.make(0, [1])
    assert claims.claim_at_once() == [2]
    sides.make(0, [2])
    assert [sides.take() for _ in range(3)] == [[0], [1], [2]]
