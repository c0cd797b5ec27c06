"""`in_del`, the decorator of each `__del__()`, for modules that are imported on other platforms too."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

__all__ = ["in_del"]

_Dying = TypeVar("_Dying")

try:
    from shmloader.core.late_signals import in_del
except ImportError:  # off Linux there is no core

    def in_del(end: Callable[[_Dying], None]) -> Callable[[_Dying], None]:
        """The function itself."""
        return end
