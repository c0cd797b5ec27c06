"""Prints a program as a script that reproduces what was found."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.attack.judge import Finding
from tests.attack.program import Program
from tests.attack.source import HEAD, OURS, function
from tests.attack.twin import twin


def script(program: Program, finding: Finding) -> str:
    """A script that runs by itself in the root of the checkout, and fails as long as the fault is there."""
    calm, library = twin(program)
    lines = [f"# {finding.cause}".rstrip(), *HEAD.splitlines()]
    lines += ["from tests.attack.judge import check", "from tests.attack.program import Data, Do, Order, Program", ""]
    lines += [*function("ours", program, OURS), "", *function("expected", calm, library), ""]
    lines += [f"check({short(program)}, ours, expected)"]
    return "\n".join(lines) + "\n"


def short(value: Any) -> str:
    """The repr of a dataclass without what is as by default."""
    if isinstance(value, tuple):
        return f"({''.join(f'{short(each)}, ' for each in value).rstrip()})"
    if not dataclasses.is_dataclass(value):
        return repr(value)
    given = []
    for field in dataclasses.fields(value):
        default = field.default_factory() if callable(field.default_factory) else field.default
        if getattr(value, field.name) != default:
            given.append(f"{field.name}={short(getattr(value, field.name))}")
    return f"{type(value).__name__}({', '.join(given)})"
