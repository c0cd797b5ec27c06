"""Features that show when something fails: exceptions, workers that die, signals, starting and shutting down.

The names of the tests are the rows of the contract; torch's class gives every answer.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
import time
from typing import Any

import pytest
import torch
import torch.utils.data
from conftest import Augmented, Raised, compare, iterate, seed_all, started
from scripts import run_script
from torch.utils.data import IterableDataset, _utils, get_worker_info

import shmloader

pytestmark = pytest.mark.usefixtures("impatient_torch")
CREWS = pytest.mark.parametrize(("workers", "persistent"), [(0, False), (1, False), (2, True)])

# ---------------------------------------------------------------------------------------------------------- exceptions


class NeedsArguments(Exception):
    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"{code}: {reason}")


class Messaged(Exception):
    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class KeepsItsKey(KeyError):
    pass


class Unusable(Exception):
    def __init__(self) -> None:
        super().__init__("takes nothing")


def chained() -> Exception:
    error = RuntimeError("second")
    error.__cause__ = ValueError("first")
    return error


ERRORS: dict[str, Any] = {
    "ValueError": lambda: ValueError("a bad item"),
    "no text": lambda: ValueError(),
    "lines": lambda: ValueError("one\ntwo"),
    "KeyError": lambda: KeyError("missing\nkey"),
    "KeyError subclass": lambda: KeepsItsKey("missing"),
    "IndexError": lambda: IndexError(3),
    "with required constructor arguments": lambda: NeedsArguments(3, reason="why"),
    "with a message": lambda: Messaged("text"),
    "taking nothing": lambda: Unusable(),
    "OSError": lambda: FileNotFoundError(2, "No such file", "name"),
    "UnicodeDecodeError": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    "with a cause": chained,
    "AssertionError": lambda: AssertionError(),
    "a warning": lambda: UserWarning("raised"),
    "RuntimeError": lambda: RuntimeError("Caught nothing"),
    "StopAsyncIteration": lambda: StopAsyncIteration("no"),
}


class Failing(Augmented):
    def __init__(self, at: dict[int, Any], length: int = 8) -> None:
        super().__init__(length)
        self.at = at

    def __getitem__(self, index: int) -> Any:
        if index in self.at:
            raise self.at[index]()
        return index


class FailingStream(IterableDataset):
    """Each worker fails at its k-th sample; a generator has ended then."""

    def __init__(self, at: int, error: Any) -> None:
        self.at, self.error = at, error

    def __iter__(self) -> Any:
        if self.at < 0:
            raise self.error()
        for k in range(4):
            if k == self.at:
                raise self.error()
            yield k


class Resuming(FailingStream):
    """Its iterator goes on after an error."""

    def __iter__(self) -> Any:
        return ResumingIterator()


class ResumingIterator:
    k = 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        self.k += 1
        if self.k == 6:
            raise StopIteration
        if self.k in (2, 4):
            raise ValueError(f"sample {self.k}")
        return self.k


@pytest.mark.parametrize("workers", [0, 1])
def test_feature_exceptions(workers: int) -> None:
    """Whole texts; and the epoch goes on: every second sample fails, each with its error."""
    dataset = Failing({2 * k + 1: error for k, error in enumerate(ERRORS.values())}, 2 * len(ERRORS))
    got = compare(lambda kind: iterate(kind(dataset, num_workers=workers)))
    assert [isinstance(each, Raised) for each in got] == [False, True] * len(ERRORS)


@CREWS
def test_feature_exceptions_at_every_place(workers: int, persistent: bool) -> None:
    for at in ((0, 7), (2, 3), tuple(range(8))):
        dataset = Failing(dict.fromkeys(at, ERRORS["KeyError"]))

        def epochs(kind: Any, dataset: Any = dataset) -> Any:
            loader = kind(dataset, batch_size=2, num_workers=workers, persistent_workers=persistent)
            return [iterate(loader) for _ in range(2)]

        compare(epochs)


@CREWS
@pytest.mark.parametrize("at", [-1, 0, 2])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_feature_exceptions_in_dataset_iter(at: int, batch_size: int | None, workers: int, persistent: bool) -> None:
    """In __iter__ itself there is never a fetcher, and never an end: a few batches are compared."""

    def epochs(kind: Any) -> Any:
        seed_all()
        dataset = FailingStream(at, ERRORS["ValueError"])
        loader = kind(dataset, batch_size, num_workers=workers, persistent_workers=persistent)
        return [started(loader, 4) for _ in range(2)]

    compare(epochs)


@CREWS
def test_feature_exceptions_and_an_iterator_that_goes_on(workers: int, persistent: bool) -> None:
    def epochs(kind: Any) -> Any:
        loader = kind(Resuming(0, None), 2, num_workers=workers, persistent_workers=persistent)
        return [iterate(loader) for _ in range(2)]

    compare(epochs)


def collate_failing(items: list[Any]) -> Any:
    if 2 in items:
        raise KeyError("in collate_fn")
    return items


@CREWS
@pytest.mark.parametrize("dataset", [lambda: range(6), lambda: Resuming(0, None)], ids=["map", "iterable"])
def test_feature_exceptions_in_collate_fn(dataset: Any, workers: int, persistent: bool) -> None:
    def epochs(kind: Any) -> Any:
        loader = kind(dataset(), 2, num_workers=workers, persistent_workers=persistent, collate_fn=collate_failing)
        return [iterate(loader) for _ in range(2)]

    compare(epochs)


class Unpicklable:
    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


@pytest.mark.parametrize("persistent", [False, True])
def test_feature_exceptions_in_pickling(persistent: bool) -> None:
    """torch's worker pickles in a thread of its queue, where it prints the error and the trainer waits for ever: so a
    timeout is what torch raises, and the error itself is what ours does, in its place."""

    def epoch(kind: Any, **options: Any) -> Any:
        dataset = Failing({}, 3)
        loader = kind(dataset, num_workers=1, collate_fn=give_unpicklable, persistent_workers=persistent, **options)
        return started(loader, 3)

    theirs = epoch(torch.utils.data.DataLoader, timeout=0.5)
    assert isinstance(theirs[1], Raised) and "timed out" in theirs[1].text
    ours = epoch(shmloader.DataLoader)
    assert ours[1].kind is TypeError and "cannot be pickled" in ours[1].text
    assert (ours[0], ours[2]) == ([0], [2])


def give_unpicklable(items: list[Any]) -> Any:
    return Unpicklable() if items == [1] else items


# --------------------------------------------------------------------------------------------- what ends more than that


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_feature_only_exception_is_caught_stop_iteration_of_a_map_dataset(workers: int, persistent: bool) -> None:
    """It silently ends the epoch."""
    dataset = Failing({3: StopIteration})

    def epochs(kind: Any) -> Any:
        loader = kind(dataset, num_workers=workers, persistent_workers=persistent and workers > 0)
        return [iterate(loader) for _ in range(2)]

    compare(epochs)


class Dying(Augmented):
    """The worker's first sample ends it; not at once, so that the trainer waits for it."""

    def __init__(self, end: Any) -> None:
        super().__init__(8)
        self.end = end

    def __getitem__(self, index: int) -> Any:
        if get_worker_info() is not None:
            time.sleep(0.15)
            self.end()
        return index


