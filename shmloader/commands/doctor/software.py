"""Checks torch and its accelerator, the start method, and libraries that break in forked workers."""

from __future__ import annotations

import importlib.util
import mmap
import multiprocessing
import platform
import sys
from pathlib import Path

import torch

from shmloader.checks import requirements
from shmloader.commands.doctor import Finding, Wanted
from shmloader.device import accelerator
from shmloader.private import of_torch

DRIVER = Path("/proc/driver/nvidia/version")
LOCKED = 1 << 20  # bytes that are page-locked as a test
BREAK_AFTER_FORK = ("polars", "grpc", "jax")


def torch_and_the_ring(wanted: Wanted) -> Finding:
    """Whether loaders can ride the ring with this torch, on this platform."""
    state = f"torch {torch.__version__}, Python {platform.python_version()}, {platform.system()} {platform.release()}"
    if why := requirements.why_not_here():
        why = why.partition(";")[0]
        meaning = f"{why}. Loaders load as torch's do; options that only the ring can honour are refused"
        remedy = "install a torch that shmloader was tested with, or a newer shmloader"
        remedy = remedy if sys.platform == "linux" else "run on 64-bit Linux"
        return Finding("attention", f"{state}: no loader rides the ring", meaning, remedy)
    lost, remedy = "; ".join(of_torch.what_is_lost()), "a newer shmloader may know this torch"
    return Finding("note" if lost else "fine", f"{state}: loaders ride the ring", lost, remedy if lost else "")


def start_method(wanted: Wanted) -> Finding:
    """How workers are started by default."""
    method = multiprocessing.get_context().get_start_method()
    if method == "fork":
        return Finding("fine", "fork: workers start in milliseconds and share what the trainer has")
    meaning = "each worker imports torch and your script, which takes seconds, and unpickles the dataset"
    remedy = "persistent_workers=True does that once; multiprocessing_context='fork' avoids it, if the trainer has no "
    return Finding("note", method, meaning, remedy + "threads that hold locks when workers start")


def fork_beside_threads(wanted: Wanted) -> Finding:
    """Whether a library is installed that breaks in workers forked after its threads have started."""
    if multiprocessing.get_context().get_start_method() != "fork":
        return Finding("fine", "workers are not forked, so they have none of this process's threads")
    names = " and ".join(name for name in BREAK_AFTER_FORK if importlib.util.find_spec(name) is not None)
    if not names:
        return Finding("fine", "none of the libraries that are known to break is installed")
    meaning = f"if the trainer has used {names}, a forked worker that uses it can hang or crash"
    remedy = "multiprocessing_context='forkserver' or 'spawn', if your dataset uses it"
    return Finding("note", f"{names} installed", meaning, remedy)


def pinning(wanted: Wanted) -> Finding:
    """Whether torch sees this machine's device, and whether batches go there from page-locked slots."""
    kind, driver = accelerator.kind(), _driver()
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "ROCm" if torch.version.hip else "no accelerator"
    if kind is not None:
        state = f"{accelerator.count()} x {kind}" + (f", driver {driver}" if driver else "")
        if not (why := _refused()):
            return Finding("fine", f"{state}; rings can be page-locked")
        meaning = "with pin_memory=True or device=, a thread copies batches into page-locked memory, as in torch"
        return Finding("note", f"{state}; a ring cannot be page-locked: {why}", meaning)
    if driver and not torch.version.cuda:
        state = f"NVIDIA's driver {driver}, and a torch for {built}"
        return Finding("attention", state, "this torch does not use the GPU", "install torch's CUDA build")
    state = f"torch is built for {built}, and finds no device"
    if driver:
        meaning = f"NVIDIA's driver {driver} may be too old for this torch, or the container was not given a device"
        remedy = "docker run --gpus all; look at CUDA_VISIBLE_DEVICES and nvidia-smi"
        return Finding("attention", state, meaning, remedy)
    is_built = torch.version.cuda or torch.version.hip
    return Finding("note" if is_built else "fine", state, "batches stay on the CPU, and pin_memory does nothing")


def _driver() -> str:
    """The version of NVIDIA's driver; empty if there is none."""
    try:
        return DRIVER.read_text().partition("Module")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _refused() -> str:
    """Why shared memory cannot be page-locked here; empty if it can."""
    try:
        if (found := accelerator.find()) is None:
            return "torch names no device"
        pages = torch.frombuffer(mmap.mmap(-1, LOCKED), dtype=torch.uint8)  # unmapped when nobody has them
        if not (why := found.register(pages.data_ptr(), LOCKED)):
            found.unregister(pages.data_ptr())
        return why
    except RuntimeError as error:  # the device is broken, or another process uses it exclusively
        return str(error).splitlines()[0]
