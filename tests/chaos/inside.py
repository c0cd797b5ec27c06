"""What runs in a trial's process: samples that raise, exit, crash or hang, the loader, and the count of what is left.
It sends each event to the process that watches.
"""

from __future__ import annotations

import collections
import ctypes
import gc
import json
import os
import pathlib
import random
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import numpy.random  # here, because NumPy imports it at its first use, which fails under a limit on processes
import torch
from torch.utils.data import Dataset, IterableDataset

Case = dict[str, Any]  # what a scenario drew for a trial; everything in it can be written as JSON

PER_BATCH = 4
SETTLES = 10.0  # seconds that threads, descriptors and processes have to go, once their loader has


# ------------------------------------------------------------------------------------------------------------- samples


class TwoArguments(Exception):
    """Cannot be made from its message alone, as KeyError's like cannot: torch gives a RuntimeError in its place."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def _raise(error: type[BaseException]) -> Callable[[], None]:
    def misdeed() -> None:
        raise error(1, 2) if error is TwoArguments else error("a misdeed\nof two lines")

    return misdeed


# What a dataset may do instead of giving a sample.
ERRORS: dict[str, Callable[[], None]] = {
    error.__name__: _raise(error)
    for error in (ValueError, KeyError, StopIteration, TwoArguments, MemoryError, OSError, AssertionError)
}
ENDS: dict[str, Callable[[], None]] = {
    "sys.exit(0)": lambda: sys.exit(0),
    "sys.exit(3)": lambda: sys.exit(3),
    "os._exit(0)": lambda: os._exit(0),
    "os._exit(5)": lambda: os._exit(5),
    "os.abort": os.abort,
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": lambda: ctypes.string_at(0) and None,
    "KeyboardInterrupt": _raise(KeyboardInterrupt),
    "GeneratorExit": _raise(GeneratorExit),
}
MISDEEDS: dict[str, Callable[[], None]] = {
    **ERRORS,
    **ENDS,
    "hang": lambda: time.sleep(1000),
    "hang in C": lambda: ctypes.CDLL(None).sleep(1000) and None,
}


class Samples(Dataset[Any]):
    """Samples of changing size; `misdeeds` says which are none."""

    def __init__(self, case: Case) -> None:
        self.length: int = case["batches"] * PER_BATCH
        self.floats: int = case["floats"]
        self.draws: bool = case["draws"]
        self.pause: float = case["pause"]
        self.misdeeds: dict[str, str] = case["misdeeds"]  # by the index's figures, as JSON has it

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if self.pause:
            time.sleep(self.pause * (index % 3))
        misdeed = self.misdeeds.get(str(index))
        if misdeed:
            MISDEEDS[misdeed]()
        x = torch.full((self.floats * (1 + index // PER_BATCH % 5),), float(index))
        if self.draws:
            x += torch.rand(()) + random.random() + numpy.random.rand()
        return {"x": x, "index": index, "name": f"sample {index}"}


class Stream(IterableDataset[Any]):
    """The same samples, a part to each worker."""

    def __init__(self, case: Case) -> None:
        self.samples = Samples(case)

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        assert worker is not None
        for first in range(worker.id * PER_BATCH, len(self.samples), worker.num_workers * PER_BATCH):
            for index in range(first, first + PER_BATCH):
                yield self.samples[index]


def digest(batch: Any) -> int:
    """One number for all that a batch holds."""
    x = batch["x"].numpy()
    rest = (str(x.dtype), x.shape, batch["index"].tolist(), batch["name"])
    return zlib.crc32(repr(rest).encode(), zlib.crc32(x.tobytes()))


def seed_all(seed: int) -> None:
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def options(case: Case, ours: bool) -> dict[str, Any]:
    """The loader's options.  Batches are a list of lists: an interrupt would end a sampler that is a generator."""
    chosen = {
        "num_workers": case["workers"],
        "prefetch_factor": case["prefetch"],
        "persistent_workers": case["persistent"],
        "timeout": case["timeout"],
    }
    if case["workers"]:
        chosen["multiprocessing_context"] = case["start"]
    if case["stream"]:
        chosen |= {"batch_size": PER_BATCH, "dataset": Stream(case)}
    else:
        order = list(range(case["batches"]))
        random.Random(case["order"]).shuffle(order)
        batches = [[PER_BATCH * k + j for j in range(PER_BATCH)] for k in order]
        chosen |= {"batch_sampler": batches, "dataset": Samples(case)}
    return chosen | (case["ours"] if ours else {})