class DyingStream(IterableDataset):
    def __init__(self, end: Any) -> None:
        self.end = end

    def __iter__(self) -> Any:
        yield Dying(self.end)[0]


def raise_it(error: type[BaseException], *args: Any) -> Any:
    def end() -> None:
        raise error(*args)

    return end


def die_by(number: int) -> Any:
    def end() -> None:
        faulthandler.disable()  # pytest's, which would print a stack into the tests' output
        os.kill(os.getpid(), number)

    return end


DEATHS: dict[str, Any] = {
    "SystemExit": raise_it(SystemExit),
    "SystemExit 3": raise_it(SystemExit, 3),
    "SystemExit text": raise_it(SystemExit, "said why"),
    "KeyboardInterrupt": raise_it(KeyboardInterrupt),
    "GeneratorExit": raise_it(GeneratorExit),
    "os._exit(0)": lambda: os._exit(0),
    "os._exit(7)": lambda: os._exit(7),
    "SIGKILL": die_by(signal.SIGKILL),
    "SIGBUS": die_by(signal.SIGBUS),
    "SIGSEGV": die_by(signal.SIGSEGV),
    "SIGFPE": die_by(signal.SIGFPE),
    "SIGABRT": die_by(signal.SIGABRT),
    "SIGTERM from itself": die_by(signal.SIGTERM),
    "SIGTERM from the trainer": lambda: time.sleep(20),
}


