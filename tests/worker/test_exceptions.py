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
from conftest import BOTH, Augmented, Fresh, Raised, assert_same, assert_same_outcome, iterate, neutral
from torch.utils.data import default_collate

import shmloader


class NeedsArguments(Exception):
    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"{code}: {reason}")


class Messaged(Exception):
    def __init__(self, message: str) -> None:
        self.message = message


class Unpicklable(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = lambda: text


def local_exception(text: str = "nobody can import it") -> Exception:
    class Local(Exception):
        pass

    return Local(text)


ERRORS = {
    "ValueError": lambda: ValueError("a bad item"),
    "KeyError": lambda: KeyError("missing"),
    "IndexError": lambda: IndexError(3),
    "arguments": lambda: NeedsArguments(3, reason="why"),
    "message": lambda: Messaged("text"),
    "unpicklable": lambda: Unpicklable("text"),
    "long": lambda: ValueError("long " * 50_000),
    "OSError": lambda: FileNotFoundError(2, "No such file"),
    "unicode": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    "memory": lambda: MemoryError("no"),
    "assert": lambda: AssertionError(),
    "chained": lambda: chained(),
    "recursion": lambda: recursive(),
}


def recursive() -> Exception:
    try:
        return recursive()
    except RecursionError as error:
        return error


def chained() -> Exception:
    try:
        raise ValueError("first")
    except ValueError as error:
        second = RuntimeError("second")
        second.__cause__ = error
        return second


class Failing(Augmented):
    def __init__(self, error: Any, at: tuple[int, ...] = (5, 6, 12)) -> None:
        super().__init__(16)
        self.error, self.at = error, at

    def __getitem__(self, index: int) -> Any:
        if index in self.at:
            raise self.error()
        return super().__getitem__(index)


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_in_the_dataset(error: Any) -> None:
    epochs = assert_same_outcome(lambda: Failing(error), batch_size=2, num_workers=2, epochs=1)
    assert [isinstance(batch, Raised) for batch in epochs[0]] == [k in (2, 3, 6) for k in range(8)]


def test_stop_iteration_ends_the_epoch_early() -> None:
    """As with torch, which takes 10 s to end its workers then."""
    for persistent in (False, True):
        loader = shmloader.DataLoader(
            Failing(StopIteration), num_workers=2, batch_size=2, persistent_workers=persistent
        )
        assert len(iterate(loader)) == 2


def test_an_exception_of_a_class_that_cannot_be_pickled() -> None:
    """torch waits for ever here."""
    got = iterate(shmloader.DataLoader(Failing(local_exception), num_workers=2))
    assert [k for k, batch in enumerate(got) if isinstance(batch, Raised)] == [5, 6, 12]
    with pytest.raises(RuntimeError, match="nobody can import it"):
        next(iter(shmloader.DataLoader(Failing(local_exception, (0,)), num_workers=1)))


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
    (shown,) = raised({"ValueError": ERRORS["ValueError"]})
    assert shown.__cause__ is None


def test_the_whole_text_is_torchs_but_for_the_loaders_frames() -> None:
    def text(kind: type) -> str:
        iterator = iter(kind(Failing(ERRORS["ValueError"], (3,)), num_workers=1))
        for _ in range(3):
            next(iterator)
        with pytest.raises(ValueError) as caught:
            next(iterator)
        list(iterator)
        return str(caught.value)

    theirs, ours = (text(kind) for kind in BOTH)
    assert neutral(ours) == neutral(theirs)
    assert "in __getitem__" in neutral(ours)
    assert "shmloader/worker/fetch.py" in ours  # they are there, for who looks for them


@pytest.mark.long
def test_first_and_last_batch_and_all() -> None:
    for at in ((0,), (15,), tuple(range(16))):
        assert_same_outcome(lambda at=at: Failing(ERRORS["KeyError"], at), num_workers=2, epochs=2)


def collate_failing(items: list[Any]) -> Any:
    batch = default_collate(items)
    if batch["i"][0] == 4:
        raise KeyError("in collate")
    return batch


def collate_ragged(items: list[Any]) -> Any:
    return default_collate([numpy.zeros(item["i"] // 4) for item in items])


@pytest.mark.parametrize("collate_fn", [collate_failing, collate_ragged])
def test_in_the_collate_function(collate_fn: Any) -> None:
    assert_same_outcome(lambda: Augmented(16), batch_size=2, num_workers=2, collate_fn=collate_fn, epochs=2)


def failing_init(worker_id: int) -> None:
    if worker_id == 1:
        raise LookupError("in worker_init_fn")


def test_in_worker_init_fn() -> None:
    assert_same_outcome(Augmented, batch_size=2, num_workers=2, worker_init_fn=failing_init)


class FailingSampler:
    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Any:
        self.epoch += 1
        yield from range(9)
        if self.epoch == 1:
            raise ArithmeticError("in the sampler")
        yield from range(3)


@pytest.mark.parametrize("persistent", [False, True])
def test_in_the_sampler(persistent: bool) -> None:
    assert_same_outcome(
        Augmented,
        batch_size=1,
        sampler=Fresh(FailingSampler),
        num_workers=2,
        epochs=3,
        persistent_workers=persistent,
    )


class FailingAtOnce:
    def __iter__(self) -> Any:
        yield 0
        raise ArithmeticError("while the first indices are asked for")


def test_in_the_sampler_at_once() -> None:
    for sampler in (FailingAtOnce(), 5):
        theirs, ours = (iterate(kind(Augmented(), sampler=sampler, num_workers=2)) for kind in BOTH)
        assert_same(ours, theirs)
        assert isinstance(ours[0], Raised)


def test_an_exception_keeps_no_batch() -> None:
    """A traceback that the user keeps must not keep slots."""
    loader = shmloader.DataLoader(Failing(ERRORS["ValueError"], tuple(range(0, 16, 2))), num_workers=1)
    iterator = iter(loader)
    held = []
    for _ in range(16):
        try:
            next(iterator)
        except ValueError as error:
            held.append(error)
        assert loader.stats().lent_slots <= 1
    assert len(held) == 8
    del iterator


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