# ----------------------------------------------------------------------------------------------------- in the process


class Inside:
    """What a scenario has at hand in a trial's process.

    Args:
        kind: the DataLoader's class.
        ours: whether it is ours.
        case: what was drawn for this trial.
        pipe: where words go to the process that watches.
    """

    def __init__(self, kind: Any, ours: bool, case: Case, pipe: int) -> None:
        self.kind, self.ours, self.case, self._pipe = kind, ours, case, pipe
        os.environ["SHMLOADER_RING_MEMORY"] = case.get("memory", "auto")
        self.random = random.Random(case["order"])
        self.armed = False  # whether an interrupt is to be an exception now
        self.interrupts = 0

    def say(self, *words: Any) -> None:
        """Send an event to the watching process, in one write, so that it arrives whole or not at all."""
        os.write(self._pipe, (json.dumps(words) + "\n").encode())

    def say_error(self, error: BaseException) -> None:
        self.say("error", type(error).__name__, str(error)[:300])

    def loader(self, **more: Any) -> Any:
        return self.kind(**{**options(self.case, self.ours), **more})

    def iterate(self, iterator: Any, most: int = 1000) -> int:
        """Take so many batches and say each, or the error in its place; returns how many came."""
        came = 0
        for _ in range(most):
            try:
                batch = next(iterator)
            except StopIteration:
                self.say("end")
                break
            except Exception as error:
                self.say_error(error)
                if type(error) is RuntimeError and "DataLoader" in str(error):  # no worker, so it would go on for ever
                    break
                continue
            try:
                self.say("batch", digest(batch))
            except RuntimeError as error:  # torch's handler of SIGCHLD raises at any line of the user's
                self.say_error(error)
                break
            came += 1
        return came

    def epoch(self, loader: Any, number: int, most: int = 1000) -> None:
        """Run a whole epoch, which `number` seeds, and send its events."""
        seed_all(self.case["order"] + number)
        self.say("epoch", number)
        try:
            iterator = iter(loader)
        except Exception as error:
            self.say_error(error)
            return
        self.iterate(iterator, most)

    def arm(self) -> None:
        """Have SIGINT raise KeyboardInterrupt while `armed` is set, and do nothing at all else."""

        def interrupted(*_: Any) -> None:
            if self.armed:
                self.interrupts += 1
                raise KeyboardInterrupt

        signal.signal(signal.SIGINT, interrupted)

    def count(self) -> None:
        """Remember what is there before the first loader is."""
        gc.collect()
        self._before = _descriptors(), set(threading.enumerate())

    def count_again(self) -> None:
        """Say what is there beyond that, once it has had the time to go."""
        end = time.monotonic() + SETTLES
        while True:
            gc.collect()
            left = {
                "descriptors": dict(_descriptors() - self._before[0]),
                "threads": [thread.name for thread in threading.enumerate() if thread not in self._before[1]],
                "processes": children(os.getpid()) - _servers(),
            }
            left = {what: str(those) for what, those in left.items() if those}
            if not left or time.monotonic() > end:
                break
            time.sleep(0.01)
        self.say("left", left)


def children(pid: int) -> set[int]:
    """Living children of a process."""
    found = set()
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            candidates = task.read_text().split()
        except OSError:  # that thread has ended
            continue
        for child in candidates:
            try:
                state = pathlib.Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if state not in "ZX":
                found.add(int(child))
    return found


def _servers() -> set[int]:
    """multiprocessing's own processes, which stay."""
    from multiprocessing import forkserver, resource_tracker

    return {resource_tracker._resource_tracker._pid, forkserver._forkserver._forkserver_pid}  # type: ignore[attr-defined]


def _descriptors() -> collections.Counter[str]:
    found: collections.Counter[str] = collections.Counter()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[os.readlink(f"/proc/self/fd/{fd}").split(":[")[0]] += 1
        except OSError:  # the one of this listing
            continue
    return found
