"""A loader's template process, in the trainer: started, given the dataset, asked for workers, ended.

See NOTE [ Template ] in server.py.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
import weakref
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any

import torch

from shmloader._multiprocessing import close_pipes
from shmloader.system.group_signals import blocked_at_start
from shmloader.system.opened_by_path import file_of
from shmloader.system.parents_death import FollowingName
from shmloader.system.signals import held, held_in_del, let_through
from shmloader.system.spawn_arguments import Pages, Parcel
from shmloader.template import messages, threads
from shmloader.template.forked import SHARED, Popen, Spawning, TemplateProcess, Threaded, write_prepared
from shmloader.template.messages import LOAD
from shmloader.template.server import serve

OUT_OF_MEMORY = (
    "Linux kills processes (SIGKILL) where the machine or the container runs out of memory (see `dmesg`): "
    "have the dataset hold less."
)
_GONE = 5.0  # seconds after which a killed process is waited for no longer: the kernel does not let go of it


class Refused(Exception):
    """The template cannot fork workers; the text says why."""


class _Name(FollowingName):
    """The template's name, which it unpickles before it imports the user's script.

    What FollowingName does, it does; then threads that modules start are counted.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        made, arguments = super().__reduce__()
        if made is str:
            return made, arguments
        following, known = arguments
        counting = "__import__('runpy').run_path(threads)['begin']()"
        return made, (f"{counting} or {following}", {**known, "threads": threads.__file__})


