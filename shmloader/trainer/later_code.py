"""Classes and functions of the script that forked workers do not have, because they were defined later.

A pickle has a class or function by its name.  In a notebook a cell may define it, or define it again, when the workers
of a crew run already.  Then they would find nothing by that name, or make samples by the former code.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from types import FunctionType
from typing import Any

from shmloader.wrapped_datasets import with_parts

Code = dict[str, "weakref.ref[Any]"]


def code_of_script() -> Code:
    """What a process that is forked now has of the script: classes and functions by their names."""
    script = vars(sys.modules["__main__"])
    return {name: weakref.ref(value) for name, value in list(script.items()) if isinstance(value, (type, FunctionType))}


def defined_later(parts: Iterable[Any], had: Code) -> str:
    """The name of what one of a loader's objects needs, and a process with this code does not have; empty: none."""
    for part in parts:
        code = part if isinstance(part, (type, FunctionType)) else type(part)
        plain = code is part or getattr(code, "__reduce__", None) is object.__reduce__
        name = code.__qualname__
        if plain and code.__module__ == "__main__" and "." not in name and (name not in had or had[name]() is not code):
            return name
    return ""


def parts_of(dataset: Any, collate_fn: Any, init_fn: Any) -> list[Any]:
    """A loader's objects that are pickled for its workers, and the datasets inside torch's wrappers."""
    return [*with_parts(dataset), collate_fn, init_fn]
