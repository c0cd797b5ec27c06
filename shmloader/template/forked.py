"""A worker that a template process has forked, as a process of multiprocessing's."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import sys
from collections.abc import Callable
from multiprocessing import context, process, util
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from shmloader.system.signals import let_through
from shmloader.system.spawn_arguments import Pages, Parcel, Pickler
from shmloader.template import messages
from shmloader.template.messages import FORK, FORKED, REFUSED, UNKNOWN
from shmloader.template.server import Given, arguments_with
from shmloader.template.surroundings import Surroundings

if TYPE_CHECKING:
    from shmloader.template.running import Running

SHARED = ("dataset", "collate_fn", "init_fn")  # what the template unpickles; the rest may be another in each epoch
ANSWERED = 2.0  # seconds that a fork may take; an interrupt meanwhile would leave a worker that nobody knows
REAPED = 0.5  # seconds that the template has to reap a worker, and to say how it ended


class Spawning:
    """What multiprocessing asks, while something is pickled for another process, which descriptors go along."""

    DupFd = Given

    def __init__(self) -> None:
        self.descriptors: list[int] = []
        self._kept: list[Any] = []  # otherwise a tensor that was made to be pickled is gone, and its descriptor closed

    def duplicate_for_child(self, fd: int) -> int:
        """Have a descriptor go along.  Returns its place."""
        self.descriptors.append(fd)
        return len(self.descriptors) - 1

    def refer(self, parcel: Parcel) -> tuple[Any, ...]:
        """What stands for the arguments of a worker: those that the template does not hold."""
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
    """Write what makes a process like this one, apart from what it is given."""
    file.write(pickle.dumps(Surroundings(dict(os.environ), _path(), _folder())))


def _folder() -> str | None:
    """The folder that it is in; None where that was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _path() -> list[str]:
    """The folders of modules, as multiprocessing gives them to what it spawns."""
    return [os.path.abspath(process.ORIGINAL_DIR) if folder == "" else folder for folder in sys.path]  # type: ignore


class TemplateProcess(BaseProcess):
    """A process that `start` of its context starts.

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
        """The last of its arguments, before it is started: what all workers are given alike."""
        return self._args[-1]  # type: ignore[attr-defined]

    @property
    def death(self) -> int | None:
        """A descriptor that becomes readable when it ends; None where this process can open one by itself."""
        popen = self._popen  # type: ignore[attr-defined]
        return popen.sentinel if isinstance(popen, Popen) else None

    @property
    def end_of_template(self) -> str:
        """How the template process ended, where that has ended this one; otherwise empty."""
        popen = self._popen  # type: ignore[attr-defined]
        return popen.template.how_it_ended() if isinstance(popen, Popen) and popen.returncode == UNKNOWN else ""

    @staticmethod
    def _Popen(worker: Any) -> Any:
        return worker._start(worker)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_start"}


class Popen:
    """The trainer's hold on a worker.

    Args:
        worker: The process.
        template: The process that forks it.
        outlives: Whether the worker goes on when its group is sent a signal.

    Raises:
        Threaded: The template has threads by now, and forks nothing.
        EOFError: The template is gone.
        OSError: The worker could not be forked.
    """

    method = "template"

    def __init__(self, worker: TemplateProcess, template: Running, outlives: bool) -> None:
        util._flush_std_streams()  # type: ignore[attr-defined]
        self.returncode: int | None = None
        self.template = template
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, ours:
            body = os.memfd_create("shmloader_worker", os.MFD_CLOEXEC)
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
                with let_through():  # the template was stopped, or has no core: Ctrl-C may end the wait
                    _readable(ours.fileno(), None)
            how, self.pid, self.sentinel = messages.receive_answer(ours.fileno())
            if how != FORKED:
                raise OSError(self.pid, os.strerror(self.pid)) if how == REFUSED else Threaded
            self._channel = ours.detach()
        self.finalizer: Any = util.Finalize(self, util.close_fds, (self.sentinel, self._channel))  # type: ignore
        template.workers.add(self)

    @property
    def runs(self) -> bool:
        """Whether its process is there."""
        return self.returncode is None and not _readable(self.sentinel, 0)

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """The exit code; None while it lives."""
        return self.wait(0 if flag == os.WNOHANG else None)

    def wait(self, timeout: float | None = None) -> int | None:
        """The same, after it has been waited for so many seconds at most; None: for ever."""
        if self.returncode is None and _readable(self.sentinel, timeout):
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
        """Close what the trainer has of it, once it has ended."""
        self.finalizer()


class Threaded(Exception):
    """The template has threads now, and forks nothing."""


def _readable(fd: int, timeout: float | None) -> bool:
    """Whether a descriptor is readable, or its other end closed, within so many seconds; None: however long it takes"""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout is None else max(0.0, timeout) * 1000))
