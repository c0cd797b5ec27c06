"""`make map`: each file says at its top what it does, and words find the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.machinery import files


def test_each_source_file_says_what_it_does() -> None:
    without = [str(path.relative_to(files.ROOT)) for path in files.sources() if not files.head_of(path)]
    assert not without, f"these files have neither a docstring nor a comment at their top: {without}"


def test_a_line_has_the_first_paragraph_and_the_notes(tmp_path: Path) -> None:
    (tmp_path / "ring.pyx").write_text(
        '# cython: language_level=3\n"""The slots\nof a ring.\n\nNOTE [ Slots ]\n\n    1. A slot has bytes.\n"""\n'
    )
    assert files.line_of(tmp_path / "ring.pyx") == "The slots of a ring. (NOTE [ Slots ])"


def test_words_find_files_by_path_head_and_note(capsys: pytest.CaptureFixture[str]) -> None:
    assert files.main(["docs/machinery", "SVG", "shmloader top"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines() if line] == [
        "docs/machinery/",
        "screens.py",
    ]
