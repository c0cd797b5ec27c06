"""Types of the extension built from cython_ext/process/late_signals.pyx, where each is explained."""

from collections.abc import Callable, Iterable
from typing import TypeVar

_Dying = TypeVar("_Dying")

def late(signals: Iterable[int]) -> object: ...
def in_del(end: Callable[[_Dying], None]) -> Callable[[_Dying], None]: ...
def strip(dying: object) -> None: ...
