"""Runs a program in a child process of its own, with a deadline: a hang, a crash or a leak is an outcome too."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import pickle
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import forkserver, resource_tracker
from typing import Any

from tests.attack.log import Log, caught

DEADLINE = 120.0  # seconds: a program takes milliseconds, and the machine may be busy
PATIENCE = 30.0  # seconds in which workers must have ended when the program has


@dataclass
class Outcome:
    """What became of a program."""

    events: list[tuple[Any, ...]] = field(default_factory=list)
    errors: str = ""  # on the error output
    status: int | None = None  # of the child; None: it did not end before the deadline
    left: str = ""  # what it left behind


User = Callable[[Log], None]
Plant = Callable[[], None]


def run(user: User, keep: int = 0, deadline: float = DEADLINE, plant: Plant | None = None) -> Outcome:
    """Run it.

    Args:
        user: The user's function: source.py makes it from a program.
        keep: How many of the latest batches the user holds on to.
        deadline: Seconds after which it hangs.
        plant: What is called in the child first: a fault that is planted there.
    """
    return started(user, keep, deadline, plant)()


def started(user: User, keep: int = 0, deadline: float = DEADLINE, plant: Plant | None = None) -> Callable[[], Outcome]:
    """The same while the caller does something else; returns what waits for the outcome.  Call that once."""
    events, errors = os.memfd_create("events"), os.memfd_create("errors")
    gc.collect()  # of what came since the last program
    gc.freeze()  # the child's collections pass over what the parent has, which takes 50 times as long as the program
    child = os.fork()
    if child == 0:
        _be_child(user, keep, deadline, plant, events, errors)
    watched = os.pidfd_open(child)
    hangs = time.monotonic() + deadline

    def outcome() -> Outcome:
        try:
            status, left = _wait_for(child, watched, hangs)
            return Outcome(_read_events(events), _text(errors), status, left)
        finally:
            os.close(watched)
            os.close(events)
            os.close(errors)

    return outcome


def _be_child(user: User, keep: int, deadline: float, plant: Plant | None, events: int, errors: int) -> None:
    status = 70
    try:
        os.setsid()
        os.dup2(errors, 2)
        faulthandler.enable(file=errors)
        faulthandler.dump_traceback_later(max(deadline - 2, 1), file=errors)
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        stream = os.fdopen(os.dup(events), "wb")

        def note(event: Any) -> None:
            if os.getpid() == owner:
                pickle.dump(event, stream)
                stream.flush()

        owner = os.getpid()
        if plant is not None:
            plant()
        gc.collect()
        before = _descriptors(), threading.active_count()
        log = Log(keep, note)
        caught(log, lambda: user(log))
        gc.collect()
        _end_fork_server()
        if left := _left(*before):
            note(("left", left))
        note(("done",))
        sys.stderr.flush()
        status = 0
    finally:
        os._exit(status)


def _end_fork_server() -> None:
    """End the processes that multiprocessing starts once for all workers, and keeps."""
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    if str(server._forkserver_pid) in _children():  # otherwise it is the parent's
        server._stop()
        resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]


def _descriptors() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
    return {each for each in found if "/proc/" not in each}


def _left(descriptors: set[str], threads: int) -> str:
    """What is left behind in this process, once it had time to go."""
    end = time.monotonic() + PATIENCE
    while True:
        found = [f"descriptor {name.partition(' ')[2]}" for name in sorted(_descriptors() - descriptors)]
        found += ["thread"] * (threading.active_count() - threads)
        found += ["process"] * len(_children())
        if not found or time.monotonic() > end:
            return ", ".join(found)
        time.sleep(0.002)


def _children() -> list[str]:
    found: list[str] = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/children") as children:
            found += children.read().split()
    return found


def _wait_for(child: int, watched: int, hangs: float) -> tuple[int | None, str]:
    """The child's status, and whether processes of its session are left."""
    ready, _, _ = select.select([watched], [], [], max(hangs - time.monotonic(), 0))
    if not ready:
        os.kill(child, signal.SIGKILL)
    ended = os.waitid(os.P_PIDFD, watched, os.WEXITED)
    assert ended is not None
    status = None if not ready else ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    end = time.monotonic() + PATIENCE
    while _lives(child):
        if time.monotonic() > end:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            return status, "process of its session"
        time.sleep(0.002)
    return status, ""


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return not _all_zombies(group)


def _all_zombies(group: int) -> bool:
    """Whether the processes of a group have ended and nobody has waited for them yet."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as stat:
                state, _, its_group = stat.read().rpartition(")")[2].split()[:3]
                if int(its_group) == group and state != "Z":
                    return False
    return True


def _read_events(descriptor: int) -> list[tuple[Any, ...]]:
    events: list[tuple[Any, ...]] = []
    with open(os.dup(descriptor), "rb") as stream:
        stream.seek(0)
        with contextlib.suppress(EOFError, pickle.UnpicklingError):
            while True:
                event = pickle.load(stream)
                if event[0] == "resumed":
                    del events[event[1] :]
                else:
                    events.append(event)
    return events


def _text(descriptor: int) -> str:
    with open(os.dup(descriptor), errors="replace") as stream:
        stream.seek(0)
        return stream.read()
