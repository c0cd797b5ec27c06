"""Looks up names that a library keeps to itself, and notes which are missing: NOTE [ Private names ] in of_torch.py."""

from __future__ import annotations

import inspect
import pkgutil
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Lack:
    """A private name that this torch lacks, or whose arguments differ."""

    name: str
    why: str
    means: str  # what is lost; if empty, the ring is

    def __str__(self) -> str:
        lost = self.means or "the ring cannot work without it"
        return f"torch {torch.__version__}: {self.name} {self.why}; {lost}"


LACKS: list[Lack] = []
NAMES: list[str] = []  # all names that were looked up
CALLED: list[str] = []  # those whose arguments were checked


def find(name: str, *called_with: str, called: bool = True, means: str = "", instead: Any = None) -> Any:
    """Look up a private name.

    Args:
        name: Module and name, with dots.
        called_with: The arguments with which it is called, one word for each.
        called: Whether it is called at all.
        means: What is lost without it; if empty, the ring is.
        instead: The replacement to return.
    """
    NAMES.append(name)
    CALLED.extend([name] if called else [])
    try:
        found = pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        LACKS.append(Lack(name, "is not there", means))
        return instead
    if called and (other := _takes_other(found, called_with)):
        LACKS.append(Lack(name, other, means))
        return instead
    return found


def _takes_other(function: Any, called_with: tuple[str, ...]) -> str:
    """Why a function does not accept these arguments; empty if it does, or if its signature is not known."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return ""
    try:
        signature.bind(*called_with)
    except TypeError as error:
        return f"takes other arguments than ({', '.join(called_with)}): {error}"
    return ""
