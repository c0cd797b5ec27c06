"""An exception arrives at its place in the order, as torch raises it, and the iteration goes on."""

from __future__ import annotations

import builtins
import gc
import subprocess
import threading
import time
from typing import Any

import numpy
import pytest
from conftest import Augmented, Raised, assert_same_outcome

import shmloader


def bad_item() -> Exception:
    return ValueError("a bad item")


class Unpicklable(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = lambda: text


def recursive() -> Exception:
    try:
        return recursive()
    except RecursionError as error:
        return error


def local_exception(text: str) -> Exception:
    class Local(Exception):
        pass

    return Local(text)


class KeywordOnly(Exception):
    message = "of the class"

    def __init__(self, *, reason: str) -> None:
        super().__init__(reason)


class WithProperty(Exception):
    def __init__(self, code: Any) -> None:
        super().__init__(code)

    @property
    def message(self) -> str:
        return f"code {self.args[0]}"


class NoException(Exception):
    def __new__(cls, text: str) -> Any:
        return super().__new__(cls, text) if text == "the original" else 5


def in_the_worker_only() -> Exception:
    globals()["WorkersOwn"] = type("WorkersOwn", (Exception,), {"__module__": __name__})
    return globals()["WorkersOwn"]("the original")


# by the name of the class: torch raises a TypeError of the constructor, or waits for ever
LOST = {
    "KeywordOnly": lambda: KeywordOnly(reason="the original"),
    "WithProperty": lambda: WithProperty("the original"),
    "NoException": lambda: NoException("the original"),
    "WorkersOwn": in_the_worker_only,
    "Local": lambda: local_exception("the original"),
}
if hasattr(builtins, "ExceptionGroup"):  # since Python 3.11; a TaskGroup raises them
    LOST["ExceptionGroup"] = lambda: builtins.ExceptionGroup("the original", [ValueError("one of them")])


class FailingByIndex(Augmented):
    """Raises another error for each index."""

    def __init__(self, errors: dict[str, Any]) -> None:
        super().__init__(len(errors))
        self.errors = errors

    def __getitem__(self, index: int) -> Any:
        raise list(self.errors.values())[index]()


def test_what_else_is_raised_is_torchs() -> None:
    """More than conformance/test_failures.py has."""
    errors = {"memory": MemoryError, "long": lambda: ValueError("long " * 50_000)}
    errors |= {"recursion": recursive, "unpicklable": lambda: Unpicklable("text")}
    (got,) = assert_same_outcome(lambda: FailingByIndex(errors), num_workers=2)
    assert all(isinstance(batch, Raised) for batch in got)


def raised(errors: dict[str, Any]) -> list[BaseException]:
    """What each index raises."""
    iterator = iter(shmloader.DataLoader(FailingByIndex(errors), num_workers=1, multiprocessing_context="fork"))
    found = []
    for _ in errors:
        with pytest.raises(BaseException) as caught:
            next(iterator)
        found.append(caught.value)
    assert list(iterator) == []
    return found


def test_an_exception_that_cannot_be_made_again_is_a_runtime_error_with_its_text() -> None:
    for name, error in zip(LOST, raised(LOST), strict=True):
        assert type(error) is RuntimeError
        assert str(error).startswith(f"Caught {name} in DataLoader worker process 0.\nOriginal ")
        assert "in __getitem__" in str(error) and "the original" in str(error)
        if name == "ExceptionGroup":
            assert "ValueError: one of them" in str(error)


class FixedText(Exception):
    def __init__(self, text: str) -> None:
        super().__init__("cannot read")


class NoText(Exception):
    def __str__(self) -> str:
        raise LookupError("no text")


def test_an_exception_that_does_not_show_its_text_has_it_as_its_cause() -> None:
    """torch's has no traceback of the worker."""
    errors = {"FixedText": lambda: FixedText("the original"), "NoText": lambda: NoText("the original")}
    for kind, error in zip((FixedText, NoText), raised(errors), strict=True):
        assert type(error) is kind
        assert type(error.__cause__) is RuntimeError
        assert f"Caught {kind.__name__} in DataLoader worker process 0." in str(error.__cause__)
        assert "in __getitem__" in str(error.__cause__)
    (shown,) = raised({"ValueError": bad_item})
    assert shown.__cause__ is None


class Busy(Augmented):
    """A dataset with a thread and subprocesses of its own."""

    def __getitem__(self, index: int) -> Any:
        if not hasattr(self, "thread"):
            self.thread = threading.Thread(target=time.sleep, args=(60,), daemon=True)
            self.thread.start()
        out = subprocess.run(["echo", str(index)], capture_output=True, text=True, check=True).stdout
        return int(out), super().__getitem__(index)


def test_a_dataset_with_threads_and_subprocesses() -> None:
    assert_same_outcome(Busy, batch_size=5, num_workers=2)


class BadLater:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        if index == 2:
            raise ValueError("bad")
        return numpy.zeros(100_000, numpy.uint8)


def test_an_error_that_was_caught_holds_no_batch() -> None:
    """A traceback has the frames of the loop, and so the loop's variables."""

    def loop(iterator: Any) -> int:
        errors = 0
        for _ in range(4):
            try:
                batch = next(iterator)
            except ValueError:
                errors += 1
        del iterator
        return errors + 0 * len(batch)

    gc.disable()
    try:
        with shmloader.DataLoader(BadLater(), 1, num_workers=1, persistent_workers=True) as loader:  # type: ignore[arg-type]
            iterator = iter(loader)
            assert loop(iterator) == 1
            assert iterator._ring.slots.lent == 0
    finally:
        gc.enable()
