"""A running template process, as the trainer sees it: how it is started and killed, and how it ended.

What runs in the process, and forks workers there, is server.py.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import weakref
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any

from shmloader._multiprocessing import close_pipes
from shmloader.core.late_signals import in_del
from shmloader.system.group_signals import blocked_at_start
from shmloader.system.parents_death import FollowingName
from shmloader.system.signals import held, held_in_del
from shmloader.template import threads
from shmloader.template.server import serve

if TYPE_CHECKING:
    from shmloader.template.forked import Popen

_GONE = 5.0  # seconds to wait for a killed process; after that the kernel seems not to let go of it


class _Name(FollowingName):
    """The template's name, which it unpickles before it imports the user's script.

    It does what FollowingName does, and then begins to count the threads that modules start.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        made, arguments = super().__reduce__()
        if made is str:
            return made, arguments
        following, known = arguments
        counting = "__import__('runpy').run_path(threads)['begin']()"
        return made, (f"{counting} or {following}", {**known, "threads": threads.__file__})


class Running:
    """A template process.  It is killed when nothing refers to this object: neither a Template nor a worker.

    Attributes:
        channel: To the process.
        workers: The workers that it has forked.
        was_closed: Whether kill() or end() was called.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._ended = self.was_closed = False
        self.workers: weakref.WeakSet[Popen] = weakref.WeakSet()
        spawning: Any = multiprocessing.get_context("spawn")
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = spawning.Process(target=serve, args=(theirs, os.getpid()), daemon=True)
        _enlist(self)
        name = self._process.name
        self._process.name = _Name(name, True)
        with theirs, held():
            try:
                with blocked_at_start(spawning):
                    self._process.start()
            finally:
                self._process.name = name

    @property
    def lives(self) -> bool:
        """Whether the process exists."""
        return not self._ended and bool(self._process.is_alive())

    @property
    def has_workers(self) -> bool:
        """Whether any worker that it has forked still exists."""
        return any(worker.runs for worker in list(self.workers))

    @property
    def pid(self) -> int | None:
        """The pid of the process."""
        pid: int | None = self._process.pid
        return pid

    def kill(self) -> None:
        """Kill the process, and with it the workers that it has forked.  A thread that awaits an answer gets none."""
        if self._owner == os.getpid() and self._process.pid is not None:
            self.was_closed = True
            self._process.kill()  # it has nothing to clean up

    def end(self) -> None:
        """Kill the process, and release this process's resources for it.  A second call does nothing."""
        if self._ended or self._owner != os.getpid():
            return
        with held():
            self.kill()
            self.channel.close()
            if self._process.pid is not None:
                self._process.join(_GONE)
                if not self._process.is_alive():
                    close_pipes(self._process)
            self._ended = True

    def how_it_ended(self) -> str:
        """How the process ended; empty while it lives."""
        if not self._ended:
            self._process.join(_GONE)
        code = self._process.exitcode
        if code is None:
            return ""
        how = f"is killed by signal: {signal.strsignal(-code)}" if code < 0 else f"ended with exit code {code}"
        return f"the template process (pid {self._process.pid}), which forks workers, {how}"

    @property
    def was_killed(self) -> bool:
        """Whether it has ended by SIGKILL."""
        return bool(self._process.exitcode == -signal.SIGKILL)

    @in_del
    def __del__(self, is_finalizing: Any = sys.is_finalizing) -> None:
        if not is_finalizing() and hasattr(self, "_process"):
            with held_in_del(self):
                self.end()


_running: dict[int, weakref.WeakSet[Running]] = {}  # by the pid of the process that made them


def _enlist(template: Running) -> None:
    """Kill it at the interpreter's exit, because multiprocessing would wait for a template that was stopped."""
    if os.getpid() not in _running:
        Finalize(None, _kill_all, exitpriority=0)
        _running[os.getpid()] = weakref.WeakSet()
    _running[os.getpid()].add(template)


def _kill_all() -> None:
    for template in list(_running.get(os.getpid(), ())):
        template.kill()  # and not end(): another thread may be waiting for its answer
