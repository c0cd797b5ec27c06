"""What a worker is asked to do: a batch's indices, as TrainerSide.open() has written them."""

from __future__ import annotations

import pickle
from typing import Any


def read_task(written: Any) -> Any:
    """What TrainerSide.open() was given, from what WorkerSide.claim() returned."""
    return pickle.loads(written) if type(written) is bytes else written
