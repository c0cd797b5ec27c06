"""Ctrl-C at random moments of an iterator's start, of its batches and of its end, again and again: what is left?

As a script it prints the result for either loader, and exits with 1 if anything is left, or if a Ctrl-C was lost:

    python tests/trainer/interrupts.py --loader torch --moment end --count 30
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import gc
import os
import random
import signal
import sys
import threading
import time
from multiprocessing import forkserver, resource_tracker
from typing import Any

import psutil
import torch
import torch.utils.data

import shmloader

LOADERS = {"torch": torch.utils.data.DataLoader, "shmloader": shmloader.DataLoader}
BATCHES = 6
MOMENTS = ("start", "next", "end")
ENDS = ("closed", "dropped", "exhausted")


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 2 * BATCHES

    def __getitem__(self, index: int) -> Any:
        return torch.full((1000,), index)


class Press(threading.Thread):
    """Sends SIGINT some time after go(), at any line of the main thread."""

    def __init__(self, delay: float) -> None:
        super().__init__(name="press")
        self._delay = delay
        self._go = threading.Event()

    def run(self) -> None:
        self._go.wait()
        time.sleep(self._delay)
        os.kill(os.getpid(), signal.SIGINT)

    def go(self) -> None:
        self._go.set()

    def wait(self) -> None:
        """Until it has pressed, and whatever that raises was raised."""
        self._go.set()
        self.join()
        for _ in range(9):
            pass


def children() -> set[int]:
    """Child processes, the ended ones that nobody has waited for as well."""
    keep = {resource_tracker._resource_tracker._pid, forkserver._forkserver._forkserver_pid}
    return {child.pid for child in psutil.Process().children(recursive=True) if child.pid not in keep}


def present() -> dict[str, collections.Counter[Any]]:
    files: collections.Counter[str] = collections.Counter()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one of this listing
            files[os.readlink(f"/proc/self/fd/{fd}").split(":[")[0]] += 1
    return {
        "children": collections.Counter(children()),
        "descriptors": files,
        "threads": collections.Counter(thread.name for thread in threading.enumerate()),
        "memory": collections.Counter(name for name in os.listdir("/dev/shm") if f"_{os.getpid()}_" in name),
    }


def left_since(before: dict[str, collections.Counter[Any]], seconds: float = 5) -> dict[str, Any]:
    """What is there and was not, once it has had time to go."""
    end = time.monotonic() + seconds
    while True:
        gc.collect()
        now = present()
        left = {what: dict(now[what] - before[what]) for what in now if now[what] - before[what]}
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.01)


def interrupt_once(loader: Any, moment: str, delay: float, how: str) -> tuple[bool, str]:
    """Interrupt this moment of an iterator of the loader; whether that was heard, and what else was raised."""
    press = Press(delay)
    press.start()
    heard, error = False, ""
    iterator: Any = None
    try:
        try:
            if moment == "start":
                press.go()
            iterator = iter(loader)
            if moment == "next":
                press.go()
            for _ in range(BATCHES if how == "exhausted" or moment == "next" else BATCHES // 2):
                next(iterator)
            if moment == "end":
                press.go()
            if how == "closed":
                iterator._shutdown_workers()
            elif how == "dropped":
                iterator = None
            else:
                for _ in iterator:
                    pass
        finally:
            press.wait()
    except KeyboardInterrupt:
        heard = True
    except Exception as raised:
        error = repr(raised)
    while press.is_alive():  # it was heard while this waited
        with contextlib.suppress(KeyboardInterrupt):
            press.wait()
    return heard, error


def interrupt(kind: str, moment: str, start: str, count: int, seed: int, span: float, **options: Any) -> list[str]:
    """The failures of this many interrupts within `span` seconds of the beginning of that moment."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.unraisablehook = lambda lost: None  # what is lost is counted
    options = {"num_workers": 2, "batch_size": 2, "multiprocessing_context": start, **options}
    make = LOADERS[kind]
    list(make(Numbers(), **options))
    gc.collect()
    wrong = []
    for k in range(count):
        chance = random.Random(seed * 1_000_003 + k)
        delay, how = chance.uniform(0, span), chance.choice(ENDS)
        before = present()
        heard, error = interrupt_once(make(Numbers(), **options), moment, delay, how)
        left = left_since(before)
        if left or error or not heard:
            wrong.append(f"{k} ({how}, {delay * 1000:.1f} ms): {'' if heard else 'not heard'} {left or ''} {error}")
        try:
            if k % 5 == 0 and len(list(make(Numbers(), **options))) != BATCHES:
                wrong.append(f"{k}: the next one is not whole")
        except Exception as raised:
            wrong.append(f"{k}: the next one: {raised!r}")
    return wrong


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loader", choices=LOADERS, default="shmloader")
    parser.add_argument("--moment", choices=MOMENTS, default="end")
    parser.add_argument("--start", choices=("fork", "spawn", "forkserver"), default="fork")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--span", type=float, default=0.05, help="seconds within which the interrupts come")
    parser.add_argument("--respawn", action="store_true")
    chosen = parser.parse_args(arguments)
    options = {"on_worker_death": "respawn"} if chosen.respawn else {}
    wrong = interrupt(chosen.loader, chosen.moment, chosen.start, chosen.count, chosen.seed, chosen.span, **options)
    print(*wrong, sep="\n")
    print(f"{chosen.loader}, {chosen.moment}, {chosen.start}: {len(wrong)} of {chosen.count} went wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
