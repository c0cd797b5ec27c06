"""A Ray cluster whose nodes are all this machine, and the processes of it that are our actors."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import ray
import scripts
from ray.cluster_utils import Cluster

PATH = os.pathsep.join(
    [str(scripts.ROOT), *(str(scripts.ROOT / "tests" / name) for name in (".", "far", "far/with_ray"))]
)
CPUS = 2  # of each node
# A node that was killed is missed after five seconds, and one that is slow is not, because all of them share few cores.
HEALTH = {"health_check_period_ms": 1000, "health_check_timeout_ms": 60_000}
KILLS = int(os.environ.get("KILLS", "12"))


@contextlib.contextmanager
def cluster_of(*others: dict[str, float]) -> Iterator[Any]:
    """A cluster with a head, and a node for each of these resources.  This process is connected to the head."""
    head = {"num_cpus": CPUS, "include_dashboard": False, "_system_config": HEALTH}
    made = Cluster(initialize_head=True, head_node_args=head)
    try:
        for resources in others:
            made.add_node(num_cpus=CPUS, resources=resources)
        ray.init(address=made.address, runtime_env={"env_vars": {"PYTHONPATH": PATH}}, log_to_driver=False)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def until(holds: Callable[[], bool], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def actors(doing: str = "") -> list[int]:
    """The processes that are our actors; those that are doing this, if it is given.

    Nodes, and the processes that they start, stay in the session of the tests.  Actors of another cluster on this
    machine are in another one.
    """
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) != os.getsid(0):
                continue
            if f"ray::FarWorker{doing}" in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found
