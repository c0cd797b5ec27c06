"""The rings of this machine that this user may see, and the processes that hold them.

NOTE [ Looking on ]

A ring's memory has no name.  But each process that uses it has a descriptor of it, and another process of the same user
may open that again: /proc/PID/fd/N.  It is opened for reading, and its words are mapped read-only (onlooker.pyx), so
nothing here can change a ring.  An onlooker takes no part in the protocol: the trainer and its workers do not know it.

A worker's Python stack is another matter: a signal makes the worker write it (NOTE [ Call stacks ]) into memory of
which it holds a descriptor.  That interrupts the worker for some microseconds; system calls continue.  A worker that is
stopped, or in the kernel, does not answer.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, field

from shmloader.core.onlooker import Onlooker, OtherVersion
from shmloader.far.door import NODE, node_in
from shmloader.system.call_stacks import stacks_in
from shmloader.system.processes import files_of, processes_of, status_of

SEGMENT = re.compile(r"/dev/shm/.* \(deleted\)$|/memfd:shmloader \(deleted\)$")
STACKS = "/memfd:shmloader_stacks (deleted)"
FAR = f"/memfd:{NODE} (deleted)"

Key = tuple[int, int]  # the device and the inode number of a file


@dataclass
class Held:
    """A ring, and the processes that have it open.

    Attributes:
        key: The key of its memory.
        ring: Its words.
        holders: Their pids here, by the pids that they have in their own namespace.
        nodes: The machines of far workers, by the pids here of their stand-ins.
    """

    key: Key
    ring: Onlooker
    holders: dict[int, int] = field(default_factory=dict)
    nodes: dict[int, str] = field(default_factory=dict)

    def pid_of(self, inner: int) -> int:
        """The pid here of a process that the ring names; 0 if it is not known.

        A process that has started since is not among the holders yet.  If the trainer's pid is the same in both
        namespaces, so is this one's.
        """
        trainer = self.ring.trainer
        return self.holders.get(inner, inner if self.holders.get(trainer) == trainer else 0)

    @property
    def trainer(self) -> int:
        """The trainer's pid here; 0 if it no longer held the ring."""
        return self.holders.get(self.ring.trainer, 0)


class Rings:
    """Finds rings again and again, and maps each ring once.

    Args:
        pid: The trainer whose rings to find; None: all trainers of this user, or of all users for root.
    """

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self._known: dict[Key, Onlooker] = {}
        self.others: set[Key] = set()  # rings of another version of shmloader, which cannot be read

    def find(self) -> list[Held]:
        """The rings that exist now, the oldest first."""
        held: dict[Key, Held] = {}
        seen: set[Key] = set()
        nodes: dict[int, str] = {}
        self.others = set()
        for pid in processes_of(None if os.geteuid() == 0 else os.geteuid()):
            for number, target in files_of(pid).items():
                if SEGMENT.match(target):
                    self._note(pid, f"/proc/{pid}/fd/{number}", held, seen)
                elif target == FAR:
                    nodes[pid] = _node(f"/proc/{pid}/fd/{number}")
        for one in held.values():
            one.nodes = {pid: nodes[pid] for pid in one.holders.values() if nodes.get(pid)}
        self._known = {key: ring for key, ring in self._known.items() if key in seen}
        mine = [one for one in held.values() if not one.ring.closed and one.trainer]
        asked_for = [one for one in mine if self._pid in (None, one.trainer)]
        return sorted(asked_for, key=lambda one: one.ring.started_at)

    def _note(self, pid: int, path: str, held: dict[Key, Held], seen: set[Key]) -> None:
        with contextlib.suppress(OSError):  # the process is gone, or may not be inspected
            found = os.stat(path)
            key = found.st_dev, found.st_ino
            seen.add(key)
            try:
                ring = self._known.get(key) or _open(path)  # a file may become a ring later, while it is being made
            except OtherVersion:
                self.others.add(key)
                return
            if ring is not None:
                self._known[key] = ring
                held.setdefault(key, Held(key, ring)).holders[inner_pid(pid)] = pid


def _node(path: str) -> str:
    """The machine that a stand-in names; empty if it names none."""
    with contextlib.suppress(OSError):  # the process is gone, or may not be inspected
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return node_in(fd)
        finally:
            os.close(fd)
    return ""


def _open(path: str) -> Onlooker | None:
    """The ring in a file; None if the file has none.

    Raises:
        OtherVersion: The ring is of another version of shmloader.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe in /dev/shm, without a writer, would block
    try:
        return Onlooker(fd)
    except OtherVersion:
        raise
    except ValueError:
        return None
    finally:
        os.close(fd)


def inner_pid(pid: int) -> int:
    """The pid by which a process knows itself, which is another one in a container."""
    words = status_of(pid, "NSpid").split()
    return int(words[-1]) if words else pid


def stack_of(pid: int) -> str:
    """The stacks of all threads of a worker, or why there are none."""
    opened: dict[Key, int] = {}  # the memory that it may write to, one for each ring that it was forked beside
    try:
        for number, target in files_of(pid).items():
            if target == STACKS:
                with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
                    fd = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
                    found = os.fstat(fd)
                    if opened.setdefault((found.st_dev, found.st_ino), fd) != fd:
                        os.close(fd)
        return stacks_in(pid, list(opened.values()))
    finally:
        for fd in opened.values():
            os.close(fd)
