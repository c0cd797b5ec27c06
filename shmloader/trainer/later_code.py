"""Classes and functions of the script that forked workers do not have, because they were defined later.

A pickle has a class or function by its name.  In a notebook a cell may define it, or define it again, when the workers
of a crew run already.  Then they would find nothing by that name, or make samples by the former code.
"""

from __future__ import annotations

import dis
import sys
import weakref
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

Code = dict[str, "weakref.ref[Any]"]

_LOADS = "LOAD_GLOBAL", "LOAD_NAME"


def code_of_script() -> Code:
    """What a process that is forked now has of the script: classes and functions by their names."""
    script = vars(sys.modules["__main__"])
    return {name: weakref.ref(value) for name, value in list(script.items()) if is_code(value)}


def is_code(value: Any) -> bool:
    """Whether a pickle has this by its name."""
    return isinstance(value, (type, FunctionType))


def is_of_script(value: Any) -> bool:
    """Whether it is a class or a function that the script defines."""
    return is_code(value) and getattr(value, "__module__", None) == "__main__"


def defined_later(named: Iterable[Any], had: Code) -> str:
    """The name of what some code needs, and a process that has `had` of the script does not have; empty: none.

    Args:
        named: Classes and functions of the script that a pickle names.  They may call others.
        had: code_of_script() when the process was forked.
    """
    seen: set[int] = set()
    left = list(named)
    while left:
        code = left.pop()
        if id(code) in seen:
            continue
        seen.add(id(code))
        name = code.__qualname__
        if "<locals>" not in name and _found(name, had) is not code:
            return str(name)
        left.extend(_called_by(code))
    return ""


def _found(name: str, had: Code) -> Any:
    """What has this name there."""
    first, *inner = name.split(".")
    found = had[first]() if first in had else None
    for each in inner:
        found = getattr(found, each, None)
    return found


def _called_by(code: Any) -> Iterator[Any]:
    """The classes and functions of the script whose names are in this one."""
    script = vars(sys.modules["__main__"])
    for part in _parts(code):
        if isinstance(part, CodeType):
            named = {each.argval for each in dis.get_instructions(part) if each.opname in _LOADS}
            yield from (script[name] for name in named if is_of_script(script.get(name)))
        elif is_of_script(part):
            yield part


def _parts(code: Any) -> Iterator[Any]:
    """What a class or a function consists of, at any depth: code, and other classes and functions."""
    if isinstance(code, type):
        yield from code.__bases__
        for value in list(vars(code).values()):
            inner = (value, getattr(value, "__func__", None), getattr(value, "fget", None))
            yield from (part for each in inner if isinstance(each, FunctionType) for part in _parts(each))
        return
    yield from _nested(code.__code__)
    for cell in code.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:  # it is not filled yet
            continue
        yield value.__func__ if isinstance(value, MethodType) else value


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _nested(each)
