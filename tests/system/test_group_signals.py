"""A signal to the whole group: the trainer catches it and goes on, and so do its workers.  NOTE [ Group signals ]"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
import torch
from conftest import BOTH, Items, assert_same, compare
from scripts import run_script, start_script

import shmloader

GROUP = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


class Slow(torch.utils.data.Dataset):
    """Its workers are busy whenever a signal comes."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.01)
        return index, os.getpid()


def send_from_elsewhere(pid: int, number: int) -> None:
    """As a scheduler does: to a process, or to a whole group, which is that of -pid."""
    send = [sys.executable, "-S", "-c", f"import os; os.kill({pid}, {number:d})"]
    subprocess.run(send, start_new_session=True, check=True)


# ------------------------------------------------------------------------------------------------------ to the group

# The trainer hears each signal, takes the rest of the epoch, and ends as it likes.
TRAINER = """
import contextlib, os, signal, sys, time, torch, shmloader
from tests.system.test_group_signals import Slow, send_from_elsewhere

def main():
    start, number, kind, end = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    heard = []
    signal.signal(number, lambda *_: heard.append(1))
    if kind == "torch":  # without tensors, because those that nobody takes stay in /dev/shm
        for batch in torch.utils.data.DataLoader(Slow(), batch_size=2, num_workers=2, collate_fn=list):
            if batch[0][0] == 6:
                send_from_elsewhere(-os.getpid(), number)
        print("it goes on")
        return
    loader = shmloader.DataLoader(Slow(), batch_size=2, num_workers=2, multiprocessing_context=start)
    iterator = iter(loader)
    got, pids = [], set()
    for k, (indices, by) in enumerate(iterator):
        got += indices.tolist()
        pids.update(by.tolist())
        if k in (3, 6):
            send_from_elsewhere(-os.getpid(), number)
        if k == 24 and end == "exit":
            break
    while len(heard) < 2: time.sleep(0.01)
    print(got == list(range(len(got))), len(pids), len(heard))
    if end == "close":
        iterator.close()
    if end == "raise":
        raise SystemExit(3)

if __name__ == "__main__":
    main()
"""


def trainer(*arguments: Any) -> Any:
    script = TRAINER.replace("sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]", ", ".join(map(repr, arguments)))
    return run_script(script)


FORKED = [("fork", int(number)) for number in GROUP]
ELSE = [(start, int(number)) for start in ("spawn", "forkserver") for number in GROUP]
SPAWNED = [ELSE[0], *(pytest.param(*each, marks=pytest.mark.long) for each in ELSE[1:])]


@pytest.mark.long
@pytest.mark.parametrize(("start", "number"), [*FORKED, *SPAWNED])
def test_the_trainer_goes_on(start: str, number: int) -> None:
    ran = trainer(start, number, "shmloader", "exit")
    assert (ran.status, ran.out) == (0, "True 2 2\n"), ran.out + ran.err


@pytest.mark.long
@pytest.mark.parametrize("end", ["close", "raise"])
def test_it_ends_as_it_likes(end: str) -> None:
    ran = trainer("fork", int(signal.SIGTERM), "shmloader", end)
    assert (ran.status, ran.out) == (3 if end == "raise" else 0, "True 2 2\n"), ran.out + ran.err


def test_torchs_dies_of_it() -> None:
    """In one of several ways; otherwise this file tests nothing."""
    ran = trainer("fork", int(signal.SIGTERM), "torch", "exit")
    assert ran.status == 1 and not ran.out, ran.out + ran.err


@pytest.mark.long
def test_a_trainer_that_dies_of_it_leaves_nothing() -> None:
    ran = run_script(
        """
        import os, signal, shmloader
        from tests.system.test_group_signals import Slow, send_from_elsewhere
        for k, batch in enumerate(shmloader.DataLoader(Slow(), num_workers=3)):
            if k == 2: send_from_elsewhere(-os.getpid(), signal.SIGTERM)
        """
    )
    assert ran.status == -signal.SIGTERM


@pytest.mark.long
def test_a_worker_that_is_being_forked() -> None:
    """It has inherited the trainer's handlers, and must not call them, because they save the trainer's checkpoint."""
    ran = run_script(
        """
        import os, signal, subprocess, sys, time, shmloader
        from conftest import Augmented

        def send_soon():
            code = f"import os, time; time.sleep(0.5); os.kill(-{trainer}, {signal.SIGTERM:d})"
            sending.append(subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True))

        trainer, sending = os.getpid(), []
        signal.signal(signal.SIGTERM, lambda *_: print("the trainer" if os.getpid() == trainer else "a worker"))
        os.register_at_fork(before=send_soon, after_in_child=lambda: time.sleep(1.5))
        batches = list(shmloader.DataLoader(Augmented(), num_workers=1))
        print(len(batches), sending[0].wait())
        """
    )
    assert ran.out == "the trainer\n22 0\n", ran.out + ran.err


def test_the_trainers_mask_is_as_it_was() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    list(shmloader.DataLoader(Slow(), num_workers=1))
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


# ------------------------------------------------------------------------------------------------------ to one worker


@pytest.mark.parametrize("number", GROUP)
def test_one_from_elsewhere_is_dropped(number: int) -> None:
    loader = shmloader.DataLoader(Slow(), batch_size=4, num_workers=2)
    iterator = iter(loader)
    pids = [worker.pid for worker in iterator._workers]
    next(iterator)
    send_from_elsewhere(pids[1], number)
    rest = list(iterator)
    assert len(rest) == 14 and {pid for _, by in rest for pid in by.tolist()} == set(pids)


