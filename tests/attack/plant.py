"""A planted fault: the edits that take one fix out, and what then must find it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

Edit = tuple[str, str, str]  # a file of the project, what stands there once, and what is put there instead


@dataclass(frozen=True)
class Plant:
    """A fault that was found once.

    Attributes:
        fault: What a user saw.
        edits: What brings it back.
        tests: Tests that fail with it, by pytest's names.
        attack: Whether `make attack` must find it, too.
    """

    fault: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    attack: bool = False

    @property
    def is_compiled(self) -> bool:
        return any(file.startswith("cython_ext/") for file, _, _ in self.edits)

    def not_there(self, folder: Path) -> list[str]:
        """What an edit looks for and does not find once."""
        counts = [(file, old, (folder / file).read_text().count(old)) for file, old, _ in self.edits]
        return [f"{file} has {count} times: {old}" for file, old, count in counts if count != 1]


@contextlib.contextmanager
def planted(plant: Plant, folder: Path) -> Iterator[None]:
    """The fault is in the project in this folder; afterwards its files are what they were."""
    before = {folder / file: (folder / file).read_text() for file, _, _ in plant.edits}
    try:
        for file, old, new in plant.edits:
            path = folder / file
            path.write_text(path.read_text().replace(old, new))
        yield
    finally:
        for path, text in before.items():
            path.write_text(text)
