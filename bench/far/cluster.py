"""A Ray cluster whose nodes are all this machine, and the memory that it takes."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from itertools import count
from pathlib import Path

from bench.core import session

ROOT = Path(__file__).resolve().parents[2]
LOOKS = 0.1  # seconds between two looks at the object stores
SELDOM = 10  # looks between two at all memory, for which the kernel has to go through all page tables
SPILLED = "ray_spilled_objects*/**/*"  # in the folder of a session of Ray's


def start(nodes: int, store: int) -> None:
    """Start a cluster, and connect this process to it.

    Its head has no CPUs for tasks and actors, as a machine of GPUs that is busy, and all other nodes have one each.
    Nobody shuts it down: its processes belong to this session, and core/child.py ends that.  Ray's own way is not
    safe: a thread of Ray Data's may ask Ray after its end, and Ray then ends this process before it has printed.

    Args:
        nodes: How many nodes there are besides the head.
        store: Bytes of each node's object store, the head's too.
    """
    import ray
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    head = {"num_cpus": 0, "object_store_memory": store, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(nodes):
        made.add_node(num_cpus=1, object_store_memory=store)
    environment = {"env_vars": {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}}
    ray.init(address=made.address, runtime_env=environment, log_to_driver=False)


class Memory(threading.Thread):
    """Looks at the memory of the cluster inside a `with` block.

    Attributes:
        store: The most bytes in the object stores of all nodes since begin().
        spilled: The most bytes that Ray had written to disk, because they had no room there.
        whole: By how many bytes the memory of all processes of this session has grown at most since this object was
            made.  A page that several of them map counts once.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        import ray

        self._session = Path(ray._private.worker.global_worker.node.get_session_dir_path())
        self._closed = threading.Event()
        self._before = session.memory(os.getsid(0))
        self.store = self.spilled = self.whole = 0

    def begin(self) -> None:
        """Forget all that was seen before."""
        self.store = self.spilled = self.whole = 0
        self._look()
        self._look_at_all()

    def run(self) -> None:
        for at in count():
            if self._closed.wait(LOOKS):
                return
            self._look()
            if at % SELDOM == 0:
                self._look_at_all()

    def _look(self) -> None:
        self.store = max(self.store, _in_stores())
        self.spilled = max(self.spilled, _files(self._session.glob(SPILLED)))

    def _look_at_all(self) -> None:
        self.whole = max(self.whole, session.memory(os.getsid(0)) - self._before)

    def __enter__(self) -> Memory:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        self.join()


def _in_stores() -> int:
    """Bytes of all object stores that are in use.  Each node reports those that are free ten times a second."""
    import ray

    kind = "object_store_memory"
    return int(ray.cluster_resources().get(kind, 0) - ray.available_resources().get(kind, 0))


def _files(paths: Iterable[Path]) -> int:
    found = 0
    for path in paths:
        with contextlib.suppress(OSError):  # it has just been removed
            found += path.stat().st_size
    return found
