"""The Cython core is the lowest layer.  Its rooms and modules are layers too, in the order in setup.py.

A module's own parts may use one another.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = ROOT / "cython_ext"
IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+c?import\s+([\w, ]+)|c?import\s+([\w.]+))", re.MULTILINE)


def core() -> dict[str, tuple[str, ...]]:
    """The rooms, the lowest first, with the names of their modules, the lowest first."""
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CORE":
            return eval(compile(ast.Expression(node.value), "setup.py", "eval"))  # names and strings alone
    raise AssertionError("setup.py names no CORE")


ROOMS = core()
NAMES = [name for names in ROOMS.values() for name in names]


def imported(source: str) -> set[str]:
    """The modules and the headers' declarations, as room.name, that a source imports or cimports of this project."""
    found = set()
    for module, names, whole in IMPORT.findall(source):
        parts = (module or whole).split(".")
        if parts[0] == "shmloader":
            found.update(name.strip() for name in names.split(",")) if parts[1:] in ([], ["core"]) else found.add(
                ".".join(parts[2:] if parts[1] == "core" else parts)
            )
        elif parts[0] in ROOMS:
            found.add(".".join(parts))
    return found


INCLUDE = re.compile(r'^include "([\w/.]+)"$', re.MULTILINE)


def texts_of(path: Path) -> list[Path]:
    """A file, and all that it includes."""
    return [path, *(each for part in INCLUDE.findall(path.read_text()) for each in texts_of(CORE / part))]


def test_every_module_is_in_its_room() -> None:
    for room, names in ROOMS.items():
        assert {path.stem for path in (CORE / room).glob("*.pyx")} == set(names)
    assert not list(CORE.glob("*.pyx"))


def test_every_part_is_included_once() -> None:
    included = [
        path for room, names in ROOMS.items() for name in names for path in texts_of(CORE / room / f"{name}.pyx")
    ]
    assert len(included) == len(set(included))
    assert {path for path in included if path.suffix == ".pxi"} == set(CORE.glob("*/*.pxi"))


@pytest.mark.parametrize("at", range(len(NAMES)), ids=NAMES)
def test_imports_go_down(at: int) -> None:
    (room,) = [room for room, names in ROOMS.items() if NAMES[at] in names]
    lower = set(NAMES[:at]) | {f"{room}.{path.stem}" for path in (CORE / room).glob("*.pxd")}
    for own in (CORE / room).glob(f"{NAMES[at]}.p??"):
        for path in texts_of(own):
            above = imported(path.read_text()) - lower
            assert not above, f"{path.name} imports {', '.join(sorted(above))}, which is above it"
