"""`in_del`, the decorator of each `__del__()`, `take_all`, which takes all steps of an end even if one raises, and
`ClosedByWith`, for objects whose `with` block closes them.
They are for modules that are imported on other platforms, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TypeVar

__all__ = ["ClosedByWith", "in_del", "take_all"]

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
