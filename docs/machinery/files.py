"""Prints what each file of the project does: the first paragraph of its head, and the NOTEs in it.  `make map`.

It needs nothing but Python.  With words (`make map ARGS="lease trainer"`), it prints only the files in whose path, head
or NOTEs all of them occur.  A word may have any case, and may be a part of a longer one.
"""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("shmloader", "cython_ext", "bench", "examples", "docs", "wheels", "tests", "setup.py")
KINDS = (".py", ".pyx", ".pxd", ".pxi", ".c", ".h")

_DOCSTRING = re.compile(r'(?:#[^\n]*\n|\s)*r?"""(.*?)"""', re.DOTALL)
_HASHES = re.compile(r"(?:#[^\n]*\n)+")
_C_COMMENT = re.compile(r"\s*/\*(.*?)\*/", re.DOTALL)
_NOTE = re.compile(r"^[ /*#]*(NOTE \[ [^]]+ \])\s*$", re.MULTILINE)


def head_of(path: Path) -> str:
    """The docstring or the comment at the top of a file.  Empty if it has neither."""
    source = path.read_text()
    if path.suffix in (".c", ".h"):
        comment = _C_COMMENT.match(source)
        return re.sub(r"^ *\* ?", "", comment[1], flags=re.MULTILINE).strip() if comment else ""
    if docstring := _DOCSTRING.match(source):
        return docstring[1].strip()
    hashes = _HASHES.match(source)
    return re.sub(r"^#(!.*| ?cython: .*| ?)", "", hashes[0], flags=re.MULTILINE).strip() if hashes else ""


def notes_of(path: Path) -> list[str]:
    """The NOTEs that a file has, and not those that it cites."""
    return _NOTE.findall(path.read_text())


def sources() -> Iterator[Path]:
    """All source files, folder by folder.  A .pxd is one of them if it stands alone, or has a NOTE."""
    for room in ROOMS:
        found = [ROOT / room] if (ROOT / room).is_file() else (ROOT / room).rglob("*")
        for path in sorted(found, key=lambda path: (path.parent, path.name)):
            if path.suffix not in KINDS or not path.stat().st_size:
                continue
            defined = any(path.with_suffix(suffix).exists() for suffix in (".pyx", ".pxi"))
            if path.suffix == ".pxd" and defined and not notes_of(path):
                continue
            yield path


def line_of(path: Path) -> str:
    """What `path` does, in one line."""
    paragraph = head_of(path).split("\n\n")[0].replace("\n", " ")
    return " ".join([paragraph, *(f"({note})" for note in notes_of(path) if note not in paragraph)])


def has_all(path: Path, words: Iterable[str]) -> bool:
    """Whether each of the words occurs in the path of a file, in its head or in the names of its NOTEs."""
    text = " ".join([str(path.relative_to(ROOT)), head_of(path), *notes_of(path)]).lower()
    return all(word.lower() in text for word in words)


def main(words: list[str]) -> int:
    """Prints the map, one folder after another.  On a terminal the lines are wrapped; for grep, a file has one line."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    folder = None
    for path in sources():
        if not has_all(path, words):
            continue
        if path.parent != folder:
            folder = path.parent
            print(f"\n{folder.relative_to(ROOT)}/" if folder != ROOT else "")
        print(textwrap.fill(f"    {path.name:24} {line_of(path)}", width, subsequent_indent=" " * 29))
    if folder is None:
        print(f"No file has {' and '.join(words)} in its path, its head or its NOTEs.  Try git grep.", file=sys.stderr)
    return folder is None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
