"""The exception that a worker sends in place of a batch, in the form in which torch's workers send it.

Worker._fill in loop.py catches it.  RingIterator._raise in trainer/iterator.py raises it in the batch's turn, and the
epoch continues with the next batch.
"""

from __future__ import annotations

import contextlib
import pickle
from typing import Any

from shmloader._torch import ExceptionWrapper
from shmloader.core.batch_writer import Writer
from shmloader.core.worker import WorkerSide

_SHORT = 2000  # characters of a traceback: its end has the exception


def caught(where: str) -> Any:
    """The exception that is being handled.

    Args:
        where: The process that met it, in torch's words.
    """
    return ExceptionWrapper(where=where)


def error_as_state(where: str) -> bytes:
    """The exception that is being handled, in place of a stream's state: pickled, and as text.

    The text is needed because the class may be one that cannot be pickled, or that the trainer does not know.
    """
    wrapped, error = caught(where), b""
    with contextlib.suppress(Exception):
        error = pickle.dumps(wrapped)
    return pickle.dumps((error, wrapped.exc_msg))


def write_instead(writer: Writer, ring: WorkerSide, batch: Any, where: str) -> None:
    """Write the exception that is being handled in place of a batch that cannot be pickled, or does not fit.

    Args:
        writer, ring: The destination.
        batch: The batch that could not be written.
        where: See caught().
    """
    wrapped = caught(where)
    if type(batch) is ExceptionWrapper:  # its class cannot be pickled, but its text is what matters most
        wrapped = _of_text(batch.exc_msg, where)
    try:
        writer.write(wrapped)  # after the stacked tensors, which a collate function may keep
    except Exception:  # its class cannot be pickled, or memory is too short for its traceback
        ring.rewind()
        short = ExceptionWrapper((RuntimeError, RuntimeError(wrapped.exc_msg[-_SHORT:]), None), where)
        writer.write(short)


def _of_text(text: str, where: str) -> Any:
    wrapped = ExceptionWrapper((RuntimeError, RuntimeError(), None), where)
    wrapped.exc_msg = text
    return wrapped
