"""The texts on the page of errors are those that the source has."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACEHOLDER = re.compile(r"\{[^{}]*\}")
FOREIGN = (  # texts of torch, Python and h5py
    "Caught",
    "Can't pickle local object",
    "cannot pickle",
    "h5py objects",
    "Can't get attribute",
    "An attempt has been made to start",
    "Cannot re-initialize CUDA",
    "received 0 items of ancdata",
    "unable to open shared memory object",
    "killed by signal: Bus error",
)


def texts() -> str:
    """All strings of the package, with those that stand side by side as one, and … for what is filled in."""
    files = [*(ROOT / "shmloader").rglob("*.py"), *(ROOT / "cython_ext").glob("*/*.p[yx][xi]")]
    joined = []
    for file in sorted(files):
        source = file.read_text()
        end = None
        for literal in re.finditer(r'(?<![\w"])[frb]{0,2}"((?:[^"\\\n]|\\.)*)"', source):
            between = "x" if end is None else source[end : literal.start()]
            joined.append(("" if not between.strip() else "\n") + PLACEHOLDER.sub("…", literal[1]))
            end = literal.end()
    return "".join(joined)


def test_every_text_is_in_the_source() -> None:
    page = (ROOT / "docs" / "errors.md").read_text().replace("\n  ", " ")  # an item of a list as one line
    named = re.findall(r"^(?:###|-) `(.+?)`(?=:| or `|$)", page, re.MULTILINE)
    assert len(named) > 140
    known = texts()
    missing = [text for text in named if not text.startswith(FOREIGN) and text.strip("… ") not in known]
    assert not missing, "\n".join(missing)
