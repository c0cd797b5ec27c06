"""What iter() and next() raise if another thread or a signal's handler closes the loader meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from shmloader.core.process import is_handlers

LOADER_CLOSED = (
    "The loader was closed while iter() ran, by another thread or a signal's handler. Iterate over it again."
)
RING_CLOSED = "this iterator has been shut down. Iterate over the DataLoader again."  # as the core words it


def is_due_to_it(error: RuntimeError) -> bool:
    """Whether an iterator raised this because it is closed."""
    return str(error) == RING_CLOSED


@contextlib.contextmanager
def naming_it(was_closed: Callable[[], bool]) -> Iterator[None]:
    """In this `with`, whatever fails because the iterator was closed becomes an error that names the closing.

    Args:
        was_closed: Whether the iterator was closed.

    Raises:
        RuntimeError: The iterator was closed.
    """
    try:
        yield
    except Exception as error:
        if not was_closed() or is_handlers(error) or str(error) == LOADER_CLOSED:
            raise
        # A StopIteration as its cause would come out in its place: contextlib takes the RuntimeError for Python's own.
        raise RuntimeError(LOADER_CLOSED) from (None if isinstance(error, StopIteration) else error)
    if was_closed():
        raise RuntimeError(LOADER_CLOSED)
