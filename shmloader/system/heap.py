"""Memory that was freed, and that the C library keeps."""

from __future__ import annotations

import contextlib
import ctypes


def trim() -> None:
    """Give what was freed back to the kernel, as far as whole pages of it are free.

    glibc gives back only what lies at the heap's end.  What lies below would be a copy for each forked worker that
    allocates there.  It takes some milliseconds for each 100 MB.
    """
    with contextlib.suppress(AttributeError, OSError):  # a C library other than glibc has no such function
        ctypes.CDLL(None).malloc_trim(0)
