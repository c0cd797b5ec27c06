"""The Cython core is the lowest layer, and its modules are layers too, in the order in which setup.py names them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
IMPORT = re.compile(r"^\s*(?:from\s+(shmloader[\w.]*)\s+c?import\s+(.*)|c?import\s+(shmloader[\w.]*))", re.MULTILINE)


def core() -> list[str]:
    """The names of the modules, the lowest first."""
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CORE":
            return [name for part in node.value.elts for name in ast.literal_eval(part.value)]  # type: ignore[attr-defined]
    raise AssertionError("setup.py names no CORE")


def imported(source: str) -> set[str]:
    """What a source imports or cimports of this package."""
    found = set()
    for module, names, whole in IMPORT.findall(source):
        found.add(f"shmloader.{names}" if module == "shmloader" else module or whole)
    return found


NAMES = core()


def test_every_module_is_named() -> None:
    assert {path.stem for path in (ROOT / "cython_ext").glob("*.pyx")} == set(NAMES)


@pytest.mark.parametrize("at", range(len(NAMES)), ids=NAMES)
def test_imports_go_down(at: int) -> None:
    lower = {f"shmloader._{name}" for name in NAMES[: at + 1]}
    for path in (ROOT / "cython_ext").glob(f"{NAMES[at]}.p??"):
        above = imported(path.read_text()) - lower
        assert not above, f"{path.name} imports {', '.join(sorted(above))}, which is above it"