def test_a_sigterm_from_the_trainer_ends_it() -> None:
    iterator = iter(shmloader.DataLoader(Slow(), num_workers=1))
    os.kill(iterator._workers[0].pid, signal.SIGTERM)
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(iterator)
    assert iterator._workers[0].exitcode == 0


def test_the_trainers_sigint_does_not() -> None:
    iterator = iter(shmloader.DataLoader(Slow(), num_workers=1))
    os.kill(iterator._workers[0].pid, signal.SIGINT)
    assert len(list(iterator)) == 60


def raise_in_itself(number: int) -> int:
    signal.raise_signal(number)
    return 7


@pytest.mark.usefixtures("impatient_torch")
@pytest.mark.parametrize("number", GROUP)
def test_what_a_worker_sends_itself(number: int) -> None:
    """Is done as in torch: SIGINT raises KeyboardInterrupt, the others end it."""

    def outcome(kind: Any) -> Any:
        iterator = iter(kind(Items([lambda: raise_in_itself(number)]), batch_size=None, num_workers=1))
        try:
            return next(iterator)
        except Exception as error:  # of a worker that dies torch tells in one of two ways, as it happens
            return type(error), "KeyboardInterrupt" in str(error)
        finally:
            iterator._shutdown_workers()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        compare(outcome)
    finally:
        signal.signal(signal.SIGINT, before)


# ----------------------------------------------------------------------------------------------------- others' handlers

heard: list[int] = []


def listen(worker: int) -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))


class Heard(Slow):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.02)
        return len(heard)


def test_a_handler_of_the_datasets_counts() -> None:
    iterator = iter(shmloader.DataLoader(Heard(), batch_size=None, num_workers=1, worker_init_fn=listen))
    assert next(iterator) == 0
    send_from_elsewhere(iterator._workers[0].pid, signal.SIGTERM)
    assert list(iterator)[-1] == 1


class Parent(torch.utils.data.Dataset):
    """Starts processes, ends them by SIGTERM, and says how they ended."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        child = subprocess.Popen(["sleep", "60"])
        child.terminate()
        if not (forked := os.fork()):
            time.sleep(60)
            os._exit(1)
        os.kill(forked, signal.SIGTERM)
        return child.wait(), os.waitpid(forked, 0)[1]


def test_what_a_worker_starts_can_be_ended() -> None:
    theirs, ours = (list(kind(Parent(), batch_size=None, num_workers=1)) for kind in BOTH)
    assert_same(ours, theirs)
    assert ours[0][0] == -signal.SIGTERM


def test_otherwise_they_die_as_in_torch() -> None:
    def outcome(kind: Any) -> Any:
        options = {"workers_outlive_signals": False} if kind is shmloader.DataLoader else {}
        iterator = iter(kind(Slow(), num_workers=1, collate_fn=list, **options))  # tensors that nobody takes stay
        next(iterator)
        with pytest.raises(RuntimeError, match=r"is killed by signal: Terminated|exited unexpectedly"):
            send_from_elsewhere(iterator._workers[0].pid, signal.SIGTERM)  # torch's SIGCHLD handler may raise here
            list(iterator)
        iterator._shutdown_workers()
        return iterator._workers[0].exitcode

    assert compare(outcome) == -signal.SIGTERM


@pytest.mark.parametrize("value", [None, 1, "no"])
def test_what_is_neither_true_nor_false(value: Any) -> None:
    with pytest.raises(ValueError, match=f"workers_outlive_signals={value!r}"):
        shmloader.DataLoader(Slow(), workers_outlive_signals=value)


# ----------------------------------------------------------------------------------------------------- the fork server


# ------------------------------------------------------------------------------------------------------------- Ctrl-C


def test_the_first_worker_is_blocked_too() -> None:
    """multiprocessing starts its resource tracker before the first process that it spawns, and lets signals through."""
    ran = run_script(
        """
        import multiprocessing, signal
        from multiprocessing import resource_tracker
        from shmloader.system.signals import GROUP, blocked_at_start
        with blocked_at_start(multiprocessing.get_context("spawn")):
            resource_tracker.getfd()
            print(signal.pthread_sigmask(signal.SIG_BLOCK, ()) >= set(GROUP))
        print(signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(GROUP))
        """
    )
    assert ran.out == "True\nset()\n", f"{ran.out}\n{ran.err}"


@pytest.mark.long
def test_ctrl_c_while_a_spawned_worker_imports() -> None:
    """It has no handlers yet, so what ends it at exit kills it, and torch's handler for SIGCHLD raised in the exit."""
    process = start_script(
        """
        import multiprocessing, time
        if __name__ == "__mp_main__":
            first = multiprocessing.current_process().name.endswith("-1")
            large = b"x" * (1 << 29) if first else b""  # it takes a while to die: the other one's death comes meanwhile
            print("imports", flush=True)
            time.sleep(60)
        import shmloader
        if __name__ == "__main__":
            iterator = iter(shmloader.DataLoader([1, 2], num_workers=2, multiprocessing_context="spawn"))
            print("waits", flush=True)
            next(iterator)
        """
    )
    assert process.stdout is not None
    assert sorted(process.stdout.readline() for _ in range(3)) == ["imports\n", "imports\n", "waits\n"]
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT, err
    assert "Exception ignored" not in err and err.count("Traceback") == 1, err
