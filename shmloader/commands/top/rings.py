"""The rings of this machine that this user may see, and who holds them.

NOTE [ Looking on ]

A ring's memory has no name, but each process that uses it has a descriptor of it, which a process of the same user may
open once more: /proc/PID/fd/N.  It is opened for reading, and its words are mapped for reading alone (onlooker.pyx),
so nothing here can change a ring.  Who looks on takes part in nothing: the trainer and its workers do not know of it.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, field

from shmloader.core.onlooker import Onlooker, OtherVersion
from shmloader.system.processes import files_of, inner_pid, processes_of

SEGMENT = re.compile(r"/dev/shm/.* \(deleted\)$|/memfd:shmloader \(deleted\)$")
STACKS = "/memfd:shmloader_stacks (deleted)"

Key = tuple[int, int]  # of a file: its device and its number


@dataclass
class Held:
    """A ring, and the processes that have it open.

    Attributes:
        key: Of its memory.
        ring: Its words.
        holders: Their pids here, by the pids by which they know themselves.
    """

    key: Key
    ring: Onlooker
    holders: dict[int, int] = field(default_factory=dict)

    def pid_of(self, inner: int) -> int:
        """The pid here of a process that the ring names; 0 if it is not known.

        One that has begun since is not among the holders yet.  Where the trainer has one pid for all, so has it.
        """
        trainer = self.ring.trainer
        return self.holders.get(inner, inner if self.holders.get(trainer) == trainer else 0)

    @property
    def trainer(self) -> int:
        """The trainer's pid here; 0 if it did not hold the ring any more."""
        return self.holders.get(self.ring.trainer, 0)


class Rings:
    """Finds rings, again and again; one that was found is mapped once.

    Args:
        pid: Of the trainer whose rings are meant; None: those of all trainers of this user; of all users, for root.
    """

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self._known: dict[Key, Onlooker] = {}
        self.others: set[Key] = set()  # rings of another shmloader's, which cannot be read

    def find(self) -> list[Held]:
        """The rings that there are now, the oldest first."""
        held: dict[Key, Held] = {}
        seen: set[Key] = set()
        self.others = set()
        for pid in processes_of(None if os.geteuid() == 0 else os.geteuid()):
            for number, target in files_of(pid).items():
                if SEGMENT.match(target):
                    self._note(pid, f"/proc/{pid}/fd/{number}", held, seen)
        self._known = {key: ring for key, ring in self._known.items() if key in seen}
        mine = [one for one in held.values() if not one.ring.closed and self._is_asked_for(one)]
        return sorted(mine, key=lambda one: one.ring.started_at)

    def _note(self, pid: int, path: str, held: dict[Key, Held], seen: set[Key]) -> None:
        with contextlib.suppress(OSError):  # it is gone, or may not be seen
            found = os.stat(path)
            key = found.st_dev, found.st_ino
            seen.add(key)
            try:
                ring = self._known.get(key) or _open(path)  # what is none may be one later: it is being made
            except OtherVersion:
                self.others.add(key)
                return
            if ring is not None:
                self._known[key] = ring
                held.setdefault(key, Held(key, ring)).holders[inner_pid(pid)] = pid

    def _is_asked_for(self, held: Held) -> bool:
        trainer = held.trainer
        return bool(trainer) and (self._pid is None or trainer == self._pid)


def _open(path: str) -> Onlooker | None:
    """The ring in a file; None if there is none in it.

    Raises:
        OtherVersion: There is one of another shmloader's.
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
