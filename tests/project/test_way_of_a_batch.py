"""The stations of a batch's way, which a page of the documentation lists, are functions of those files."""

from __future__ import annotations

import re
from pathlib import Path

import shmloader

ROOT = Path(__file__).parents[2]
PACKAGE = Path(shmloader.__file__).parent  # it may be installed elsewhere
STATION = re.compile(r"^\| \d+ \|.*\| `(?P<file>[\w/.]+)` \| `(?P<function>[\w.]+)` \|$", re.MULTILINE)


def stations() -> list[tuple[str, str]]:
    return STATION.findall((ROOT / "docs" / "how-it-works.md").read_text())


def test_there_are_no_more_than_twelve() -> None:
    assert 8 <= len(stations()) <= 12


def test_each_station_is_a_function_of_its_file() -> None:
    for file, function in stations():
        folder = PACKAGE.parent if file.startswith("shmloader/") else ROOT
        source = (folder / file).read_text()
        *kind, name = function.split(".")
        for outer in kind:
            found = re.search(rf"^(cdef )?class {outer}\b", source, re.MULTILINE)
            assert found, f"{file} has no class {outer}"
            source = source[found.end() :]
            following = re.search(r"^(cdef )?class ", source, re.MULTILINE)
            source = source[: following.start()] if following else source
        assert re.search(rf"^ *(async )?(cp?)?def (\w+ )*{name}\(", source, re.MULTILINE), f"{file} has no {function}"
