"""The Cython core is the lowest layer, and its rooms and modules are layers too, in the order in setup.py."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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


def test_every_module_is_in_its_room() -> None:
    for room, names in ROOMS.items():
        assert {path.stem for path in (ROOT / "cython_ext" / room).glob("*.pyx")} == set(names)
    assert not list((ROOT / "cython_ext").glob("*.pyx"))


@pytest.mark.parametrize("at", range(len(NAMES)), ids=NAMES)
def test_imports_go_down(at: int) -> None:
    (room,) = [room for room, names in ROOMS.items() if NAMES[at] in names]
    lower = set(NAMES[: at + 1]) | {f"{room}.{path.stem}" for path in (ROOT / "cython_ext" / room).glob("*.pxd")}
    for path in (ROOT / "cython_ext" / room).glob(f"{NAMES[at]}.p??"):
        above = imported(path.read_text()) - lower
        assert not above, f"{path.name} imports {', '.join(sorted(above))}, which is above it"
