"""Reads a task in a worker: a batch's indices, unpickled if they are pickled, and their rows if the task lists them."""

from __future__ import annotations

import pickle
from typing import Any


def read_task(written: Any) -> Any:
    """The argument of TrainerSide.open(), from the result of WorkerSide.claim()."""
    return pickle.loads(written) if type(written) is bytes else written


def read_listed(written: Any) -> tuple[list[Any], list[int]]:
    """The indices of a task that lists its rows, and the rows: NOTE [ Windows ]."""
    task = read_task(written)
    return task[: len(task) // 2], task[len(task) // 2 :]
