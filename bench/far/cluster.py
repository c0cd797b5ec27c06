"""A Ray cluster whose nodes are all this machine, and the memory that it takes."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from bench.core.session import shared_memory

ROOT = Path(__file__).resolve().parents[2]
LOOKS = 0.1  # seconds between two looks at the memory
PAGE = os.sysconf("SC_PAGE_SIZE")
SPILLED = "ray_spilled_objects*/**/*"  # in the folder of a session of Ray's


@contextlib.contextmanager
def cluster(nodes: int, store: int) -> Iterator[None]:
    """A cluster whose head has no CPUs for tasks and actors, as a machine of GPUs that is busy, and nodes of one each.

    Args:
        nodes: How many nodes there are besides the head.
        store: Bytes of each node's object store, the head's too.
    """
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": store, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(nodes):
            made.add_node(num_cpus=1, object_store_memory=store)
        environment = {"env_vars": {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}}
        ray.init(address=made.address, runtime_env=environment, log_to_driver=False)
        yield
    finally:
        ray.shutdown()
        made.shutdown()


class Memory(threading.Thread):
    """Looks at the memory of the cluster inside a `with` block.

    Attributes:
        store: The most bytes in the object stores of all nodes since begin().
        spilled: The most bytes that Ray had written to disk, because they had no room there.
        whole: By how many bytes all memory has grown at most since this object was made: what the processes of this
            cluster have for themselves, and the shared memory of the machine.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        import ray

        self._session = Path(ray._private.worker.global_worker.node.get_session_dir_path())
        self._closed = threading.Event()
        self._before = _in_use()
        self.begin()

    def begin(self) -> None:
        """Forget what was seen."""
        self.store = self.spilled = self.whole = 0

    def run(self) -> None:
        while not self._closed.wait(LOOKS):
            self.store = max(self.store, _in_stores())
            self.spilled = max(self.spilled, _files(self._session.glob(SPILLED)))
            self.whole = max(self.whole, _in_use() - self._before)

    def __enter__(self) -> Memory:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Before Ray is shut down, because this thread asks it."""
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


def _in_use() -> int:
    """Bytes that this process and its descendants have for themselves, and the machine's shared memory."""
    return shared_memory() + sum(map(_own, _descendants(os.getpid())))


def _own(pid: int) -> int:
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:  # it has just ended
        return 0
    return (int(resident) - int(shared)) * PAGE


def _descendants(root: int) -> set[int]:
    """A process, and all that it and they have started and that live."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
    found: set[int] = set()
    new = {root}
    while new:
        found |= new
        new = {pid for pid, parent in parents.items() if parent in found} - found
    return found
