"""The user's line, which warnings name, and warnings that come once in a process."""

from __future__ import annotations

import sys
import types
import warnings
from collections.abc import Hashable

_LIBRARIES = ("shmloader.", "torch.utils.data")

_met: set[Hashable] = set()


def caller() -> tuple[types.FrameType | None, int]:
    """The first caller that is neither shmloader's nor torch's loader, and its stacklevel for this one's caller."""
    frame: types.FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(_LIBRARIES):
        frame, level = frame.f_back, level + 1
    return frame, level


def is_first(key: Hashable) -> bool:
    """Whether this process asks with this key for the first time."""
    if key in _met:
        return False
    _met.add(key)
    return True


def warn_once(message: str, category: type[Warning] = RuntimeWarning, key: Hashable = None) -> None:
    """Warn at the user's line, once in a process.

    Args:
        message: The warning.
        category: Its class.
        key: What it is about, if the message may differ from time to time; None: the message.
    """
    if is_first(message if key is None else key):
        warnings.warn(message, category, stacklevel=caller()[1])
