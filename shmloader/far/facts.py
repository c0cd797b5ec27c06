"""What batches depend on beside the dataset: versions of libraries, and what the CPU can do."""

from __future__ import annotations

import importlib.metadata
import platform

import torch

_LIBRARIES = ("torch", "numpy", "Pillow", "torchvision", "shmloader")


def facts() -> dict[str, str]:
    """The facts of this machine and process that decide about a batch's bits."""
    found = {"Python": platform.python_version(), "machine": platform.machine()}
    found["CPU capability"] = torch.backends.cpu.get_cpu_capability()
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def differences(ours: dict[str, str], theirs: dict[str, str]) -> str:
    """How two machines differ, for people; empty if they do not."""
    return ", ".join(
        f"{name} {ours.get(name, 'unknown')} here and {theirs.get(name, 'unknown')} there"
        for name in sorted({*ours, *theirs})
        if ours.get(name) != theirs.get(name)
    )
