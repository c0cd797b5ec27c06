"""`in_del`, the decorator of each `__del__()`, `take_all`, which takes all steps of an end even if one raises, and
`ClosedByWith`, for objects whose `with` block closes them, among them our iterators.
They are for modules that are imported on other platforms, too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TypeVar

__all__ = ["ClosedByWith", "OwnIterator", "in_del", "take_all"]

_Closed = TypeVar("_Closed", bound="ClosedByWith")
_Dying = TypeVar("_Dying")

try:
    from shmloader.core.process import in_del
except ImportError:  # off Linux there is no core

    def in_del(end: Callable[[_Dying], None]) -> Callable[[_Dying], None]:
        """The function itself."""
        return end


def take_all(steps: Iterable[Callable[[], object]]) -> None:
    """Take each step of an end, even if an earlier one has raised.

    Raises:
        BaseException: The first error, after the last step; but Ctrl-C, and what else is no Exception, before others.
    """
    raised: BaseException | None = None
    for step in steps:
        try:
            step()
        except BaseException as error:
            if raised is None or (isinstance(raised, Exception) and not isinstance(error, Exception)):
                raised = error
    if raised is not None:
        try:
            raise raised
        finally:
            del raised  # it holds this frame, by its traceback


class ClosedByWith:
    """What a `with` block closes at its end."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: _Closed) -> _Closed:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class OwnIterator(ClosedByWith):
    """How our iterators end: once, in the process that made them.  The names are torch's, because others read them."""

    _shutdown = True  # closed, or not made yet
    _owner: int  # the process

    @property
    def goes_on(self) -> bool:
        """Whether it can begin another epoch: it was not closed, and this process was not forked from its own."""
        return not self._shutdown and self._owner == os.getpid()

    def _shutdown_workers(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """End the threads and workers and give the memory back.  Delivered batches stay as they are.

        Closing twice does no harm.  A closed iterator is at its end.
        """
        self._shutdown_workers()

    @in_del
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():  # otherwise global names may be None
            self._shutdown_workers()
