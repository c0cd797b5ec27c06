"""A template process: it imports torch and the user's script, unpickles the dataset once, and forks workers.

NOTE [ Template ]

    1. A spawned worker imports torch, which takes a second or two, and unpickles the dataset.  With `template=True` one
       process does both, and forks each worker, first ones and replacements alike.  It serves all loaders over one
       dataset, and lives as long as one of them or the dataset (trainer/templates.py).  So a later epoch, or a later
       loader, only forks.
    2. The trainer spawns it (running.py), whatever the start method is.  So the trainer is its parent, and the kernel
       ends it when the trainer ends.  (Under forkserver, the server would be its parent.  Only a thread could then
       notice that the trainer has ended, and the template must not fork while it has a second thread.) In the same way
       the template is the parent of its workers, and they end when it does (parents_death.py).
    3. The trainer waits for a worker's end on a pidfd.  The template opens the pidfd before it reaps the worker,
       because later the pid may be another process's.  It sends the pidfd through the worker's channel, a pair of
       sockets, and later the exit code.
    4. If the trainer closes a channel, nobody wants its worker, and the template kills the worker.  So a trainer that
       was interrupted while it waited for an answer leaves no worker behind.
    5. In each epoch the trainer compares a hash of the dataset with the hash of what the template has unpickled
       (digest.py).  If they differ, the template drops the old dataset and unpickles the new one.  In two cases the
       trainer makes another template instead (of_dataset.py).  One is that a worker with the old dataset may still have
       to be replaced.  The other is that loaders over one dataset take turns and have different collate functions.
       The hash covers all that the template unpickles, also the collate function, so it would change at each turn.
    6. A process that is forked beside threads may wait forever for a lock that one of them held.  So the template
       counts its threads (threads.py), also before each fork.  If there are any, the trainer starts workers without a
       template.
    7. The template ignores signals to its group, whatever `workers_outlive_signals` is, because its workers decide
       themselves whether they end.  They are forked with these signals blocked, until their own handlers are in place.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import sys
import traceback
from multiprocessing import util
from typing import Any, NoReturn

import torch

from shmloader.core.process import outlive_signals
from shmloader.system.group_signals import GROUP
from shmloader.system.parents_death import begin
from shmloader.template import messages, threads
from shmloader.template.messages import FORK, FORKED, LOAD, REFUSED, THREADS, UNKNOWN, Request

_held: dict[str, Any] = {}  # the unpickled objects that all workers get
_given: list[int] = []  # the descriptors that came with the pickle


class Given:
    """Stands for a descriptor in a pickle, by its place among those that came along."""

    def __init__(self, place: int) -> None:
        self._place = place

    def detach(self) -> int:
        """The descriptor.  The caller closes it."""
        return os.dup(_given[self._place])


def arguments_with(others: dict[str, Any]) -> dict[str, Any]:
    """In a worker: all its arguments, some of which the template holds.

    The worker keeps them until it ends, as a forked one does: freeing a million paths would copy all their pages.
    """
    return {**_held, **others}


def serve(channel: socket.socket, trainer: int) -> NoReturn:
    """Run as the template process of a loader, until the trainer ends it.

    Args:
        channel: To the trainer.
        trainer: Its pid.
    """
    outlive_signals(trainer)
    for needed in ("shmloader.worker.loop", "shmloader.template.forked"):
        importlib.import_module(needed)
    torch.set_num_threads(1)  # as in workers; otherwise a dataset that computes while it is unpickled starts threads
    _Template(channel, trainer).serve()


class _Template:
    def __init__(self, channel: socket.socket, trainer: int) -> None:
        self._channel = channel
        self._trainer = trainer
        self._trainers_death = os.pidfd_open(trainer)
        self._poll = select.poll()
        self._poll.register(channel.fileno(), select.POLLIN)
        self._workers: dict[int, tuple[int, int]] = {}  # a worker's pid and channel, by the descriptor of its death
        self._deaths: dict[int, int] = {}  # the descriptor of a worker's death, by its channel

    def serve(self) -> NoReturn:
        while True:
            fd, _ = self._poll.poll()[0]  # one at a time, because handling it may close others and open new ones
            if fd in self._workers:
                self._bury(fd)
            elif fd in self._deaths:
                self._kill(fd)
            else:
                self._obey()

    def _kill(self, channel: int) -> None:
        """Kill a worker, because the trainer has closed its channel."""
        self._poll.unregister(channel)
        with contextlib.suppress(ProcessLookupError):  # it has ended, and will be reaped
            signal.pidfd_send_signal(self._deaths[channel], signal.SIGKILL)

    def _obey(self) -> None:
        try:
            request = messages.receive_request(self._channel)
        except ConnectionError:
            request = None
        if request is None:
            os._exit(0)
        if request.lost:
            self._refuse(request)
        elif request.kind == FORK:
            self._fork(request)
        else:
            messages.send_text(self._channel, _load(request))

    def _refuse(self, request: Request) -> None:
        """Answer that this process has no descriptor left for those that were sent along."""
        if request.kind == LOAD:
            messages.send_text(self._channel, f"failed\n{os.strerror(errno.EMFILE)}")
        elif len(request.descriptors) > 1:  # otherwise the channel itself was lost, and its end is the answer
            messages.answer(request.descriptors[1], REFUSED, errno.EMFILE)
        messages.close_all(request.descriptors)

    def _fork(self, request: Request) -> None:
        body, channel, *given = request.descriptors
        try:
            if messages.is_closed(channel):  # the trainer was interrupted, and its ring may be gone
                return
            if threads.count() > 1:
                messages.answer(channel, THREADS, 0)
                return
            util._flush_std_streams()  # type: ignore[attr-defined]  # otherwise each worker writes it once more
            before = signal.pthread_sigmask(signal.SIG_BLOCK, GROUP if request.outlives else ())
            template = os.getpid()
            try:
                pid = os.fork()
                if not pid:
                    os.close(channel)
                    self._be_worker(request.outlives, template, body, given)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            channel = self._watch(pid, channel)
        except OSError as error:
            messages.answer(channel, REFUSED, error.errno or 0)
        finally:
            messages.close_all([fd for fd in (body, channel, *given) if fd >= 0])

    def _watch(self, pid: int, channel: int) -> int:
        """Report a worker to the trainer.  Returns -1 in place of the channel, which is kept open from here on."""
        try:
            death = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self._workers[death] = pid, channel
        self._deaths[channel] = death
        self._poll.register(death, select.POLLIN)
        self._poll.register(channel, 0)  # poll() reports it when the other end is closed
        messages.answer(channel, FORKED, pid, death)
        return -1

    def _bury(self, death: int) -> None:
        """Reap a worker that has ended, and report its exit code."""
        pid, channel = self._workers.pop(death)
        del self._deaths[channel]
        try:
            _, status = os.waitpid(pid, 0)
            messages.send_code(channel, os.waitstatus_to_exitcode(status))
        except ChildProcessError:  # a handler of the dataset's reaped it, or SIGCHLD is ignored
            messages.send_code(channel, UNKNOWN)
        self._poll.unregister(death)
        messages.close_all([death])
        with contextlib.suppress(KeyError):  # the trainer had closed the channel
            self._poll.unregister(channel)
        messages.close_all([channel])

    def _be_worker(self, outlives: bool, template: int, body: int, given: list[int]) -> NoReturn:
        """In the child: run as a process that multiprocessing has spawned, and end."""
        code = 1
        try:
            begin(self._trainer, outlives, template)
            messages.close_all([*self._workers, *self._deaths])
            self._channel.close()
            _given[:] = given
            with open(body, "rb", closefd=False) as file:
                pickle.load(file).follow()
                process = pickle.load(file)
            _given.clear()
            messages.close_all([body, *given])
            code = process._bootstrap(parent_sentinel=self._trainers_death)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            util._flush_std_streams()  # type: ignore[attr-defined]
            os._exit(code)


def _load(request: Request) -> str:
    """Unpickle the objects that all workers get.  Returns a word, and details on further lines."""
    body, *given = request.descriptors
    gc.unfreeze()
    if _held:
        _held.clear()
        gc.collect()
    collecting = gc.isenabled()
    gc.disable()  # otherwise it walks again and again through a list of a million tuples while the list grows
    _given[:] = given
    try:
        with open(body, "rb", closefd=False) as file:
            pickle.load(file).enter()
            _held.update(pickle.load(file))
    except BaseException:  # sys.exit() too, because the trainer has to report where it was called
        _held.clear()
        return f"failed\n{traceback.format_exc()}"
    finally:
        _given.clear()
        messages.close_all(request.descriptors)
        if collecting:
            gc.enable()
    started = threads.end()
    if started:
        return "\n".join(["threads", *started])
    if torch.cuda.is_initialized():
        return "cuda"
    gc.freeze()  # these objects stay, and a collection in a worker must not copy their pages
    return "loaded"
