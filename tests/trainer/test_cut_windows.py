"""A window of batches is cut by where its rows lie: NOTE [ Places ] in windows.py."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from typing import Any

import pytest

from shmloader.trainer.windows import Cut, Windows, shares


def rows_of(cut: Cut, batch: int) -> list[int]:
    return sorted(row for task in cut.tasks if task.batch == batch for row in task.rows or [])


def at_random(places: int, batches: int = 4, size: int = 64, seed: int = 0) -> list[list[Any]]:
    drawn = random.Random(seed)
    return [[drawn.randrange(places) for _ in range(size)] for _ in range(batches)]


def opened(cut: Cut, places: list[list[Any]], workers: int) -> list[list[Any]]:
    """For each worker, the places in the order in which it opens them; one that it has open is not opened again."""
    found: list[list[Any]] = [[] for _ in range(workers)]
    for task in cut.tasks:
        rows = task.rows if task.rows is not None else range(len(places[task.batch]))
        for row in rows:
            place = places[task.batch][row]
            if found[task.worker][-1:] != [place]:
                found[task.worker].append(place)
    return found


@pytest.mark.parametrize("chunk_size", [None, 1, 5])
@pytest.mark.parametrize("workers", [1, 2, 7])
@pytest.mark.parametrize("places", [1, 3, 20, 1000])
def test_each_row_is_made_once_by_a_worker_that_gets_no_more_than_its_share(
    places: int, workers: int, chunk_size: int | None
) -> None:
    windows = Windows(workers, 2 * workers * 4 * 2, chunk_size)
    for seed in range(5):
        places_of = at_random(places, seed=seed)
        cut = windows.cut(places_of, [0] * workers)
        windows.recent = cut.recent
        assert all(rows_of(cut, batch) in (list(range(64)), []) for batch in range(4))
        whole = [task.batch for task in cut.tasks if task.rows is None]
        assert all([task.batch for task in cut.tasks].count(batch) == 1 for batch in whole)
        assert sorted({task.batch for task in cut.tasks}) == [0, 1, 2, 3] and len(cut.tasks) <= windows.most
        load = Counter[int]()
        for task in cut.tasks:
            load[task.worker] += 64 if task.rows is None else len(task.rows)
        share = -(-256 // workers)
        assert sum(load.values()) == 256 and max(load.values()) <= share + share // 8


def test_a_worker_gets_the_places_it_had_and_begins_with_the_latest() -> None:
    windows = Windows(2, 512, None)
    first = windows.cut(at_random(20), [0, 0])
    windows.recent = first.recent
    places_of = at_random(20, seed=1)
    before, after = opened(first, at_random(20), 2), opened(windows.cut(places_of, [0, 0]), places_of, 2)
    for worker in range(2):
        assert after[worker][0] == before[worker][-1]
        assert len(set(before[worker]) & set(after[worker])) >= 8


def test_a_worker_with_rows_due_gets_fewer() -> None:
    places_of = at_random(20)
    load: dict[int, int] = defaultdict(int)
    for task in Windows(2, 512, None).cut(places_of, [200, 0]).tasks:
        load[task.worker] += len(task.rows or [])
    assert load[0] < 50 and load[1] > 200


@pytest.mark.parametrize(
    ("rows", "due", "expected"),
    [(8, [0, 0], [4, 4]), (8, [100, 0], [0, 8]), (8, [4, 0], [2, 6]), (9, [0, 3, 50], [6, 3, 0]), (0, [1, 2], [0, 0])],
)
def test_shares(rows: int, due: list[int], expected: list[int]) -> None:
    found = shares(rows, due)
    assert found == expected and sum(found) >= rows


def test_rows_of_a_task_are_in_the_order_of_their_places() -> None:
    """More places than tasks may be: neighbours share tasks, and the rows of each stay together."""
    places_of = at_random(100, batches=2, size=200)
    windows = Windows(1, 8, None)
    cut = windows.cut(places_of, [0])
    assert len(cut.tasks) <= 8
    for task in cut.tasks:
        places = [places_of[task.batch][row] for row in task.rows or []]
        assert len(set(places)) == 1 + sum(a != b for a, b in itertools.pairwise(places))
