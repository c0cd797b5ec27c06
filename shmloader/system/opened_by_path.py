"""Descriptors of the trainer that a worker opens by their path in /proc, because the fork server takes only so many.

Each shared tensor of a dataset takes a descriptor.  The fork server gives a process some 250, and multiprocessing
refuses more with "too many fds".  But another process of the same user can open a file in memory, as shared tensors
are, as /proc/PID/fd/NUMBER.  So a worker is given only the descriptors of pipes and sockets.
"""

from __future__ import annotations

import fcntl
import os
import stat
from typing import NamedTuple

File = tuple[int, int]  # device, inode


class Trainers(NamedTuple):
    """A descriptor of the trainer that the worker opens by path."""

    fd: int
    file: File
    flags: int  # how it is open


class Descriptors:
    """Stands in for the list of a worker's inherited descriptors, while it unpickles the objects that name them.

    A descriptor is opened on access, and the caller closes it.

    Args:
        pid: The trainer.
        first: The place of the first descriptor that the pickle names.
        named: For each of its places: how many descriptors were given before it, or one of the trainer's.
        inherited: The descriptors that the worker was given.
    """

    def __init__(self, pid: int, first: int, named: list[int | Trainers], inherited: list[int]) -> None:
        self._pid = pid
        self._first = first
        self._named = named
        self._inherited = inherited

    def __getitem__(self, place: int) -> int:
        if place < self._first:
            return self._inherited[place]
        found = self._named[place - self._first]
        return self._open(found) if isinstance(found, Trainers) else self._inherited[self._first + found]

    def _open(self, theirs: Trainers) -> int:
        path = f"/proc/{self._pid}/fd/{theirs.fd}"
        try:
            fd = os.open(path, theirs.flags | os.O_CLOEXEC)
        except OSError as error:
            raise OSError(error.errno, _refused(path, error.strerror)) from None
        try:
            if file_of(fd) != theirs.file:
                raise ValueError(_refused(path, "that descriptor's number belongs to another file now"))
        except BaseException:
            os.close(fd)
            raise
        return fd


def by_path(descriptors: list[int]) -> tuple[list[int | Trainers], list[int]]:
    """Which of these descriptors another process can open by path, and which it must be given.

    Returns:
        For each place, what stands there (`Descriptors`), and the descriptors to give.
    """
    named: list[int | Trainers] = []
    given: list[int] = []
    for fd in descriptors:
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode):
            flags = fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND)
            named.append(Trainers(fd, (found.st_dev, found.st_ino), flags))
        else:
            named.append(len(given))
            given.append(fd)
    return named, given


def file_of(fd: int) -> File | None:
    """The file of a descriptor; None if the descriptor is closed."""
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _refused(path: str, why: str | None) -> str:
    return (
        f"a worker cannot open a tensor of the dataset, {path}: {why}. The fork server gives a worker some 250 "
        "descriptors, and the dataset has more tensors. Keep its tensors until the first batch has come, store them as "
        "one tensor, or start workers with multiprocessing_context='spawn' or 'fork'"
    )