class Template:
    """The template process of one loader.

    It is started when it is first needed, and again when it is gone.  It ends with this object, and with the process
    that made it.
    """

    def __init__(self) -> None:
        self._process: BaseProcess | None = None
        self._channel: socket.socket | None = None
        self._digest: bytes | None = None  # of what it has unpickled
        self._for: weakref.ref[Parcel] | None = None  # what was pickled last
        self._owner = os.getpid()
        self.refusal: str | None = None  # why it cannot fork workers of this loader
        self._lock = threading.RLock()  # two threads may iterate over one loader
        _enlist(self)

    def fork(self, worker: TemplateProcess, outlives: bool) -> Popen:
        """Have a worker forked, from a template that has unpickled what it is to be given.

        Raises:
            Refused: It cannot be forked, and may be spawned.
            RuntimeError: The template ended, or the dataset could not be unpickled there.
            OSError: No descriptor, process or memory is left.
        """
        with self._lock:
            try:
                return self._fork(worker, outlives)
            except (EOFError, ConnectionError):  # it was just killed, and what was looked at before did not show that
                self.end()
            try:
                return self._fork(worker, outlives)
            except (EOFError, ConnectionError):
                raise RuntimeError(self._ended("while it was asked for a worker")) from None

    def _fork(self, worker: TemplateProcess, outlives: bool) -> Popen:
        with let_through():  # to import torch, and to unpickle the dataset, takes long
            self._have(worker.parcel)
        process, channel = self._process, self._channel
        assert process is not None
        assert channel is not None
        try:
            return Popen(worker, channel, outlives, lambda: _end_of(process))
        except Threaded:
            self.end()
            raise Refused("threads were started there after the dataset was unpickled") from None

    def _have(self, parcel: Parcel) -> None:
        """Have the template hold what all workers are given, as it is now."""
        if why := _why_not():
            raise Refused(why)
        if self._lives() and self._for is not None and self._for() is parcel:
            return
        shared = {name: parcel[name] for name in SHARED}
        try:
            if not self._lives():
                self.end()
                self._start()
            elif _digest_of(shared) == self._digest:
                self._for = weakref.ref(parcel)
                return
            self._load(shared)
            self._for = weakref.ref(parcel)
        except BaseException:
            self.end()
            raise

    def _lives(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def _start(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        spawning: Any = multiprocessing.get_context("spawn")
        with theirs, held():
            process = spawning.Process(target=serve, args=(theirs, os.getpid()), daemon=True)
            name = process.name
            process.name = _Name(name, True)
            try:
                with blocked_at_start(spawning):
                    self._process = process
                    process.start()
            finally:
                process.name = name

    def _load(self, shared: dict[str, Any]) -> None:
        """Have the template unpickle this.  It answers when it has."""
        assert self._channel is not None
        self._digest = None
        body = os.memfd_create("shmloader_template", os.MFD_CLOEXEC)
        try:
            spawning, file = Spawning(), _Hashed(body)
            write_prepared(file)
            file.begin()
            spawning.pickle(shared, file)
            if file.counts_its_reader:
                raise Refused("the dataset has tensors on a GPU, and CUDA does not survive a fork")
            digest = file.digest(spawning)
            os.lseek(body, 0, os.SEEK_SET)
            with contextlib.suppress(ConnectionError):  # it has ended, and there is no answer
                messages.send_request(self._channel, LOAD, True, [body, *spawning.descriptors])
        finally:
            os.close(body)
        said, _, rest = messages.receive_text(self._channel).partition("\n")
        if said == "threads":
            names = " and ".join(rest.split("\n"))
            raise Refused(f"threads were started by {names}, and what is forked beside threads may hang")
        if said == "cuda":
            raise Refused("unpickling the dataset initialises CUDA, which does not survive a fork")
        if said == "failed":
            raise RuntimeError(f"the template process, which forks workers, could not unpickle the dataset:\n{rest}")
        if said != "loaded":
            raise RuntimeError(self._ended("while it imported the script or unpickled the dataset"))
        self._digest = digest

    def _ended(self, when: str) -> str:
        """What there is to say of a template that has ended."""
        end = _end_of(self._process)
        return f"{end or 'the template process, which forks workers, does not answer'}, {when}. {OUT_OF_MEMORY}"

    @property
    def is_mine(self) -> bool:
        """Whether this process made it, and not the one that this was forked from."""
        return self._owner == os.getpid()

    def kill(self) -> None:
        """Kill the template process.  Whoever waits for an answer of it gets none."""
        process = self._process
        if self.is_mine and process is not None and process.pid is not None:
            process.kill()

    def end(self) -> None:
        """End the template process, and with it the workers that it has forked.  Called again, it does nothing."""
        if not self.is_mine:
            return
        self.kill()  # it has nothing to put in order
        with held(), self._lock:
            self._digest = self._for = None
            self.kill()  # another one, where it was being started meanwhile
            if self._channel is not None:
                self._channel.close()
            process, self._process = self._process, None
            if process is not None and process.pid is not None:
                process.join(_GONE)
                if not process.is_alive():
                    close_pipes(process)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            with held_in_del(self):
                self.end()


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


def _end_of(process: BaseProcess | None) -> str:
    """How a template process ended; empty while it lives."""
    if process is None:
        return ""
    process.join(_GONE)
    code = process.exitcode
    if code is None:
        return ""
    how = f"is killed by signal: {signal.strsignal(-code)}" if code < 0 else f"ended with exit code {code}"
    return f"the template process (pid {process.pid}), which forks workers, {how}"


class _Hashed(Pages):
    """A file for a pickler that knows a hash of what was written since begin()."""

    def begin(self) -> None:
        self._hash = hashlib.sha256()

    def write(self, written: Any) -> int:
        if hasattr(self, "_hash"):
            self._hash.update(written)
        return super().write(written)

    def digest(self, spawning: Spawning) -> bytes:
        return _with_files(self._hash, spawning)


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


_templates: dict[int, weakref.WeakSet[Template]] = {}  # by process: those that it made


def _enlist(template: Template) -> None:
    """Have it ended at the interpreter's exit, where multiprocessing would wait for one that was stopped."""
    if os.getpid() not in _templates:
        Finalize(None, _end_all, exitpriority=0)
        _templates[os.getpid()] = weakref.WeakSet()
    _templates[os.getpid()].add(template)


def _end_all() -> None:
    for template in list(_templates.get(os.getpid(), ())):
        with contextlib.suppress(Exception):
            template.kill()  # and not end(): another thread may be waiting for its answer
