"""The accelerator: whether torch sees this machine's device, and whether a ring can be page-locked for it."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import torch

from shmloader.commands.doctor.finding import Finding
from shmloader.device import accelerator

DRIVER = Path("/proc/driver/nvidia/version")
LOCKED = 1 << 20  # bytes that are page-locked as a test


def pinning() -> Finding:
    """Whether batches go to the device from page-locked slots."""
    kind, driver = accelerator.kind(), _driver()
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "ROCm" if torch.version.hip else "no accelerator"
    if kind is None and driver and not torch.version.cuda:
        return Finding(
            "accelerator",
            "attention",
            f"NVIDIA's driver {driver}, and a torch for {built}",
            "this torch does not use the GPU",
            "install torch's CUDA build",
        )
    if kind is None and (torch.version.cuda or torch.version.hip):
        return Finding(
            "accelerator",
            "attention" if driver else "note",
            f"torch is built for {built}, and finds no device",
            f"NVIDIA's driver is {driver}, and may be too old for this torch, or the container was not given a device"
            if driver
            else "batches stay on the CPU",
            "docker run --gpus all; look at CUDA_VISIBLE_DEVICES and nvidia-smi" if driver else "",
        )
    if kind is None:
        return Finding("accelerator", "fine", f"none, and torch is built for {built}", "pin_memory does nothing here")
    state = f"{accelerator.count()} x {kind}" + (f", driver {driver}" if driver else "")
    if why := _refused():
        return Finding(
            "accelerator",
            "note",
            f"{state}; a ring cannot be page-locked: {why}",
            "with pin_memory=True or device=, a thread copies batches into page-locked memory, as in torch",
            "",
        )
    return Finding("accelerator", "fine", f"{state}; rings can be page-locked")


def _driver() -> str:
    """The version of NVIDIA's driver; empty if there is none."""
    try:
        return DRIVER.read_text().partition("Module")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _refused() -> str:
    """Why shared memory cannot be page-locked here; empty if it can."""
    try:
        found = accelerator.find()
        if found is None:
            return "torch names no device"
        if not found.registers:
            return found.register(0, 0)
        with mmap.mmap(-1, LOCKED) as pages:
            word = ctypes.c_char.from_buffer(pages)
            try:
                why = found.register(ctypes.addressof(word), LOCKED)
                if not why:
                    found.unregister(ctypes.addressof(word))
                return why
            finally:
                del word  # otherwise the pages cannot be unmapped
    except RuntimeError as error:  # the device is broken, or another process uses it exclusively
        return str(error).splitlines()[0]
