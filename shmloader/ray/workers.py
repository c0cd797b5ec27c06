"""`shmloader.ray.Workers`: far workers as actors on the nodes of a Ray cluster.
It checks its arguments, sends actors the dataset, and warns if some do not start in time or have other libraries.

Ray does what it is good at: it finds places for actors, starts them, and starts them again when they or their nodes
die.  Batches do not pass through Ray: _StandIn._receive() in far/stand_in.py writes them into the local ring.  If an
actor or a node is lost, _StandIn._lose() ends the stand-in, which counts as the death of a worker: point 4 of
NOTE [ Far workers ] in that file.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import platform
import sys
import threading
from typing import Any

import torch

from shmloader.far_workers import FarSession, FarWorkers, Ticket
from shmloader.system.cleanup import ClosedByWith
from shmloader.system.user_line import warn_once

HEAVY = ("dataset", "collate_fn", "init_fn", "pool")  # of the arguments, which seldom change from epoch to epoch
_LIBRARIES = ("torch", "numpy", "Pillow", "torchvision", "shmloader")  # on which a batch's bits depend
_ENDED = 2.0  # seconds in which actors end their work once a loader is closed, unless a sample takes longer


def _ray() -> Any:
    """Ray, which takes a second to import, and so is imported by its users alone."""
    try:
        import ray
    except ImportError:
        raise RuntimeError("far_workers need Ray, which is not installed. Run pip install 'shmloader[ray]'.") from None
    return ray


class FarWorker:
    """The process of an actor: it makes batches for one iterator after another."""

    def about(self) -> tuple[str, dict[str, str]]:
        """The node where it runs, and what its libraries are."""
        return _ray().util.get_node_ip_address(), facts()

    def work(self, ticket: Ticket, parcel: list[Any], others: dict[str, Any]) -> None:
        """Make batches for an iterator until that is closed.

        Args:
            ticket: Where its stand-in is.
            parcel: A list with a reference to the pickled dataset and functions.  Ray would fetch a plain reference
                first, and keep the value until this returns.
            others: The other arguments.
        """
        from shmloader.far.maker import serve

        ray, (reference,) = _ray(), parcel
        node = ray.util.get_node_ip_address()
        serve(ticket, lambda: {**ray.cloudpickle.loads(ray.get(reference)), **others}, node)


class _Actor:
    """An actor, and a reference to what its last work returned, which is there when that has ended."""

    def __init__(self, process: Any) -> None:
        self.process = process
        self.ends: Any = None


class Workers(FarWorkers, ClosedByWith):
    """Far workers: actors on the nodes of a Ray cluster that make batches for a loader on this one.

    For the argument `far_workers` of `DataLoader`.  Batches are those of as many local workers, bit for bit.  They
    travel over one TCP connection for each actor, straight into the loader's slots.  Actors start at the first
    `iter()`, and live until `close()`, the end of a `with` block, or the end of this process.

    Args:
        num: How many actors.
        num_cpus: How many CPUs each one takes of its node (default 1).
        resources: Other resources of Ray's that each one takes (default None).
        runtime_env: Ray's runtime environment for the actors (default None: the job's).
        scheduling_strategy: Ray's, for example "SPREAD" (default None: Ray's default).
        start_timeout: How many seconds the first `iter()` waits for actors (default 30).  If the cluster has no room
            for all of them, a RuntimeWarning says how many there are, and the others begin when there is room.
        heartbeat: After how many seconds without a sign of life an actor that makes a batch counts as dead (default
            30).
        in_flight: How many batches an actor is asked for at once, if the loader has that many open (default 2), see
            `shmloader/far/stand_in.py`.  With 2 or more, it makes one while another one travels.  If it dies, as many
            are made again, and with `schedule="steal"` a slow actor may hold as many that others could have made
            sooner.
        address: The address of this machine to which actors connect (default None: the one that Ray uses).

    Raises:
        ValueError: An argument is out of its range.

    Example:
        >>> ray.init()
        >>> far = shmloader.ray.Workers(num=32)
        >>> loader = shmloader.DataLoader(dataset, batch_size=256, num_workers=4, far_workers=far, schedule="steal")
    """

    def __init__(
        self,
        num: int,
        *,
        num_cpus: float = 1.0,
        resources: dict[str, float] | None = None,
        runtime_env: dict[str, Any] | None = None,
        scheduling_strategy: Any = None,
        start_timeout: float = 30.0,
        heartbeat: float = 30.0,
        in_flight: int = 2,
        address: str | None = None,
    ) -> None:
        for name, count, what in (("num", num, "actors"), ("in_flight", in_flight, "batches")):
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise ValueError(
                    f"{name} should be a positive integer of {what}, but got {name}={count!r}. Give 1 or more."
                )
        for name, value, least in (("num_cpus", num_cpus, 0), ("start_timeout", start_timeout, 0)):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value < least:
                raise ValueError(f"{name} should be a number of {least} or more, but got {name}={value!r}.")
        if isinstance(heartbeat, bool) or not isinstance(heartbeat, (int, float)) or heartbeat < 3:
            raise ValueError(
                f"heartbeat should be a number of seconds, 3 or more, but got heartbeat={heartbeat!r}. An actor gives "
                "a sign of life each second."
            )
        if address is not None and (not isinstance(address, str) or address in ("", "0.0.0.0", "::")):
            raise ValueError(
                f"address should be one at which other machines reach this one, but got address={address!r}. Give "
                "such an address, or leave it out to use the address that Ray uses."
            )
        self.num = num
        self.num_cpus = num_cpus
        self.resources = resources
        self.runtime_env = runtime_env
        self.scheduling_strategy = scheduling_strategy
        self.start_timeout = start_timeout
        self.heartbeat = float(heartbeat)
        self.in_flight = in_flight
        self._address = address
        self._idle: list[_Actor] | None = None  # actors that no iterator uses
        self._busy: list[list[_Actor]] = []
        self._parcel: tuple[bytes, Any] | None = None  # what was put into the object store last, by its hash
        self._unheard: list[Any] = []  # what actors will say of themselves
        self._lock = threading.RLock()

    def address(self) -> str:
        ray = _ray()
        if not ray.is_initialized():
            raise RuntimeError(
                "far_workers are actors of Ray, and Ray does not run in this process. Call ray.init() before the "
                "loader is iterated."
            )
        if ray.util.client.ray.is_connected():
            raise RuntimeError(
                "far_workers need a trainer inside the cluster, and this process is a client of it (ray://), which "
                "actors cannot connect to. Run it on a node of the cluster, for example by `ray job submit`."
            )
        return self._address or str(ray.util.get_node_ip_address())

    def begin(self, tickets: list[Ticket], arguments: dict[str, Any]) -> FarSession:
        with self._lock:
            actors, self._idle = self._idle or self._make(), None
            self._busy.append(actors)
            try:
                reference = self._put({name: arguments[name] for name in HEAVY})
                others = {name: value for name, value in arguments.items() if name not in HEAVY}
                for actor, ticket in zip(actors, tickets, strict=True):
                    actor.ends = actor.process.work.remote(ticket, [reference], others)
            except BaseException:  # no session will release them, and the next iter() would wait for their CPUs
                self.release(actors)
                raise
        return _Session(self, actors)

    def _make(self) -> list[_Actor]:
        ray = _ray()
        options = {
            "num_cpus": self.num_cpus,
            "max_restarts": -1,
            "max_task_retries": -1,
            "resources": self.resources,
            "runtime_env": self.runtime_env,
            "scheduling_strategy": self.scheduling_strategy,
        }
        kind = ray.remote(FarWorker).options(**{name: value for name, value in options.items() if value is not None})
        actors = [_Actor(kind.remote()) for _ in range(self.num)]
        # now, because an actor at work answers nothing
        self._unheard += [actor.process.about.remote() for actor in actors]
        return actors

    def _put(self, heavy: dict[str, Any]) -> Any:
        """Arguments in the object store, put there again only if they have changed."""
        ray = _ray()
        try:
            pickled = ray.cloudpickle.dumps(heavy)
        except Exception as error:
            raise TypeError(
                f"far_workers are sent {type(heavy['dataset']).__name__}, its collate_fn and its worker_init_fn, and "
                f"one of them cannot be pickled: {error}. Have the dataset open files and connections in __getitem__, "
                "or in worker_init_fn."
            ) from error
        digest = hashlib.blake2b(pickled).digest()
        if self._parcel is None or self._parcel[0] != digest:
            self._parcel = digest, ray.put(pickled)
        return self._parcel[1]

    def compare(self) -> None:
        """Wait a limited time for actors that are being started.  Warn if some are missing, or have other libraries."""
        if not self._unheard:
            return
        ray = _ray()
        there, self._unheard = ray.wait(self._unheard, num_returns=len(self._unheard), timeout=self.start_timeout)
        if self._unheard:
            warn_once(
                f"{self.num - len(self._unheard)} of {self.num} far workers have started within {self.start_timeout:g} "
                f"seconds. The cluster has "
                f"{ray.cluster_resources().get('CPU', 0):g} CPUs, of which {ray.available_resources().get('CPU', 0):g} "
                f"are free, and each far worker takes {self.num_cpus:g}. The others begin when there is room for them. "
                "Until then, their share waits with schedule='round_robin', and others make it with "
                "schedule='steal'. Give a smaller num, or add nodes."
            )
        here = facts()
        for node, theirs in ray.get(there):
            if unlike := differences(here, theirs):
                warn_once(
                    f"a far worker on {node} has other libraries than this process: {unlike}. Its batches may differ "
                    "in some bits. Install the same ones on all machines (runtime_env does that)."
                )

    def release(self, actors: list[_Actor]) -> None:
        """An iterator does not need these actors any more."""
        with self._lock:
            if actors not in self._busy:
                return
            self._busy.remove(actors)
            if self._idle is None and not self._busy:  # otherwise another iterator's may wait for their CPUs
                self._idle = actors
            else:
                _kill(actors)

    def close(self) -> None:
        """End the actors.  Iterators that use them raise, or wait for others, as if the actors had died.

        Close the loaders first.  Iterating again starts new actors.  A second call does nothing.
        """
        with self._lock:
            for actors in [*self._busy, self._idle or []]:
                if actors:
                    _kill(actors)
            self._busy, self._idle, self._parcel, self._unheard = [], None, None, []

    def __repr__(self) -> str:
        return f"Workers(num={self.num})"

    # Actors belong to the process that started them.  A copy is the object itself, because frameworks copy loaders, and
    # one that was sent to another process starts actors of its own there.

    def __copy__(self) -> Workers:
        return self

    def __deepcopy__(self, memo: Any) -> Workers:
        return self

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name != "_lock"}
        return {**state, "_idle": None, "_busy": [], "_parcel": None, "_unheard": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.RLock()


class _Session(FarSession):
    """The actors of one iterator.

    Args:
        workers: Whose they are.
        actors: They.
    """

    def __init__(self, workers: Workers, actors: list[_Actor]) -> None:
        self._workers = workers
        self._actors = actors

    def wait(self) -> None:
        self._workers.compare()

    def place(self, far: int) -> str:
        if far >= len(self._actors):
            return ""
        actor = self._actors[far].process._ray_actor_id.hex()
        return f"It is the Ray actor {actor}. `ray list actors` says where that runs, and how it ended."

    def close(self) -> None:
        actors, self._actors = self._actors, []
        if actors and not sys.is_finalizing():
            self._workers.release(actors)


def _kill(actors: list[_Actor]) -> None:
    """End actors; those that are still about to end their work have a moment, or Ray would print that it failed."""
    ray = _ray()
    if not actors or not ray.is_initialized():
        return
    work = [actor.ends for actor in actors if actor.ends is not None]
    with contextlib.suppress(Exception):
        ray.wait(work, num_returns=max(1, len(work)), timeout=_ENDED)
    for actor in actors:
        with contextlib.suppress(Exception):  # it is gone already
            ray.kill(actor.process)


def facts() -> dict[str, str]:
    """The facts of this machine and process that decide about a batch's bits."""
    found = {"Python": platform.python_version(), "machine": platform.machine()}
    found["CPU capability"] = torch.backends.cpu.get_cpu_capability()
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def differences(ours: dict[str, str], theirs: dict[str, str]) -> str:
    """How two machines differ, for people; empty if they do not."""
    return ", ".join(
        f"{name} {ours.get(name, 'unknown')} here and {theirs.get(name, 'unknown')} there"
        for name in sorted({*ours, *theirs})
        if ours.get(name) != theirs.get(name)
    )
