"""What watches a trial's process: starts it, torments it, waits for its end, and finds what it leaves.
It decides after how many silent seconds a trial hangs, and how long its processes may outlive it.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import os
import pathlib
import random
import re
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.chaos.inside import Case, Inside, children
from tests.scripts import session_members, wait_until_gone

SILENCE = 30.0  # seconds without a word and without an end: it hangs
GRACE = 20.0  # seconds that what a process started may outlive it; a worker that is importing torch needs some
STACKS = signal.SIGRTMAX - 9  # has a trial's processes write their stacks, when they hang
# What Python and its modules say of an error that had nowhere to go.
NOISE = re.compile(
    r"Fatal Python error|Exception ignored|leaked|not a ring of version|Assertion.*failed|Error in atexit"
)


@dataclasses.dataclass
class Outcome:
    """The result of a trial."""

    events: list[list[Any]]
    status: int  # as os.waitstatus_to_exitcode has it
    hangs: bool
    processes: list[str]
    names: list[str]
    err: str
    seconds: float

    def of(self, what: str) -> list[list[Any]]:
        return [words[1:] for words in self.events if words[0] == what]

    def within(self, what: str, epoch: int) -> int:
        """How often an event was printed in an epoch."""
        at, count = -1, 0
        for word, *_ in self.events:
            at += word == "epoch"
            count += word == what and at == epoch
        return count

    def epochs(self) -> list[list[Any]]:
        """What each epoch gave: digests, and [kind, text] of errors in their places."""
        found: list[list[Any]] = []
        for what, *words in self.events:
            if what == "epoch":
                found.append([])
            elif what == "batch":
                found[-1].append(words[0])
            elif what == "error" and found:
                found[-1].append(words)
        return found


class Outside:
    """A trial's process, seen from the one that forked it.

    Args:
        body: run in that process, which then ends as Python ends.
        kind, ours, case: of Inside.
        random: of what is done to it.
    """

    def __init__(
        self, body: Callable[[Inside], None], kind: Any, ours: bool, case: Case, random: random.Random
    ) -> None:
        self.random = random
        self._has_server = case.get("start") == "forkserver"  # which forks the workers
        self.events: list[list[Any]] = []
        self._began = self._heard = time.monotonic()
        self._names = set(os.listdir("/dev/shm"))
        self._err = os.memfd_create("chaos_err", os.MFD_CLOEXEC)
        self._pipe, write = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            os.setsid()
            os.close(self._pipe)
            for fd in (1, 2):
                os.dup2(self._err, fd)
            _take_all_signals()
            faulthandler.register(STACKS, all_threads=True, chain=False)
            body(Inside(kind, ours, case, write))
            sys.exit()  # up to the top, and out as any program: no frame above catches or cleans up
        os.close(write)
        os.set_blocking(self._pipe, False)
        self._end = os.pidfd_open(self.pid)
        self._half = b""

    # ------------------------------------------------------------------------------------------------ while it runs

    def listen(self, seconds: float) -> bool:
        """Read the output for this many seconds; False once the process has ended."""
        until = time.monotonic() + seconds
        while True:
            left = max(0.0, until - time.monotonic())
            ready = {fd for fd, _ in _poll((self._pipe, self._end), left)}
            if self._pipe in ready:
                self._read()
            elif self._end in ready:
                self._read()
                return False
            elif not left:
                return True

    def has_printed(self, *words: Any) -> bool:
        self._read()
        return list(words) in self.events

    def until(self, *what: str, times: int = 1) -> bool:
        """Read until one of these lines came this often; False if the process ended, or hangs, before that."""
        while sum(words[0] in what for words in self.events) < times:
            if time.monotonic() - self._heard > SILENCE or not self._listen_to_one():
                return sum(words[0] in what for words in self.events) >= times
        return True

    def _listen_to_one(self) -> bool:
        ready = {fd for fd, _ in _poll((self._pipe, self._end), 1.0)}
        self._read()
        return self._end not in ready

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._pipe, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                return
            self._heard = time.monotonic()
            *lines, self._half = (self._half + data).split(b"\n")
            self.events += [json.loads(line) for line in lines]

    def pause(self, most: float) -> float:
        """Let up to so many seconds pass; short ones are as likely as long ones."""
        seconds = self.random.random() ** 2 * most
        time.sleep(seconds)
        return seconds

    def workers(self) -> list[int]:
        """Living workers of the process, oldest first."""
        if not self._has_server:
            return sorted(children(self.pid))
        return sorted(pid for server in children(self.pid) for pid in children(server))

    def kill(self, pid: int, number: int) -> bool:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    def interrupt(self) -> bool:
        return self.kill(self.pid, signal.SIGINT)

    # ---------------------------------------------------------------------------------------------------- the end

    def finish(self) -> Outcome:
        """Wait for the end, and look for what is left."""
        hangs = False
        while self.listen(min(1.0, SILENCE)):
            if time.monotonic() - self._heard > SILENCE:
                hangs = True
                self._tell_stacks()
                self.kill(self.pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        left = [] if hangs else wait_until_gone(self.pid, GRACE)
        processes = [_description(pid) for pid in left]
        for pid in session_members(self.pid):
            self.kill(pid, signal.SIGKILL)
        wait_until_gone(self.pid, GRACE)
        names = sorted(set(os.listdir("/dev/shm")) - self._names)
        for name in names:
            pathlib.Path("/dev/shm", name).unlink(missing_ok=True)
        err = os.pread(self._err, 1 << 20, 0).decode(errors="replace")
        for fd in (self._err, self._pipe, self._end):
            os.close(fd)
        return Outcome(self.events, status, hangs, processes, names, err, time.monotonic() - self._began)

    def _tell_stacks(self) -> None:
        os.write(self._err, b"\n--- it hangs; the stacks of its processes:\n")
        for pid in session_members(self.pid):
            os.write(self._err, f"\n--- {_description(pid)}\n".encode())
            if _catches(pid, STACKS):
                self.kill(pid, STACKS)
                time.sleep(0.3)


def _take_all_signals() -> None:
    """Take signals as a program that a terminal starts.  What nohup or a script's & starts ignores some of them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _poll(fds: tuple[int, ...], seconds: float) -> list[tuple[int, int]]:
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [(fd, event) for fd, event in poll.poll(seconds * 1000) if event & select.POLLIN]


def _status(pid: int) -> dict[str, str]:
    try:
        lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _catches(pid: int, number: int) -> bool:
    return bool(int(_status(pid).get("SigCgt", "0"), 16) >> (number - 1) & 1)


def _description(pid: int) -> str:
    status = _status(pid)
    return f"pid {pid}, state {status.get('State', 'gone')}, threads {status.get('Threads', '?')}"
