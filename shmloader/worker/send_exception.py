"""The exception that a worker sends in place of a batch, in the form in which torch's workers send it.

Worker._fill in loop.py catches it.  Steps.bring() in next_batch.pxi raises it in the batch's turn, by raise_again() of
batch/exceptions.py, and the epoch continues with the next batch.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any

from shmloader.batch.exceptions import caught
from shmloader.core.batch_writer import Writer
from shmloader.core.worker import WorkerSide
from shmloader.private.of_torch import ExceptionWrapper

_SHORT = 2000  # characters of a traceback: its end has the exception


def error_as_state(where: str) -> bytes:
    """The exception that is being handled, in place of a stream's state: pickled, in a tuple of its own."""
    return pickle.dumps((caught(where),))


def write_instead(writer: Writer, ring: WorkerSide, batch: Any, where: str) -> None:
    """Write the exception that is being handled in place of a batch that cannot be pickled, or does not fit.

    Args:
        writer, ring: The destination.
        batch: The batch that could not be written.
        where: See caught().
    """
    is_mine = type(batch) is not ExceptionWrapper
    wrapped = caught(where) if is_mine else batch
    kind = MemoryError if is_mine and isinstance(sys.exc_info()[1], MemoryError) else RuntimeError
    try:
        writer.write(wrapped)  # after the stacked tensors, which a collate function may keep
    except Exception:  # memory is too short for its traceback
        ring.rewind()
        short = ExceptionWrapper((kind, kind(wrapped.exc_msg[-_SHORT:]), None), where)
        writer.write(short)
