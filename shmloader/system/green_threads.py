"""Refuses workers where gevent has replaced threads: what watches the workers would never run.

The trainer sleeps in C until a batch comes, and a greenlet runs only while all others wait in gevent's own functions.
So a worker's death was never seen, and in a greenlet the process ended by SIGSEGV.  torch's iterator fails there too.
"""

from __future__ import annotations

import sys


def refuse_green_threads() -> None:
    """Call this before workers start.

    Raises:
        RuntimeError: gevent has replaced what our threads need.
    """
    monkey = sys.modules.get("gevent.monkey")
    patched = [name for name in ("threading", "select") if monkey is not None and monkey.is_module_patched(name)]
    if patched:
        raise RuntimeError(
            f"gevent has replaced {' and '.join(patched)} in this process, so the thread that watches a loader's "
            "workers cannot run. Call gevent.monkey.patch_all(thread=False, select=False), give num_workers=0, or "
            "load in a process that gevent has not patched."
        )
