"""Our code names the dtype and the device of each tensor that it makes; both checks of factories.py find a call."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from factories import EXCEPT, FACTORIES, IN_CYTHON, ROOT, Watched, unnamed_in

FILES = sorted([*(ROOT / "shmloader").rglob("*.py"), *(ROOT / "cython_ext").rglob("*.p[yx][xi]")])


def test_each_factory_in_the_source_has_a_dtype_and_a_device() -> None:
    assert len(FILES) > 200
    assert [call for path in FILES for call in unnamed_in(path.relative_to(ROOT), path.read_text())] == []


def test_cython_modules_use_the_factories_that_are_watched_there() -> None:
    text = "".join(path.read_text() for path in FILES if path.suffix != ".py")
    used = set(re.findall(r"\btorch\.(\w+)", re.sub(r'"""[\s\S]*?"""|#.*', "", text)))
    assert used & FACTORIES == IN_CYTHON


def test_each_exception_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    for path, function in list(EXCEPT):
        monkeypatch.delitem(EXCEPT, (path, function))
        (call,) = unnamed_in(Path(path), (ROOT / path).read_text())
        assert f" in {function}(): " in call


@pytest.mark.parametrize(
    "text",
    [
        "torch.empty(3)",
        "torch.empty(3, dtype=x)",
        "torch.tensor(y, device=x)",
        "def f():\n    return [torch.arange(\n        7, dtype=x) for _ in y]",
        "from torch import zeros",
    ],
)
def test_the_source_is_understood(text: str) -> None:
    (call,) = unnamed_in(Path("shmloader/some.py"), text)
    assert "shmloader/some.py:" in call
    assert unnamed_in(Path("shmloader/some.py"), "torch.empty(3, device=x, dtype=y); torch.from_numpy(z)") == []


@pytest.mark.parametrize("line", ["empty(3, dtype=x)", "torch.as_tensor(x)", "torch.ones(3, device=x)"])
def test_the_cython_source_is_understood(line: str) -> None:
    text = "cdef object Tensor = torch.Tensor, empty = torch.empty\n\ncdef int f(x) except -1:\n    y = {}\n"
    (call,) = unnamed_in(Path("some.pyx"), text.format(line))
    assert call.startswith("some.pyx:4 in f(): ")
    assert unnamed_in(Path("some.pyx"), text.format('empty(3, dtype=x, device="cpu")  # not of empty(1)')) == []


def test_a_call_is_noted_where_our_code_makes_it(tmp_path: Path) -> None:
    report = tmp_path / "report"
    inner: dict[str, object] = {"torch": torch}
    exec(compile("def f():\n    return torch.zeros(2)", str(ROOT / "shmloader" / "some.py"), "exec"), inner)
    with Watched(report):
        torch.zeros(2)  # of a file that is not ours
        assert not report.exists()
        inner["f"]()  # type: ignore[operator]
    assert report.read_text() == "shmloader/some.py in f(): zeros, []\n"
