"""A loader's template, in the trainer: given the dataset where that has changed, and asked for workers.

See NOTE [ Template ] in server.py.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
import weakref
from typing import Any

import torch

from shmloader.system.opened_by_path import file_of
from shmloader.system.signals import let_through
from shmloader.system.spawn_arguments import Pages, Parcel
from shmloader.template import messages
from shmloader.template.forked import SHARED, Popen, Spawning, TemplateProcess, Threaded, write_prepared
from shmloader.template.messages import LOAD
from shmloader.template.running import Running

OUT_OF_MEMORY = (
    "Linux kills processes (SIGKILL) where the machine or the container runs out of memory (see `dmesg`): "
    "have the dataset hold less."
)


class Refused(Exception):
    """The template cannot fork workers; the text says why."""


class Template:
    """What forks the workers of one loader.

    The process is started when it is first needed, and again when it is gone.  One that is not wanted any more, because
    the dataset could not be unpickled there, lives on as long as workers that it has forked: it is their parent.
    """

    def __init__(self) -> None:
        self.refusal: str | None = None  # why no further worker is to be forked
        self._running: Running | None = None
        self._digest: bytes | None = None  # of what the process has unpickled
        self._for: weakref.ref[Parcel] | None = None  # what was pickled last
        self._owner = os.getpid()
        self._lock = threading.RLock()  # two threads may iterate over one loader

    @property
    def is_mine(self) -> bool:
        """Whether this process made it, and not the one that this was forked from."""
        return self._owner == os.getpid()

    def fork(self, worker: TemplateProcess, outlives: bool) -> Popen:
        """Have a worker forked, by a process that has unpickled what the worker is to be given.

        Args:
            worker: The worker.
            outlives: Whether it goes on when its group is sent a signal.

        Raises:
            Refused: It cannot be forked, and may be spawned.
            RuntimeError: The template ended, or the dataset could not be unpickled there.
            OSError: No descriptor, process or memory is left.
        """
        with self._lock:
            try:
                return self._fork(worker, outlives)
            except (EOFError, ConnectionError):
                self._running = None  # it was killed a moment ago
            return self._fork(worker, outlives)

    def _fork(self, worker: TemplateProcess, outlives: bool) -> Popen:
        with let_through():  # to import torch, and to unpickle the dataset, takes long
            running = self._having(worker.parcel)
        try:
            return Popen(worker, running, outlives)
        except Threaded:
            raise Refused("threads were started there after the dataset was unpickled") from None

    def _having(self, parcel: Parcel) -> Running:
        """A process that has unpickled what all workers are given, as that is now."""
        if why := _why_not():
            raise Refused(why)
        running = self._running if self._running is not None and self._running.lives else None
        if running is not None and self._for is not None and self._for() is parcel:
            return running
        shared = {name: parcel[name] for name in SHARED}
        if running is None or self._digest is None or _digest_of(shared) != self._digest:
            self._running = None  # an exception below leaves no process that may still be unpickling
            self._digest = self._for = None
            running = self._load(running, shared)
        self._for = weakref.ref(parcel)
        return running

    def _load(self, running: Running | None, shared: dict[str, Any]) -> Running:
        """Have a process unpickle this: the one that runs, or another one."""
        if running is not None:
            self._digest = _load(running, shared)
        else:
            running = Running()
            try:
                self._digest = _load(running, shared)
            except BaseException:
                running.end()
                raise
        self._running = running
        return running

    def end(self) -> None:
        """End the process, and with it the workers that it has forked.  Called again, it does nothing."""
        if not self.is_mine:
            return
        running = self._running
        if running is not None:
            running.kill()  # whoever has the lock may be waiting for an answer
        with self._lock:
            running, self._running = self._running, None
            if running is not None:
                running.end()


def _load(running: Running, shared: dict[str, Any]) -> bytes:
    """Have a template process unpickle this.  Returns a hash of it when the process has."""
    body = os.memfd_create("shmloader_template", os.MFD_CLOEXEC)
    try:
        spawning, file = Spawning(), _Hashed(body)
        write_prepared(file)
        file.begin()
        spawning.pickle(shared, file)
        if file.counts_its_reader:
            raise Refused("the dataset has tensors on a GPU, and CUDA does not survive a fork")
        digest = _with_files(file.hash, spawning)
        os.lseek(body, 0, os.SEEK_SET)
        with contextlib.suppress(ConnectionError):  # it has ended, and there is no answer
            messages.send_request(running.channel, LOAD, True, [body, *spawning.descriptors])
    finally:
        os.close(body)
    word, _, rest = messages.receive_text(running.channel).partition("\n")
    if word == "threads":
        names = " and ".join(rest.split("\n"))
        raise Refused(f"threads were started by {names}, and what is forked beside threads may hang")
    if word == "cuda":
        raise Refused("unpickling the dataset initialises CUDA, which does not survive a fork")
    if word == "failed":
        raise RuntimeError(f"the template process, which forks workers, could not unpickle the dataset:\n{rest}")
    if word != "loaded":
        end = running.how_it_ended() or "the template process, which forks workers, does not answer"
        raise RuntimeError(f"{end}, while it imported the script or unpickled the dataset. {OUT_OF_MEMORY}")
    return digest


def _why_not() -> str:
    """Why this process can have no template; empty if it can."""
    strategy = torch.multiprocessing.get_sharing_strategy()
    if strategy != "file_descriptor":
        return f"torch shares tensors by {strategy!r}, and would keep what was pickled to be compared"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        if error.errno == errno.ENOSYS:
            return "this kernel has no pidfd_open, which Linux has had since 5.3"
        raise
    return ""


class _Hashed(Pages):
    """A file for a pickler, with a hash of what was written since begin()."""

    def begin(self) -> None:
        self.hash = hashlib.sha256()

    def write(self, written: Any) -> int:
        if hasattr(self, "hash"):
            self.hash.update(written)
        return super().write(written)


class _Hash:
    """The same, of what is not kept."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def write(self, written: Any) -> int:
        self.hash.update(written)
        return len(written)


def _digest_of(shared: dict[str, Any]) -> bytes:
    spawning, file = Spawning(), _Hash()
    spawning.pickle(shared, file)
    return _with_files(file.hash, spawning)


def _with_files(hashed: Any, spawning: Spawning) -> bytes:
    """The hash of a pickle and of the files that it names, such as those of shared tensors."""
    for fd in spawning.descriptors:
        hashed.update(repr(file_of(fd)).encode())
    return bytes(hashed.digest())
