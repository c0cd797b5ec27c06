"""Windows in the ring itself: tasks are claimed in their order, and batches taken in theirs: NOTE [ Windows ]."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hostile import ENTRY, entry_at, poke

from shmloader.batch import objects
from shmloader.batch.chunk_walk import walk_chunk
from shmloader.core.batch_reader import BatchReader
from shmloader.core.batch_writer import Writer
from shmloader.core.ring import FILLED
from shmloader.core.trainer import TrainerSide
from shmloader.core.worker import WorkerSide
from shmloader.private.of_torch import ExceptionWrapper
from shmloader.ring.segment import Segment
from shmloader.ring.tasks import read_listed

Task = tuple[int, int, list[Any], list[int] | None]

# Three batches of 4, 2 and 2 rows; the second one's first task lies before the first one's.
WINDOW: list[Task] = [
    (1, 0, [10], [1]),
    (0, 0, [3, 1], [3, 1]),
    (2, 0, [20, 21], None),
    (0, 0, [0, 2], [0, 2]),
    (1, 0, [11], [0]),
]
SAMPLES, SEEDS = [4, 2, 2], [7, 8, 9]


class Sides:
    """A trainer, and a worker that makes of each index its number."""

    def __init__(self, entries: int = 8, batches: int = 6) -> None:
        self.segment = Segment(1, entries, batches, 2, "memfd", None, False)
        self.trainer = TrainerSide(self.segment, False, 2, True)
        self.segment.format(self.trainer)
        self.hire(0)

    def hire(self, first: int) -> None:
        self.worker = WorkerSide(self.segment, False, 0, first)
        self.writer = Writer(self.worker, objects, walk_chunk)
        self.reader = BatchReader(ExceptionWrapper)

    def claim(self) -> tuple[int, Any, Any]:
        written = self.worker.claim()
        task, rows = read_listed(written) if self.worker.listed else (written, None)
        self.writer.begin(len(task) if self.worker.rows else 0, rows)
        return self.worker.seed, task, rows

    def make(self) -> tuple[int, Any, Any]:
        claimed = self.claim()
        self.writer.write([torch.tensor(claimed[1]), [f"text {index}" for index in claimed[1]]])
        self.worker.publish(FILLED)
        return claimed

    def take(self) -> Any:
        batch = self.reader.read(self.trainer.take(), True)
        return batch[0].tolist(), batch[1]

    def close(self) -> None:
        self.trainer.close()
        self.segment.close()


@pytest.fixture
def sides() -> Any:
    both = Sides()
    yield both
    both.close()


def batch(*indices: int) -> Any:
    return list(indices), [f"text {index}" for index in indices]


def test_tasks_are_made_in_their_order_and_batches_taken_in_theirs(sides: Any) -> None:
    trainer = sides.trainer
    trainer.open_window(WINDOW, SAMPLES, SEEDS)
    assert trainer.under_way == 3 and trainer.sequences.in_flight == 5 and trainer.sequences.awaited() == [1]
    assert [trainer.sequences.about(k) for k in range(5)] == [(1, 1, 2), (0, 3, 4), (2, 0, 0), (0, 0, 4), (1, 0, 2)]
    assert trainer.sequences.rows_of(3) == [0, 2] and trainer.sequences.rows_of(2) is None
    assert trainer.sequences.rows_due() == [7]
    assert [sides.make() for _ in range(3)] == [(8, [10], [1]), (7, [3, 1], [3, 1]), (9, [20, 21], None)]
    assert not trainer.ready() and trainer.sequences.awaited() == [3] and trainer.sequences.rows_due() == [3]
    assert sides.make() == (7, [0, 2], [0, 2]) and trainer.ready()
    assert sides.take() == batch(0, 1, 2, 3)
    assert not trainer.ready() and trainer.sequences.oldest == 0
    sides.make()
    assert [sides.take(), sides.take()] == [batch(11, 10), batch(20, 21)]
    assert trainer.sequences.in_flight == 0 and trainer.sequences.next_take == trainer.sequences.next_open == 5
    trainer.open(0, [30])
    sides.make()
    assert sides.take() == batch(30)


def test_a_window_waits_until_all_its_entries_are_free(sides: Any) -> None:
    trainer = sides.trainer
    trainer.open_window(WINDOW, SAMPLES, SEEDS)
    for _ in range(5):
        sides.make()
    again: list[Task] = [(0, 0, [k], [k]) for k in range(4)]
    assert trainer.has_room_for(1, 3) and not trainer.has_room_for(1, 4) and not trainer.has_room_for(4, 3)
    with pytest.raises(
        RuntimeError, match="no room for 1 batches in 4 chunks: 3 of 6 batches are under way, in 5 of 8"
    ):
        trainer.open_window(again, [4], [0])
    sides.take()
    assert not trainer.has_room_for(1, 4)  # sequence 0, whose entry would be the last one's, is of the second batch
    sides.take()
    trainer.open_window(again, [4], [0])
    assert sides.take() == batch(20, 21)
    assert [sides.make()[1] for _ in range(4)] == [[0], [1], [2], [3]]
    assert sides.take() == batch(0, 1, 2, 3)


def test_a_successor_finds_what_is_open_below_what_is_taken_next(sides: Any) -> None:
    trainer = sides.trainer
    trainer.open_window(WINDOW, SAMPLES, SEEDS)
    sides.claim()
    assert trainer.sequences.next_take == 1 and trainer.sequences.oldest == 0
    trainer.revoke(0)
    sides.hire(trainer.sequences.oldest)
    for _ in range(5):
        sides.make()
    assert [sides.take() for _ in range(3)] == [batch(0, 1, 2, 3), batch(11, 10), batch(20, 21)]


def test_an_index_that_cannot_be_pickled_opens_nothing(sides: Any) -> None:
    with pytest.raises(Exception, match="lambda"):
        sides.trainer.open_window([(0, 0, [1], [0]), (0, 0, [lambda: 0], [1])], [2], [0])
    assert sides.trainer.under_way == sides.trainer.sequences.next_open == 0


@pytest.mark.parametrize("rows", [1, 3])
def test_rows_that_were_overwritten_are_an_error(sides: Any, rows: int) -> None:
    """The batch has fewer rows than the task lists, or row 3 is none of it."""
    assert "rows" in ENTRY
    sides.trainer.open_window(WINDOW[1:2], [4], [0])
    poke(sides.segment, *entry_at(sides.segment, 0, "rows"), rows)
    with pytest.raises(RuntimeError, match=r"a chunk's rows.*\[3, 1\]"):
        sides.claim()
