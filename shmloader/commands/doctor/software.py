"""Checks torch and the kernel for the ring, the start method, and libraries that break in forked workers."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import platform
import sys

import torch

from shmloader import _torch, off_the_ring
from shmloader.commands.doctor.finding import Finding

SHM_MOUNT = "/dev/shm"


def torch_and_the_ring() -> Finding:
    """Whether loaders can ride the ring with this torch, on this platform."""
    state = f"torch {torch.__version__}, Python {platform.python_version()}"
    if why := off_the_ring.why_not_here():
        return Finding(
            "torch",
            "attention",
            f"{state}: no loader rides the ring",
            f"{why.partition(';')[0]}. Loaders load as torch's do; options that only the ring can honour are refused",
            "install a torch that shmloader was tested with, or a newer shmloader"
            if sys.platform == "linux"
            else "run on 64-bit Linux",
        )
    if lost := _torch.what_is_lost():
        return Finding(
            "torch", "note", f"{state}: loaders ride the ring", "; ".join(lost), "a newer shmloader may know this torch"
        )
    return Finding("torch", "fine", f"{state}: loaders ride the ring")


def kernel() -> Finding:
    """Features of the kernel that the ring prefers, and can do without."""
    lacks = []
    if not _has_nameless_files():
        lacks.append(
            f"{SHM_MOUNT} has no nameless files (O_TMPFILE), so a run that is killed while it makes a ring may leave "
            "an empty file there"
        )
    if not _has_pidfd():
        lacks.append(
            "there is no pidfd_open, so the end of a worker is seen through a pipe, which its children may hold open"
        )
    if not _has_memfd():
        lacks.append(
            f"memfd_create is refused, so rings lie in {SHM_MOUNT} alone, and a batch for which it has no room is a "
            "MemoryError"
        )
    state = f"{platform.system()} {platform.release()}"
    if lacks:
        return Finding("kernel", "note", state, "; ".join(lacks), "a newer kernel, or another sandbox, has it")
    return Finding("kernel", "fine", state)


def _has_nameless_files() -> bool:
    try:
        os.close(os.open(SHM_MOUNT, os.O_TMPFILE | os.O_RDWR, 0o600))
    except OSError:
        return False
    return True


def _has_pidfd() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def _has_memfd() -> bool:
    try:
        os.close(os.memfd_create("shmloader_doctor", os.MFD_CLOEXEC))
    except OSError:
        return False
    return True


def start_method() -> Finding:
    """How workers are started by default."""
    method = multiprocessing.get_context().get_start_method()
    if method == "fork":
        return Finding("start method", "fine", "fork: workers start in milliseconds and share what the trainer has")
    return Finding(
        "start method",
        "note",
        method,
        "each worker imports torch and your script, which takes seconds, and unpickles the dataset",
        "persistent_workers=True does that once; multiprocessing_context='fork' avoids it, if the trainer has no "
        "threads that hold locks when workers start",
    )


def fork_beside_threads() -> Finding:
    """Whether a library is installed that breaks in workers forked after its threads have started."""
    from shmloader.system import native_threads  # here, because it reads /proc, which only Linux has

    what = "fork and threads"
    if multiprocessing.get_context().get_start_method() != "fork":
        return Finding(what, "fine", "workers are not forked, so they have none of this process's threads")
    installed = [name for name in native_threads.BREAK_BY_NAME if importlib.util.find_spec(name) is not None]
    if not installed:
        return Finding(what, "fine", "none of the libraries that are known to break is installed")
    names = " and ".join(installed)
    return Finding(
        what,
        "note",
        f"{names} installed",
        f"if the trainer has used {names}, a forked worker that uses it can hang or crash",
        "multiprocessing_context='forkserver' or 'spawn', if your dataset uses it",
    )
