"""Uses a loader in the way of one pattern, and measures the whole of it: from making the loader until it is gone.
This runs in a process of its own, see core/warm.py."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import time
import warnings
from typing import Any

from bench.core import session
from bench.patterns.table import PATTERNS

LOADERS = {"torch": "torch.utils.data", "shmloader": "shmloader", "before": "shmloader"}  # and their modules
MADE = ("sampler", "batch_sampler")  # options that are made for each loader, within the time that counts
LINGERS = 0.1  # seconds during which what is kept stays, so that one more look sees it


def measure(pattern: str, subject: str) -> dict[str, float]:
    """Use a loader.

    Returns:
        wall, cpu: seconds; cpu is that of this process and of all that it has started;
        began, ended: on the clock of those who look at the memory meanwhile.
    """
    multiprocessing.set_start_method("fork", force=True)
    warnings.simplefilter("ignore")  # torch's, of more workers than cores
    warnings.filterwarnings("error", category=RuntimeWarning)  # ours, of a loader that cannot use the ring
    kind: Any = importlib.import_module(LOADERS[subject])
    what = PATTERNS[pattern]
    dataset = what.dataset()

    def make(**more: Any) -> Any:
        options = {"dataset": dataset, **what.options, **more}
        return kind.DataLoader(**{name: value() if name in MADE else value for name, value in options.items()})

    before, began = session.used(os.getsid(0))[0], time.monotonic()
    kept = what.loop(make)
    ended, after = time.monotonic(), session.used(os.getsid(0))[0]
    time.sleep(LINGERS)
    del kept
    return {"wall": ended - began, "cpu": after - before, "began": began, "ended": ended}