def death(kind: Any, dataset: Any, terminate: bool = False, **options: Any) -> Any:
    """The first error, and the workers' exit codes once they are shut down.

    torch's handler of SIGCHLD may raise where the trainer does not wait for a batch.  Then torch's loader does not say
    that the worker exited unexpectedly, and is asked again.
    """
    found = _death(kind, dataset, terminate, **options)
    if kind is not shmloader.DataLoader and any("is killed by signal" in each.first_line for each in found[0]):
        found = _death(kind, dataset, terminate, **options)
    return found


def _death(kind: Any, dataset: Any, terminate: bool, **options: Any) -> Any:
    loader = kind(dataset, num_workers=1, **options)
    iterator = iter(loader)
    if terminate:
        threading.Timer(0.3, iterator._workers[0].terminate).start()
    errors = [each for each in started(iterator, 1) if isinstance(each, Raised)]
    iterator._shutdown_workers()
    return errors, [worker.exitcode for worker in iterator._workers]


@pytest.mark.parametrize("how", DEATHS)
def test_feature_parent_sigchld_and_polling_and_c_handlers(how: str, capfd: pytest.CaptureFixture[str]) -> None:
    """What the trainer raises; what the worker writes when it dies, and the code with which it is gone."""

    def died(kind: Any) -> Any:
        errors, codes = death(kind, Dying(DEATHS[how]), "trainer" in how)
        lines = [line for line in capfd.readouterr().err.splitlines() if "rror" in line or "said" in line]
        return errors, codes, lines

    assert compare(died)[0]


@pytest.mark.parametrize("how", ["SystemExit", "KeyboardInterrupt", "SIGKILL"])
@pytest.mark.parametrize("persistent", [False, True])
def test_feature_parent_sigchld_and_polling_iterable(how: str, persistent: bool) -> None:
    assert compare(lambda kind: death(kind, DyingStream(DEATHS[how]), persistent_workers=persistent))[0]


def test_feature_parent_sigchld_and_polling_with_timeout() -> None:
    compare(lambda kind: death(kind, Dying(DEATHS["SIGKILL"]), timeout=20))


