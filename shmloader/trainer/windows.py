"""Cuts a window of batches by where their rows lie (`group_by`).
It decides which worker makes the rows of which place, and how many rows a worker gets at most.

NOTE [ Places ]

A worker that reads one row of a row group decodes all of it.  In random order the next row lies elsewhere.  But a few
batches together have several rows of each place, and the order in which rows are made does not matter, because each is
written where it belongs.  So the batches of a window are cut together:

    1. One worker makes all rows of a place, one after the other, the rows of the first batch first.
    2. A place goes to the worker that had it last, because that worker may still have the place open.  If fewer than
       half of the place's rows fit into that worker's share (3), the place goes to another worker.  Each worker begins
       with the place that it used last.
    3. No worker gets more than nine eighths of its share, because the others would wait for it.  The rows beyond that
       go to the worker that has least.  If samples are seeded one by one, it does not matter which worker makes a row.
       Then rows of earlier windows that a worker has not made yet count towards its share.  So a slow worker gets fewer
       new rows.
    4. The first batch of a window is ready when nearly all of the window is.  So two windows are under way: one that is
       being made, and one that is being handed out.
    5. A task has rows of one batch.  If there would be too many tasks, one task has the rows of several
       places, which the worker makes one after the other.

Which worker makes a row depends on the windows that were cut before.  This changes no value, except random draws of
samples that are not seeded one by one.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import chain, zip_longest
from typing import NamedTuple

_REMEMBERED = 256  # places of each worker, latest last: more than any has open
_SLACK = 8  # a worker may get an eighth more than its share, so that fewer places are cut apart

Row = tuple[int, int]  # the batch's place in the window, and the row in the batch


class Task(NamedTuple):
    """What a worker does in one go."""

    batch: int  # its place in the window
    worker: int
    rows: list[int] | None  # of that batch; None: all of them, in their order


class Cut(NamedTuple):
    """A window that was cut."""

    tasks: list[Task]  # in the order in which to make them
    recent: list[list[Hashable]]  # the places of each worker when it has made them, latest last


class Windows:
    """Cuts one window after another.

    Args:
        workers: How many there are.
        most: How many tasks a window may have: two for each worker and batch, or more.
        chunk_size: How many rows a task may have; None: any number.

    Attributes:
        most: How many tasks a window may have.
        recent: The last places of each worker, latest last.
    """

    def __init__(self, workers: int, most: int, chunk_size: int | None) -> None:
        self._workers = workers
        self.most = most
        self._chunk_size = chunk_size
        self.recent: list[list[Hashable]] = [[] for _ in range(workers)]

    def cut(self, places: list[list[Hashable]], due: list[int]) -> Cut:
        """Cut a window.

        Args:
            places: Of each row of each batch.
            due: Rows that each worker has still to make.
        """
        rows = sum(map(len, places))
        parts = self._divided(places, shares(rows, due))
        least = max(1, self.most // 2 // (self._workers * len(places)))  # that many always fit
        groups = max(least, *map(len, parts))
        while len(tasks := self._tasks(parts, groups, rows)) > self.most:
            groups = max(least, groups // 2)
        recent = [_latest([*before, *own]) for before, own in zip(self.recent, parts, strict=True)]
        return Cut(_whole_batches(tasks, list(map(len, places))), recent)

    def _tasks(self, parts: list[dict[Hashable, list[Row]]], groups: int, rows: int) -> list[Task]:
        """What workers do for their parts, in at most this many groups of places for each worker."""
        size = rows + 1 if self._chunk_size is None else max(self._chunk_size, -(-rows // (self.most // 2)))
        of_workers = [
            [
                Task(batch, worker, of_batch[k : k + size])
                for group in _grouped(own, groups)
                for batch, of_batch in _by_batch(group).items()
                for k in range(0, len(of_batch), size)
            ]
            for worker, own in enumerate(parts)
        ]
        return [task for each in zip_longest(*of_workers) for task in each if task is not None]

    def _divided(self, places: list[list[Hashable]], share: list[int]) -> list[dict[Hashable, list[Row]]]:
        """For each worker its rows by place, in the order in which it makes them."""
        left: dict[Hashable, list[Row]] = {}
        for batch, of_rows in enumerate(places):
            for row, place in enumerate(of_rows):
                left.setdefault(place, []).append((batch, row))
        room = [each + each // _SLACK for each in share]
        parts: list[dict[Hashable, list[Row]]] = [{} for _ in share]

        def give(place: Hashable, worker: int) -> None:
            rows = left[place]
            parts[worker].setdefault(place, []).extend(rows[: room[worker]])
            left[place] = rows[room[worker] :]
            room[worker] = max(0, room[worker] - len(rows))
            if not left[place]:
                del left[place]

        for worker, recent in enumerate(self.recent):
            for place in reversed(recent):
                if place in left and room[worker] and 2 * room[worker] >= len(left[place]):
                    give(place, worker)
        for place in sorted(left, key=lambda place: -len(left[place])):
            while place in left:
                give(place, max(range(len(room)), key=room.__getitem__))
        return parts


def shares(rows: int, due: list[int]) -> list[int]:
    """How many of these rows each worker gets, so that all workers finish them, and the rows due, at the same time.

    Their sum is `rows`, or more because of rounding up.
    """
    for count in range(1, len(due) + 1):
        least = sorted(due)[: count + 1]
        level = -(-(rows + sum(least[:count])) // count)
        if count == len(due) or level <= least[count]:
            break
    return [max(0, level - each) for each in due]


def _grouped(places: dict[Hashable, list[Row]], most: int) -> list[list[Row]]:
    """The rows of neighbouring places together, in at most this many groups; each place's alone if they are few."""
    if len(places) <= most:
        return list(places.values())
    size = -(-sum(map(len, places.values())) // most)
    groups: list[list[Row]] = [[]]
    for rows in places.values():
        if groups[-1] and len(groups[-1]) + len(rows) > size and len(groups) < most:
            groups.append([])
        groups[-1].extend(rows)
    return groups


def _by_batch(rows: list[Row]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for batch, row in rows:
        found.setdefault(batch, []).append(row)
    return dict(sorted(found.items()))


def _latest(places: list[Hashable]) -> list[Hashable]:
    """Each place once, where it comes last."""
    return list(dict.fromkeys(reversed(places)))[_REMEMBERED - 1 :: -1] if places else []


def _whole_batches(tasks: list[Task], sizes: list[int]) -> list[Task]:
    """The tasks, where one that is all of its batch lists no rows, and batches without samples have one too."""
    count = [0] * len(sizes)
    for task in tasks:
        count[task.batch] += 1
    of_batches = [task._replace(rows=None) if count[task.batch] == 1 else task for task in tasks]
    return list(chain(of_batches, (Task(batch, 0, None) for batch, each in enumerate(count) if not each)))
