"""The fork server's imports before it forks, if the user has not set any: torch, and all modules that a worker runs.

No other module may import this one, because it changes what a fork does.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import shmloader.worker.loop  # noqa: F401  (it imports torch)


def _seed_numpy() -> None:
    """Seed NumPy's global generator from the machine's entropy, as an import of NumPy does.

    Otherwise all processes that the user starts by the fork server would draw the same numbers.  Workers are seeded
    later.  Python's own generator does this by itself.
    """
    random: Any = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()


os.register_at_fork(after_in_child=_seed_numpy)