def test_feature_parent_sigchld_handler_is_installed_once_and_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the main thread only."""
    before = signal.getsignal(signal.SIGCHLD)
    monkeypatch.setattr(_utils.signal_handling, "_SIGCHLD_handler_set", False)

    def installed(kind: Any) -> Any:
        monkeypatch.setattr(_utils.signal_handling, "_SIGCHLD_handler_set", False)
        heard: list[int] = []

        def mine(number: int, frame: Any) -> None:
            heard.append(number)

        signal.signal(signal.SIGCHLD, mine)
        thread = threading.Thread(target=lambda: list(kind(range(2), num_workers=1)))
        thread.start()
        thread.join()
        found = [signal.getsignal(signal.SIGCHLD) is mine]
        list(kind(range(2), num_workers=1))
        first = signal.getsignal(signal.SIGCHLD)
        found += [first is mine, getattr(first, "__qualname__", None)]
        list(kind(range(2), num_workers=1))
        return found, signal.getsignal(signal.SIGCHLD) is first, len(heard) > 0

    try:
        compare(installed)
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.long
def test_feature_polling_fallback_too_many_open_files() -> None:
    """torch raises if no descriptor is left; ours needs none for a batch, and continues."""
    ran = run_script(
        """
        import contextlib, os, resource, torch.utils.data, shmloader

        resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        for kind in (shmloader.DataLoader, torch.utils.data.DataLoader):
            iterator = iter(kind(range(8), num_workers=1))
            next(iterator)
            taken = []
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.dup(0))
            try:
                print([next(iterator).item() for _ in range(5)])
            except (RuntimeError, OSError) as error:
                print(error)
            for fd in taken:
                os.close(fd)
        """
    )
    ours, theirs = ran.out.splitlines()
    assert ours == "[1, 2, 3, 4, 5]" and "Too many open files" in theirs


@pytest.mark.long
def test_feature_worker_watchdog() -> None:
    """Nothing is left of a trainer that was killed, which run_script sees to; torch's workers may stay for long."""
    ran = run_script(
        """
        import os, signal, shmloader
        iterator = iter(shmloader.DataLoader(range(8), num_workers=2))
        print(next(iterator).item(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    assert (ran.status, ran.out) == (-signal.SIGKILL, "0\n")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["torch.utils.data", "shmloader"])
def test_feature_exit_with_live_iterators(kind: str) -> None:
    """An iterator half-way and a persistent one, when the interpreter goes down: no word, and status 0."""
    ran = run_script(
        f"""
        import {kind}, torch.utils.data
        one = iter({kind}.DataLoader(range(8), num_workers=1))
        loader = {kind}.DataLoader(range(8), num_workers=1, persistent_workers=True)
        print(next(one).item(), len(list(loader)), flush=True)
        """
    )
    assert (ran.status, ran.out, ran.err) == (0, "0 8\n", "")


# ------------------------------------------------------------------------------------------------- start and shutdown


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
@pytest.mark.parametrize("what", ["dataset", "collate_fn", "worker_init_fn"])
def test_feature_start_failure(what: str, context: str) -> None:
    """A warning about pickling, and the error."""

    def outcome(kind: Any) -> Any:
        dataset = Augmented()
        options: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": context}
        if what == "dataset":
            dataset.bad = threading.Lock()  # type: ignore[attr-defined]
        else:
            options[what] = lambda *args: None
        try:
            return iter(kind(dataset, **options))
        except Exception as error:
            return type(error), str(error).split(" at 0x")[0]

    compare(outcome)


def test_feature_shutdown_is_nothing_while_the_interpreter_exits(monkeypatch: pytest.MonkeyPatch) -> None:
    def shut(kind: Any) -> Any:
        iterator = iter(kind(range(8), num_workers=1))
        found = []
        for status in (True, None, False):
            monkeypatch.setattr(_utils, "python_exit_status", status)
            iterator._shutdown_workers()
            found.append((iterator._shutdown, iterator._workers[0].is_alive()))
        return found

    compare(shut)


@pytest.mark.parametrize("drained", [0, 1, 8])
@pytest.mark.parametrize("persistent", [False, True])
def test_feature_shutdown_when_collected(drained: int, persistent: bool) -> None:
    """Workers have left once the last name is gone, whatever was in flight; with exit code 0."""

    def collected(kind: Any) -> Any:
        loader = kind(range(8), num_workers=2, persistent_workers=persistent)
        iterator = iter(loader)
        for _ in range(drained):
            next(iterator)
        workers = list(iterator._workers)
        del iterator, loader
        return [(worker.is_alive(), worker.exitcode) for worker in workers]

    compare(collected)


def test_feature_shutdown_terminates_a_worker_that_does_not_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shmloader.trainer.worker_set.PATIENCE", 0.2)

    def terminated(kind: Any) -> Any:
        iterator = iter(kind(Dying(DEATHS["SIGTERM from the trainer"]), num_workers=1))
        time.sleep(0.3)
        iterator._shutdown_workers()
        return [(worker.is_alive(), worker.exitcode) for worker in iterator._workers]

    compare(terminated)
