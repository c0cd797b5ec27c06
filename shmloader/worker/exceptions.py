"""What a worker sends in place of a batch that it cannot make: the exception, as torch's workers send it.

The trainer raises it again where the batch would have come, and the epoch goes on behind it.
"""

from __future__ import annotations

import contextlib
import pickle
from typing import Any

from shmloader._torch import ExceptionWrapper
from shmloader.core.batch_writer import Writer
from shmloader.core.worker import WorkerSide

_SHORT = 2000  # characters of a traceback: its end says what was raised


def caught(where: str) -> Any:
    """The exception that is being handled.

    Args:
        where: Who has met it, in torch's words.
    """
    return ExceptionWrapper(where=where)


def error_as_state(where: str) -> bytes:
    """The exception that is being handled, in place of what a stream says of itself: pickled, and its text.

    The text is there as well because the class may be one that cannot be pickled, or that the trainer does not know.
    """
    wrapped, error = caught(where), b""
    with contextlib.suppress(Exception):
        error = pickle.dumps(wrapped)
    return pickle.dumps((error, wrapped.exc_msg))


def write_instead(writer: Writer, ring: WorkerSide, batch: Any, where: str) -> None:
    """Write the exception that is being handled in place of a batch: it cannot be pickled, or does not fit.

    Args:
        writer, ring: Where to.
        batch: What could not be written.
        where: See caught().
    """
    wrapped = caught(where)
    if type(batch) is ExceptionWrapper:  # its class cannot be pickled: what it said still matters most
        wrapped = _of_text(batch.exc_msg, where)
    try:
        writer.write(wrapped)  # behind what was stacked there: a collate function may keep it
    except Exception:  # its class cannot be pickled, or memory is so short that its traceback does not fit
        ring.rewind()
        short = ExceptionWrapper((RuntimeError, RuntimeError(wrapped.exc_msg[-_SHORT:]), None), where)
        writer.write(short)


def _of_text(text: str, where: str) -> Any:
    wrapped = ExceptionWrapper((RuntimeError, RuntimeError(), None), where)
    wrapped.exc_msg = text
    return wrapped
