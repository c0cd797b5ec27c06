"""Returns freed memory, which the C library keeps, to the kernel, because forked workers would copy it."""

from __future__ import annotations

import contextlib
import ctypes


def trim() -> None:
    """Return freed memory to the kernel, if whole pages are free.

    glibc returns only the heap's end.  The free pages below it would be copied for each forked worker that allocates
    there.  The call takes some milliseconds for each 100 MB.
    """
    with contextlib.suppress(AttributeError, OSError):  # only glibc has this function
        ctypes.CDLL(None).malloc_trim(0)
