"""A worker's task: a batch's indices, as TrainerSide.open() has written them."""

from __future__ import annotations

import pickle
from typing import Any


def read_task(written: Any) -> Any:
    """The argument of TrainerSide.open(), from the result of WorkerSide.claim()."""
    return pickle.loads(written) if type(written) is bytes else written
