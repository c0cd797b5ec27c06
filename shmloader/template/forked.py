"""A worker that a template process forks, as a process object of multiprocessing's."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from multiprocessing import context, process, util
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from shmloader.system import nameless
from shmloader.system.signals import let_through
from shmloader.system.spawn_arguments import Pages, Parcel, Pickler
from shmloader.template import messages
from shmloader.template.messages import FORK, FORKED, REFUSED, UNKNOWN
from shmloader.template.server import Given, arguments_with
from shmloader.template.surroundings import Surroundings

if TYPE_CHECKING:
    from shmloader.template.running import Running

# The template unpickles these.  The rest may change from epoch to epoch.
SHARED = ("dataset", "collate_fn", "init_fn", "numbers")
ANSWERED = 2.0  # seconds without interrupts while a fork runs; an interrupt would leave a worker that nobody knows
REAPED = 0.5  # seconds that the template may take to reap a worker and to report how it ended


class Spawning:
    """Tells multiprocessing, while something is pickled for another process, which descriptors go along."""

    DupFd = Given

    def __init__(self) -> None:
        self.descriptors: list[int] = []
        self._kept: list[Any] = []  # otherwise a tensor that pickling made would be freed, and its descriptor closed

    def duplicate_for_child(self, fd: int) -> int:
        """Send a descriptor along.  Returns its place."""
        self.descriptors.append(fd)
        return len(self.descriptors) - 1

    def refer(self, parcel: Parcel) -> tuple[Any, ...]:
        """The arguments of a worker that the template does not hold, as the pickle names them."""
        return arguments_with, ({name: value for name, value in parcel.items() if name not in SHARED},)

    def pickle(self, value: Any, file: Any, pickler: Callable[[Any], Any] = Pickler) -> None:
        """Pickle a value for the other process."""
        before = context.get_spawning_popen()
        context.set_spawning_popen(self)  # type: ignore[arg-type]
        try:
            self._kept.append(pickler(file))
            self._kept[-1].dump(value)
        finally:
            context.set_spawning_popen(before)


def write_prepared(file: Pages) -> None:
    """Write multiprocessing's description of this process, without the objects for the worker."""
    file.write(pickle.dumps(Surroundings(dict(os.environ), _path(), _folder())))


def _folder() -> str | None:
    """The current folder; None if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _path() -> list[str]:
    """The folders of modules, as multiprocessing passes them to the processes that it spawns."""
    return [os.path.abspath(process.ORIGINAL_DIR) if folder == "" else folder for folder in sys.path]  # type: ignore


class TemplateProcess(BaseProcess):
    """A process object whose `start` goes through its context.

    Args:
        start: Starts it, and returns a Popen.
        method: The start method that multiprocessing shows in the process.
    """

    def __init__(self, start: Callable[[TemplateProcess], Any], method: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._start_method = method
        self._start = start

    @property
    def parcel(self) -> Any:
        """The last of its arguments before it is started: the objects that all workers get."""
        return self._args[-1]  # type: ignore[attr-defined]

    @property
    def death(self) -> int | None:
        """A descriptor that becomes readable when the process ends; None if this process can open one itself."""
        popen = self._popen  # type: ignore[attr-defined]
        return popen.sentinel if isinstance(popen, Popen) else None

    @property
    def end_of_template(self) -> str:
        """How the template process ended, if that ended this worker; otherwise empty."""
        popen = self._popen  # type: ignore[attr-defined]
        return popen.template.how_it_ended() if isinstance(popen, Popen) and popen.returncode == UNKNOWN else ""

    @staticmethod
    def _Popen(worker: Any) -> Any:
        return worker._start(worker)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_start"}


class Popen:
    """The trainer's handle for a worker.

    Args:
        worker: The process.
        template: The process that forks it.
        outlives: Whether the worker ignores a signal that is sent to its group.

    Raises:
        Threaded: The template now has threads, so it forks nothing.
        EOFError: The template is gone.
        OSError: The worker could not be forked.
    """

    method = "template"

    def __init__(self, worker: TemplateProcess, template: Running, outlives: bool) -> None:
        util._flush_std_streams()  # type: ignore[attr-defined]
        self.returncode: int | None = None
        # Each start of a process, in any thread, asks all of them: multiprocessing.process._cleanup().  An RLock,
        # because the handler of SIGCHLD asks too.
        self._asking = threading.RLock()
        self.template = template
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, ours:
            body = nameless.memory("shmloader_worker")
            try:
                spawning, file = Spawning(), Pages(body)
                write_prepared(file)
                spawning.pickle(worker, file)
                os.lseek(body, 0, os.SEEK_SET)
                messages.send_request(template.channel, FORK, outlives, [body, theirs.fileno(), *spawning.descriptors])
            finally:
                os.close(body)
            theirs.close()
            if not _readable(ours.fileno(), ANSWERED):
                with let_through():  # the template may be stopped or get no core, and Ctrl-C must end the wait
                    _readable(ours.fileno(), None)
            how, self.pid, self.sentinel = messages.receive_answer(ours.fileno())
            if how != FORKED:
                raise OSError(self.pid, os.strerror(self.pid)) if how == REFUSED else Threaded
            self._channel = ours.detach()
        self.finalizer: Any = util.Finalize(self, util.close_fds, (self.sentinel, self._channel))  # type: ignore
        template.workers.add(self)

    @property
    def runs(self) -> bool:
        """Whether the process exists."""
        return self.returncode is None and not _readable(self.sentinel, 0)

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """The exit code; None while it lives."""
        return self.wait(0 if flag == os.WNOHANG else None)

    def wait(self, timeout: float | None = None) -> int | None:
        """The exit code, after waiting at most `timeout` seconds; None: without a limit."""
        if self.returncode is None and _readable(self.sentinel, timeout):
            with self._asking:
                if self.returncode is None:  # otherwise the descriptors may be closed
                    code = messages.receive_code(self._channel) if _readable(self._channel, REAPED) else None
                    self.returncode = UNKNOWN if code is None else code
        return self.returncode

    def _send(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.sentinel, number)

    def interrupt(self) -> None:
        """Send SIGINT."""
        self._send(signal.SIGINT)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._send(signal.SIGKILL)

    def close(self) -> None:
        """Close the trainer's descriptors of it, once it has ended."""
        with self._asking:
            self.finalizer()


class Threaded(Exception):
    """The template now has threads, so it forks nothing."""


def _readable(fd: int, timeout: float | None) -> bool:
    """Whether a descriptor is readable, or its other end closed, within `timeout` seconds; None: without a limit."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout is None else max(0.0, timeout) * 1000))
