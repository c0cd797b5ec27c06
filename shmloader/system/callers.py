"""Finds the user's line, which a warning names."""

from __future__ import annotations

import sys
import types

_LIBRARIES = ("shmloader.", "torch.utils.data")


def caller() -> tuple[types.FrameType | None, int]:
    """The first caller that is neither shmloader's nor torch's loader, and its stacklevel for this one's caller."""
    frame: types.FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(_LIBRARIES):
        frame, level = frame.f_back, level + 1
    return frame, level
