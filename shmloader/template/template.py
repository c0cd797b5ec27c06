"""A template process and what it has unpickled, as the trainer sees it.  NOTE [ Template ] in server.py.
It compares that with the loader's dataset, limits the unpickling by `timeout`, and refuses to fork beside threads or
with CUDA.

Running (running.py) starts the process.  In it, _Template._fork (server.py) forks a worker on request.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import weakref
from typing import Any

import torch

from shmloader.system import nameless
from shmloader.system.by_identity import ByIdentity
from shmloader.system.sandboxes import is_refusal
from shmloader.system.spawn_arguments import Pages, Parcel
from shmloader.template import messages
from shmloader.template.digest import Digests
from shmloader.template.forked import SHARED, Popen, Spawning, TemplateProcess, write_prepared
from shmloader.template.messages import LOAD
from shmloader.template.running import Running

OUT_OF_MEMORY = (
    "Linux kills processes (SIGKILL) when the machine or the container runs out of memory (see `dmesg`): "
    "have the dataset hold less."
)


class Refused(Exception):
    """The template cannot fork workers; the text is the reason."""


class Template:
    """A process that forks workers, and the objects that it holds for them.

    The process is started by the first give(), and again if it is gone.  If the dataset could not be unpickled there,
    the process is not used again, but it lives as long as the workers that it has forked, because it is their parent.

    Attributes:
        users: The loaders whose last workers it has forked.
        refusal: Why the last objects can have no template; empty if they can.
    """

    def __init__(self) -> None:
        self.users: ByIdentity[bool] = ByIdentity()
        self.refusal = ""
        self._functions: tuple[int, ...] = ()  # the ids of the functions of the last give()
        self._running: Running | None = None
        self._loading: Running | None = None  # the process that is unpickling now
        self._digests = Digests()
        self._digest: bytes | None = None  # of the objects that the process has unpickled
        self._parcels: list[weakref.ref[Parcel]] = []  # those for which it may fork processes

    def serves(self, parcel: Parcel) -> bool:
        """Whether it has forked a process for this parcel, and can fork another."""
        return self._lives() and any(known() is parcel for known in self._parcels)

    def holds(self, parcel: Parcel) -> bool:
        """Whether it has unpickled, or refused, this parcel's objects as they are now."""
        known = self._digest is not None and bool(self._lives() or self.refusal)
        return known and self._digest == self._digests.take(_shared(parcel))

    def may_be_given(self, parcel: Parcel, loader: Any) -> bool:
        """Whether it may replace its objects by this parcel's.

        It may not if a worker that starts later must see the same dataset as the others, nor if two loaders with
        different functions would make it unpickle in each epoch.
        """
        if self._lives() and any(known is not parcel and known.is_open for known in self._living_parcels()):
            return False
        return self._functions == _functions(parcel) or all(user is loader for user, _ in self.users.items())

    def _living_parcels(self) -> list[Parcel]:
        self._parcels = [known for known in self._parcels if known() is not None]
        return [parcel for known in self._parcels if (parcel := known()) is not None]

    def _lives(self) -> bool:
        return self._running is not None and self._running.lives

    def give(self, parcel: Parcel, timeout: float) -> None:
        """Have the process unpickle this parcel's objects, in place of those that it holds.

        Args:
            parcel: The objects that all workers of a loader get.
            timeout: Seconds that it may take; 0: any number.

        Raises:
            Refused: The process cannot fork workers with these objects.
            RuntimeError: The process ended, or did not answer in time, or the dataset could not be unpickled there.
        """
        running = self._running if self._lives() else None
        self._running = self._digest = None  # after an exception below, a process that still unpickles is not used
        self._parcels, self.refusal = [], ""
        self._functions = _functions(parcel)
        if running is None or not self._give(running, parcel, timeout):
            running = Running()
            try:
                if not self._give(running, parcel, timeout):
                    raise RuntimeError(_ended(running))
            except BaseException:
                running.end()
                raise
        self._running = running

    def _give(self, running: Running, parcel: Parcel, timeout: float) -> bool:
        """Send them to a process; False if it has ended."""
        self._loading = running
        try:
            digest = self._digests.take(_shared(parcel))  # while the process imports torch
            loaded = _load(running, _shared(parcel), timeout)
        except Refused as why:
            self.refusal, self._digest = str(why), digest
            raise
        finally:
            self._loading = None
        if loaded:
            self._digest = digest
        return loaded

    def fork(self, worker: TemplateProcess, outlives: bool) -> Popen:
        """Fork a worker with the objects of the last give().

        Args:
            worker: The worker.
            outlives: Whether the worker ignores a signal that is sent to its group.

        Raises:
            Threaded: The process now has threads, so it forks nothing.
            EOFError, ConnectionError: It was killed a moment ago.
            OSError: No descriptor, process or memory is left.
        """
        running = self._running
        if running is None:
            raise EOFError("it has ended")
        if not any(known() is worker.parcel for known in self._parcels):
            self._parcels.append(weakref.ref(worker.parcel))
        try:
            return Popen(worker, running, outlives)
        except (EOFError, ConnectionError):
            self._running = None
            raise

    def kill(self) -> None:
        """Kill the process if it has no worker left.  A thread that waits for an answer gets none."""
        for running in (self._running, self._loading):
            if running is not None and not running.has_workers:
                running.kill()

    def end(self) -> None:
        """End the process, once it has no worker left.  A second call does nothing."""
        running, self._running = self._running, None
        if running is not None and not running.has_workers:
            running.end()


