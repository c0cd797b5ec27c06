"""Each factory of torch that our code calls gets a dtype and a device; otherwise it would follow the user's defaults.

Two checks share the list of exceptions.  One reads the source, and so sees lines that no test runs (test_factories.py).
The other watches the calls that tests make.  A Cython module has no frame, so its calls count for the Python function
that called it.  But C code may also call a factory for the user there: a pickle's `torch.full`, for example, or
`worker_init_fn=torch.rand`.  So that function must name the factory itself, or a Cython module must use it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import shmloader
from shmloader.private import of_torch

ROOT = Path(shmloader.__file__).resolve().parents[1]
ROOMS = {"batch", "face", "images", "worker"}  # whose tests are watched
NAMED = {"dtype", "device"}
FACTORIES = {
    *("arange", "as_tensor", "asarray", "empty", "empty_permuted", "empty_strided", "eye", "full", "linspace"),
    *("logspace", "ones", "rand", "randint", "randn", "randperm", "scalar_tensor", "tensor", "zeros"),
}
IN_CYTHON = {"as_tensor", "empty"}  # those that Cython modules use
EXCEPT = {
    ("shmloader/resume/generators.py", "draw_a_seed"): "torch's RandomSampler draws it from the same generator",
    ("cython_ext/batch/columns.pxi", "learn"): "it asks torch for the dtype",
}
_BY_FUNCTION = {getattr(torch, name): name for name in FACTORIES}


# ------------------------------------------------------------------------------------------------------- in the source


def unnamed_in(path: Path, text: str) -> list[str]:
    """The calls in a file of ours that leave the dtype or the device out."""
    found = _in_python(text) if path.suffix == ".py" else _in_cython(text)
    return [f"{path}:{line} in {where}(): {call}" for line, where, call in found if (str(path), where) not in EXCEPT]


def _in_python(text: str) -> Iterator[tuple[int, str, str]]:
    calls = {f"torch.{name}" for name in FACTORIES}
    waiting: list[tuple[str, ast.AST]] = [("", ast.parse(text))]
    while waiting:
        where, node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            where = node.name
        if isinstance(node, ast.ImportFrom) and node.module == "torch":
            names = FACTORIES & {each.name for each in node.names}
            if names:
                yield node.lineno, where, f"imports {names}: call them as torch's attributes"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in calls and NAMED - _keywords(node):
            yield node.lineno, where, ast.unparse(node)
        waiting += [(where, child) for child in ast.iter_child_nodes(node)]


def _keywords(call: ast.Call) -> set[str | None]:
    return {keyword.arg for keyword in call.keywords}


def _in_cython(text: str) -> Iterator[tuple[int, str, str]]:
    """A call fits into a line there.  A module gives a factory a name of its own at most: `empty = torch.empty`."""
    names = re.findall(rf"(\w+) = torch\.(?:{'|'.join(FACTORIES)})\b(?!\()", text)
    calls = re.compile(rf"(?:\btorch\.(?:{'|'.join(FACTORIES)})|(?<![\w.])(?:{'|'.join([*names, '(?!)'])}))\(.*")
    where = ""
    for number, line in enumerate(text.splitlines(), 1):
        if begins := re.match(r"\s*(?:cp?def|def)\b.*?(\w+)\(", line):
            where = begins[1]
        call = calls.search(line.partition("#")[0])
        if call and not all(f"{name}=" in call[0] for name in NAMED):
            yield number, where, call[0]


# ---------------------------------------------------------------------------------------------------- while a test runs


class Watched(TorchFunctionMode):
    """Writes down where our code calls a factory without a dtype and a device.  Workers that are forked inherit it."""

    def __init__(self, report: Path) -> None:
        super().__init__()
        self._report = report

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _BY_FUNCTION and NAMED - set(kwargs or {}):
            code = sys._getframe(1).f_code
            path = Path(code.co_filename)
            factory = _BY_FUNCTION[function]
            if path.is_relative_to(ROOT / "shmloader") and (factory in code.co_names or factory in IN_CYTHON):
                name = str(path.relative_to(ROOT))
                if (name, code.co_name) not in EXCEPT:
                    with self._report.open("a") as file:  # and no error, which the code around the call might handle
                        file.write(f"{name} in {code.co_name}(): {factory}, {list(kwargs or {})}\n")
        return function(*args, **(kwargs or {}))


def _count_but_watched(count: Callable[[], int]) -> Callable[[], int]:
    """The number of modes that a test has entered: if there is one, workers leave numbers and arrays to torch."""
    at = torch._C._get_function_stack_at
    return lambda: sum(type(at(k)) is not Watched for k in range(count()))


@pytest.fixture(autouse=True)
def every_factory_is_named(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """In some rooms: no file of ours calls a factory of torch without a dtype and a device."""
    if request.path.relative_to(Path(__file__).parent).parts[0] not in ROOMS:
        yield
        return
    report = tmp_path_factory.getbasetemp() / "unnamed factories.txt"
    with pytest.MonkeyPatch.context() as patch, Watched(report):
        if of_torch.count_modes is not None:
            patch.setattr(of_torch, "count_modes", _count_but_watched(of_torch.count_modes))
        yield
    if report.exists():
        calls = sorted(set(report.read_text().splitlines()))
        report.unlink()
        raise AssertionError("\n".join(["these calls should name a dtype and a device:", *calls]))
