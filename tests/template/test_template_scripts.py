"""Trainer, template and workers end as they should, whichever is killed and whatever the trainer is sent."""

from __future__ import annotations

import os
import signal

import pytest
from scripts import run_script, start_script, wait_until_gone

pytestmark = pytest.mark.long

SETTING = """
import os, signal, threading, time, torch, shmloader
from tests.system.test_group_signals import send_from_elsewhere

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 60
    def __getitem__(self, index):
        time.sleep(0.01)
        return index, os.getpid(), os.getppid()

def loader(**options):
    return shmloader.DataLoader(
        Slow(), batch_size=2, num_workers=2, multiprocessing_context="spawn", template=True, **options
    )
"""


def test_the_trainer_is_killed() -> None:
    """Its template ends with it, and the workers with that, busy as they are."""
    process = start_script(
        SETTING
        + """
if __name__ == "__main__":
    iterator = iter(loader())
    next(iterator)
    print("begun", flush=True)
    time.sleep(100)
"""
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not wait_until_gone(process.pid, 5)


def test_the_trainer_is_killed_while_its_template_unpickles_the_dataset() -> None:
    process = start_script(
        SETTING
        + """
class Hangs(Slow):
    def __getstate__(self):
        return 1  # otherwise there is none, and the next method is not called
    def __setstate__(self, state):
        print("unpickling", flush=True)
        time.sleep(100)

if __name__ == "__main__":
    list(shmloader.DataLoader(Hangs(), num_workers=1, multiprocessing_context="spawn", template=True))
"""
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "unpickling\n"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not wait_until_gone(process.pid, 5)


def test_it_is_interrupted_while_its_template_unpickles_the_dataset() -> None:
    """Ctrl-C ends the wait, and the next epoch has another template."""
    process = start_script(
        SETTING
        + """
class Hangs(Slow):
    def __getstate__(self):
        return {"parent": os.getpid(), "hangs": HANGS}
    def __setstate__(self, state):
        if state["hangs"]:
            print("unpickling", flush=True)
            time.sleep(100)

HANGS = True
if __name__ == "__main__":
    made = shmloader.DataLoader(Hangs(), batch_size=2, num_workers=1, multiprocessing_context="spawn", template=True)
    try:
        iter(made)
    except KeyboardInterrupt:
        print("heard", flush=True)
    HANGS = False
    print(len(list(made)))
"""
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "unpickling\n"
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=100)
    assert out == "heard\n30\n", err
    assert not wait_until_gone(process.pid, 5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_workers_and_template_outlive_a_signal_to_the_group(number: signal.Signals) -> None:
    ran = run_script(
        SETTING
        + f"""
if __name__ == "__main__":
    heard = []
    signal.signal({number:d}, lambda *_: heard.append(1))
    made, got, pids = loader(), [], set()
    for _ in range(2):
        for k, (indices, by, of) in enumerate(made):
            got += indices.tolist()
            pids.update(of.tolist())
            if k in (3, 6):
                send_from_elsewhere(-os.getpid(), {number:d})
    print(got == [*range(60), *range(60)], len(pids), len(heard))
"""
    )
    assert (ran.status, ran.out) == (0, "True 1 4\n"), ran.out + ran.err


def test_without_workers_outlive_signals_the_signal_ends_workers() -> None:
    ran = run_script(
        SETTING
        + """
if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: None)
    made = loader(workers_outlive_signals=False)
    try:
        for k, _ in enumerate(made):
            if k == 3:
                send_from_elsewhere(-os.getpid(), signal.SIGTERM)
    except RuntimeError as error:
        print("is killed by signal: Terminated" in str(error), "template" in str(error))
    print(len(list(made)))
"""
    )
    assert (ran.status, ran.out) == (0, "True False\n30\n"), ran.out + ran.err


@pytest.mark.parametrize("stopped", ["", "os.kill(parent, signal.SIGSTOP)", "os.kill(worker, signal.SIGSTOP)"])
def test_the_interpreter_ends_with_a_living_loader(stopped: str) -> None:
    """Nothing is left, not even where the template or a worker was stopped."""
    ran = run_script(
        SETTING
        + f"""
if __name__ == "__main__":
    made = loader()
    iterator = iter(made)
    _, workers, parents = next(iterator)
    worker, parent = workers[0].item(), parents[0].item()
    {stopped}
    print("ends")
"""
    )
    assert (ran.status, ran.out) == (0, "ends\n"), ran.out + ran.err


def test_ctrl_c_ends_the_wait_for_a_template_that_was_stopped() -> None:
    """When it continues, it forks no worker without a trainer, which would find no ring and report that."""
    ran = run_script(
        SETTING
        + """
if __name__ == "__main__":
    dataset = Slow()
    options = {"batch_size": 2, "num_workers": 1, "multiprocessing_context": "spawn", "template": True}
    made = shmloader.DataLoader(dataset, **options)
    parent = next(iter(made))[2][0].item()
    os.kill(parent, signal.SIGSTOP)
    threading.Timer(3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        iter(made)
    except KeyboardInterrupt:
        print("heard")
    os.kill(parent, signal.SIGCONT)
    print(len(list(made)))
"""
    )
    assert (ran.status, ran.out, ran.err) == (0, "heard\n30\n", ""), ran.out + ran.err


def test_the_modules_that_start_threads_are_named() -> None:
    """Native ones too; each module that the template imports is looked at."""
    ran = run_script(
        SETTING
        + """
from template.native_threads import thread

if __name__ == "__main__":
    print(len(list(loader())))
"""
    )
    assert ran.out == "30\n", ran.err
    assert "threads were started by template.native_threads, and what is forked beside threads may hang" in ran.err


def test_a_hang_is_reported_with_the_stack() -> None:
    ran = run_script(
        SETTING
        + """
class Hangs(Slow):
    def __getitem__(self, index):
        time.sleep(1000 if index == 5 else 0)
        return index

if __name__ == "__main__":
    dataset = Hangs()
    options = {"batch_size": 2, "num_workers": 2, "multiprocessing_context": "spawn", "template": True}
    iterator = iter(shmloader.DataLoader(dataset, **options))  # otherwise the start of the template has 3 seconds, too
    made = shmloader.DataLoader(dataset, timeout=3, **options)
    try:
        list(made)
    except RuntimeError as error:
        print("timed out after 3 seconds" in str(error), "in __getitem__" in str(error))
"""
    )
    assert (ran.status, ran.out) == (0, "True True\n"), ran.out + ran.err