def _shared(parcel: Parcel) -> dict[str, Any]:
    return {name: parcel[name] for name in SHARED}


def _functions(parcel: Parcel) -> tuple[int, ...]:
    return tuple(id(parcel[name]) for name in SHARED if name not in ("dataset", "numbers"))


def _load(running: Running, shared: dict[str, Any], timeout: float) -> bool:
    """Have a template process unpickle these objects; False if the process has ended."""
    body = nameless.memory("shmloader_template")
    try:
        spawning, file = Spawning(), Pages(body)
        write_prepared(file)
        spawning.pickle(shared, file)
        if file.counts_its_reader:
            raise Refused("the dataset has tensors on a GPU, and CUDA does not survive a fork")
        os.lseek(body, 0, os.SEEK_SET)
        with contextlib.suppress(ConnectionError):  # it has ended, so no answer comes
            messages.send_request(running.channel, LOAD, True, [body, *spawning.descriptors])
    except OSError as error:
        if error.errno != errno.ETOOMANYREFS:
            raise
        raise Refused(
            f"its dataset has {len(spawning.descriptors)} descriptors for tensors, and Linux sends one user no more "
            "than `ulimit -n` at a time (shmloader.freeze makes it one descriptor)"
        ) from None
    finally:
        os.close(body)
    word, _, rest = _answer(running, timeout).partition("\n")
    if word == "threads":
        names = " and ".join(rest.split("\n"))
        raise Refused(f"threads were started by {names}, and what is forked beside threads may hang")
    if word == "cuda":
        raise Refused("unpickling the dataset initialises CUDA, which does not survive a fork")
    if word == "failed":
        raise RuntimeError(f"the template process, which forks workers, could not unpickle the dataset:\n{rest}")
    return word == "loaded"


def _ended(running: Running) -> str:
    if running.was_closed:
        return (
            "The loader was closed, by another thread or a signal's handler, while its template process imported the "
            "script or unpickled the dataset. Iterate over it again."
        )
    end = running.how_it_ended() or "the template process, which forks workers, does not answer"
    what = f"{end}, while it imported the script or unpickled the dataset."
    return f"{what} {OUT_OF_MEMORY}" if running.was_killed else what


def _answer(running: Running, timeout: float) -> str:
    """The process's answer.

    Raises:
        RuntimeError: It did not come within `timeout` seconds.
    """
    poll = select.poll()
    poll.register(running.channel, select.POLLIN)
    if not poll.poll(timeout * 1000 or None):
        raise RuntimeError(
            f"DataLoader timed out after {timeout} seconds: the template process (pid {running.pid}), which forks "
            "workers, has not yet imported the script and unpickled the dataset. Raise timeout if that takes longer."
        )
    return messages.receive_text(running.channel)


def why_not() -> str:
    """Why this process can have no template; empty if it can."""
    strategy = torch.multiprocessing.get_sharing_strategy()
    if strategy != "file_descriptor":
        return f"torch shares tensors by {strategy!r}, and would keep what was pickled to be compared"
    if not os.path.isdir("/proc/self/task"):
        return "there is no /proc, which shows the threads of a process"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        if not is_refusal(error):
            raise
        return f"pidfd_open, which Linux has had since 5.3, is refused here ({error.strerror})"
    return ""
