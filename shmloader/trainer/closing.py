"""What iter() raises if another thread or a signal's handler closes the loader meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


class LoaderClosed(RuntimeError):
    """The loader was closed while iter() ran."""

    def __init__(self) -> None:
        super().__init__(
            "The loader was closed while iter() ran, by another thread or a signal's handler. Iterate over it again."
        )


@contextlib.contextmanager
def naming_it(was_closed: Callable[[], bool]) -> Iterator[None]:
    """In this `with`, whatever fails because the iterator was closed becomes an error that names the closing.

    Args:
        was_closed: Whether the iterator was closed.

    Raises:
        LoaderClosed: The iterator was closed.
    """
    try:
        yield
    except LoaderClosed:
        raise
    except Exception as error:
        if not was_closed():
            raise
        # A StopIteration as its cause would come out in its place: contextlib takes the RuntimeError for Python's own.
        raise LoaderClosed from (None if isinstance(error, StopIteration) else error)
    if was_closed():
        raise LoaderClosed
