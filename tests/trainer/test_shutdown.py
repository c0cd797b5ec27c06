"""Workers, memory and threads end with the iterator, the loader or the trainer, however that one ends."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from multiprocessing import util
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Augmented, left_in_shm, own_threads, shm_names
from scripts import GONE, run_script, session_members, start_script, wait_until_gone

import shmloader
from shmloader.trainer import worker_set
from shmloader.trainer.worker_set import WorkerSet

DATASET = """
import ctypes, os, signal, sys, threading, time, torch, shmloader
class Numbers(torch.utils.data.Dataset):
    def __init__(self, slow_from=10**9, seconds=60): self.slow_from, self.seconds = slow_from, seconds
    def __len__(self): return 1000
    def __getitem__(self, k):
        if k >= self.slow_from: time.sleep(self.seconds)
        return torch.full((1000,), k)
class Starting(Numbers):
    def __setstate__(self, state):
        self.__dict__.update(state)
        print("starting", flush=True)
        time.sleep(60)
"""


# --------------------------------------------------------------------------------------------- the trainer is killed

# A worker that imports the trainer's script has imported nothing else yet: neither torch nor shmloader.
IMPORT = """
import sys, time
if "importing" in sys.argv and __name__ != "__main__":
    print("importing", flush=True)
    time.sleep(60)
"""

PHASES = {
    "waiting": "loader = make(Numbers(8))\nfor k, batch in enumerate(loader):\n    if k == 4: print('now', flush=True)",
    "computing": "it = iter(make(Numbers()))\nnext(it)\nprint('now', flush=True)\nwhile True: pass",
    "importing": "print('now', flush=True)\nit = iter(make(Numbers()))\ntime.sleep(60)",
    "starting": "print('now', flush=True)\nit = iter(make(Starting()))\ntime.sleep(60)",
}


@pytest.mark.parametrize(
    ("start", "phase"),
    [("fork", "computing"), ("spawn", "importing"), ("spawn", "starting"), ("forkserver", "waiting")],
)
def test_the_trainer_is_killed(start: str, phase: str) -> None:
    body = "\n    ".join(PHASES[phase].splitlines())
    names = shm_names()
    process = start_script(
        IMPORT
        + DATASET
        + f"""
def make(dataset): return shmloader.DataLoader(dataset, num_workers=2, multiprocessing_context="{start}")
if __name__ == "__main__":
    {body}
""",
        phase,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "now\n"
        if phase in ("importing", "starting"):
            process.stdout.readline()
        time.sleep(0.3)
        process.kill()
        process.wait()
        left = wait_until_gone(process.pid, GONE)
        assert not left
        assert not left_in_shm(names)
    finally:
        for pid in session_members(process.pid):
            os.kill(pid, signal.SIGKILL)
        assert "leaked" not in process.communicate()[1]


# ------------------------------------------------------------------------------------------------- the trainer ends


def test_ctrl_c() -> None:
    process = start_script(
        DATASET
        + """
shmloader.trainer.worker_set.PATIENCE = 1
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started with it ignored
for k, batch in enumerate(shmloader.DataLoader(Numbers(20), num_workers=2)):
    if k == 10: print("now", flush=True)
"""
    )
    assert process.stdout is not None and process.stdout.readline() == "now\n"
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=100)
    left = wait_until_gone(process.pid, GONE)
    assert not left
    assert err.count("Traceback") == 1 and err.strip().endswith("KeyboardInterrupt"), err
    assert process.returncode in (-signal.SIGINT, 130, 1)


ENDS = {
    "mid-epoch": ("it = iter(loader); next(it); held = next(it)", 0),
    "exception": ("for batch in loader: raise ValueError('in training')", 1),
    "os._exit": ("for batch in loader: os._exit(4)", 4),
    "SIGTERM": (
        "next(iter(loader)); it = iter(loader); next(it); os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)",
        -signal.SIGTERM,
    ),
}


@pytest.mark.parametrize("how", ENDS)
def test_the_trainer_ends(how: str) -> None:
    body, status = ENDS[how]
    begin = "print(time.monotonic(), flush=True)\nloader = shmloader.DataLoader(Numbers(), num_workers=2)\n"
    ran = run_script(DATASET + begin + body + "\n")
    assert ran.status == status, ran.err
    assert ran.seconds < 20
    assert ran.err.count("Traceback") == (how == "exception"), ran.err
    if how != "exception":
        assert not [line for line in ran.err.splitlines() if "Warning" not in line and "check_worker" not in line], (
            ran.err
        )


IN_A_DAEMON = """
class Slow(Numbers):
    def __getitem__(self, k):
        time.sleep(0.01)
        return super().__getitem__(k)
def run():
    while True:
        for _ in loader: started.set()
loader = shmloader.DataLoader(Slow(), num_workers=2, on_worker_death="MODE", persistent_workers=True)
started = threading.Event()
threading.Thread(target=run, daemon=True).start()
started.wait()
"""


@pytest.mark.long
@pytest.mark.parametrize("mode", ["raise", "respawn"])
def test_a_daemon_thread_that_waits_for_a_batch_goes_with_the_interpreter(mode: str) -> None:
    """multiprocessing ends the workers before the interpreter ends the thread, which is no loss to tell of."""
    ran = run_script(DATASET + IN_A_DAEMON.replace("MODE", mode))
    assert ran.status == 0 and not ran.err, ran.err


@pytest.mark.long
def test_an_iterator_that_outlives_the_modules_that_it_is_made_of() -> None:
    """What was imported last is taken apart first."""
    ran = run_script(DATASET + "os.held = iter(shmloader.DataLoader(Numbers(), num_workers=2))\nnext(os.held)\n")
    assert ran.status == 0 and not ran.err, ran.err


# -------------------------------------------------------------------------------------------------- a worker is lost

LOSING = (
    DATASET
    + """
class Losing(Numbers):
    def __getitem__(self, k):
        if k == 5: os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(k)
def run():
    began = time.monotonic()
    it = iter(shmloader.DataLoader(Losing(), num_workers=2))
    came = 0  # the second time, too: batch 4 may come behind the first error
    for again in range(2):
        try:
            for batch in it: began = time.monotonic(); assert batch[0, 0] == came; came += 1
        except RuntimeError as error:
            print("error", error, "|", "quickly" if time.monotonic() - began < 1.5 else "late")
    it.close()
thread = threading.Thread(target=run); thread.start(); thread.join()
"""
)


def test_a_worker_is_lost_in_a_thread() -> None:
    """And once more with the next call.  In the main thread, and by what else: conformance/test_failures.py."""
    ran = run_script(LOSING)
    assert ran.out.count("error DataLoader worker (pid") == 2 and ran.out.count("| quickly") == 2, ran.out + ran.err
    assert "is killed by signal: Killed" in ran.out, ran.out
    assert "Traceback" not in ran.err, ran.err


def test_a_worker_is_lost_under_forkserver() -> None:
    """Several times: the trainer may learn of the death before the fork server does."""
    ran = run_script(
        DATASET
        + """
class Losing(Numbers):
    def __getitem__(self, k):
        if k == 5: os._exit(0)
        return super().__getitem__(k)
if __name__ == "__main__":
    for _ in range(2):
        try: list(shmloader.DataLoader(Losing(), num_workers=1, multiprocessing_context="forkserver"))
        except RuntimeError as error: print("error", error)
"""
    )
    assert ran.out.count("error DataLoader worker (pid(s)") == 2, ran.out + ran.err


def test_a_worker_is_lost_that_others_know_nothing_of() -> None:
    """Two iterators: the one whose workers live goes on."""
    other = iter(shmloader.DataLoader(Augmented(), num_workers=1))
    next(other)
    iterator = iter(shmloader.DataLoader(Augmented(), num_workers=1))
    next(iterator)
    os.kill(iterator._workers[0].pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="is killed by signal: Killed"):
        list(iterator)
    assert len(list(other)) == 21
    iterator.close()


# ----------------------------------------------------------------------------------------------------------- closing


def test_workers_that_do_not_listen() -> None:
    """To the ring, and not to SIGTERM either."""
    ran = run_script(
        DATASET
        + """
def deaf(worker):
    for number in (signal.SIGTERM, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
class Deaf(Numbers):
    def __getitem__(self, k):
        if k >= 2: ctypes.CDLL(None).sleep(60) if k % 2 else sum(iter(int, 1))
        return super().__getitem__(k)
shmloader.trainer.worker_set.PATIENCE = 1
it = iter(shmloader.DataLoader(Deaf(), num_workers=2, worker_init_fn=deaf))
next(it)
time.sleep(0.3)
began = time.monotonic()
it.close()
print("closed after", time.monotonic() - began)
"""
    )
    took = [float(line.split()[-1]) for line in ran.out.splitlines()]
    assert len(took) == 1 and max(took) < 30, (took, ran.err)


def test_workers_that_were_stopped_end_with_the_interpreter() -> None:
    ran = run_script(
        DATASET
        + """
if __name__ == "__main__":
    it = iter(shmloader.DataLoader(Numbers(), num_workers=2))
    next(it)
    for worker in it._workers: os.kill(worker.pid, signal.SIGSTOP)
    print("stopped")
""",
        seconds=60,
    )
    assert ran.out == "stopped\n" and ran.status == 0, ran.err


@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_the_trainers_last_signal_is_not_taken_for_the_schedulers(start: str, tmp_path: Path) -> None:
    """Of two SIGTERMs that a worker has not seen, the kernel keeps the first.  This one sees none while it spawns."""
    os.mkfifo(tmp_path / "fifo")
    ran = run_script(
        DATASET
        + """
class Spawning(Numbers):
    def __getitem__(self, k):
        if k: os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, "FIFO", os.O_RDONLY, 0)])
        return super().__getitem__(k)
if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    it = iter(shmloader.DataLoader(Spawning(), num_workers=1, multiprocessing_context="START"))
    next(it)
    worker = it._workers[0].pid
    while not open(f"/proc/{worker}/task/{worker}/children").read(): time.sleep(0.01)
    print("spawns", flush=True)
    reads, writes = os.pipe()
    if os.fork() == 0:  # the scheduler
        os.read(reads, 1)  # a fork's hooks would swallow the SystemExit
        os.kill(worker, signal.SIGTERM)
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(1)  # until the trainer's has been sent; otherwise this would show nothing
        with open("FIFO", "w"):  # a second spawn, on a busy machine, must not wait for ever
            while os.path.exists(f"/proc/{worker}"): time.sleep(0.01)
            os._exit(0)
    os.write(writes, b"!")
    time.sleep(60)
""".replace("START", start).replace("FIFO", str(tmp_path / "fifo")),
        seconds=60,
    )
    assert ran.out == "spawns\n" and ran.status == 3, ran.err


def test_closing_is_quick_and_may_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_set, "PATIENCE", 100.0)  # for workers that do not end
    for close in (
        lambda it, loader: it.close(),
        lambda it, loader: loader.close(),
        lambda it, loader: it._shutdown_workers(),
    ):
        loader = shmloader.DataLoader(Augmented(), num_workers=2)
        iterator = iter(loader)
        first = next(iterator)
        value = first["x"].clone()
        workers = list(iterator._workers)
        began = time.monotonic()
        for _ in range(3):
            close(iterator, loader)
        assert time.monotonic() - began < 50
        assert not any(worker.is_alive() for worker in workers)
        assert torch.equal(first["x"], value)
        assert list(iterator) == []
        assert len(list(loader)) == 22


def test_as_context_managers() -> None:
    with shmloader.DataLoader(Augmented(), num_workers=1, persistent_workers=True) as loader:
        for _ in zip(range(3), loader, strict=False):
            pass
        with iter(loader) as iterator:
            workers = list(iterator._workers)
            next(iterator)
        assert not any(worker.is_alive() for worker in workers)
        with pytest.raises(ZeroDivisionError), loader:
            next(iter(loader))
            raise ZeroDivisionError
    with shmloader.DataLoader(Augmented()) as without_workers:
        assert len(list(without_workers)) == 22


def test_an_iterator_that_is_collected_in_the_thread_that_watches_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end waits for that thread."""
    thread = "shmloader_watch"
    collected = threading.Event()

    class Collecting(set):
        def add(self, index: int) -> None:
            assert threading.current_thread().name == thread
            gc.collect()
            collected.set()

    begin = WorkerSet.__init__

    def collecting(self: WorkerSet, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        self._ended = Collecting()

    monkeypatch.setattr(WorkerSet, "__init__", collecting)
    errors: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: errors.append(error.exc_value))
    iterator = iter(shmloader.DataLoader(Augmented(), num_workers=2, on_worker_death="respawn"))
    next(iterator)
    workers, ring = list(iterator._workers), iterator._ring
    iterator.itself = iterator
    gc.disable()
    try:
        del iterator
        os.kill(workers[0].pid, signal.SIGKILL)
        assert collected.wait(20)
        for _ in range(200):
            if not any(worker.is_alive() for worker in workers) and not own_threads() & {thread, "shmloader_end"}:
                break
            time.sleep(0.05)
        assert not own_threads() & {thread, "shmloader_end"}
        assert not any(worker.is_alive() for worker in workers)
        with pytest.raises(RuntimeError, match="has been shut down"):
            ring.open(0, 0)
    finally:
        gc.enable()
    assert not errors


def test_an_iterator_made_in_a_thread_that_ends() -> None:
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(iter(shmloader.DataLoader(Augmented(), num_workers=2))))
    thread.start()
    thread.join()
    time.sleep(0.3)
    assert [batch["i"].item() for batch in made[0]] == list(range(22))


@pytest.mark.long
def test_workers_die_with_a_trainer_whose_thread_made_them() -> None:
    ran = run_script(
        DATASET
        + """
made = []
thread = threading.Thread(target=lambda: made.append(iter(shmloader.DataLoader(Numbers(8), num_workers=2))))
thread.start(); thread.join(); next(made[0])
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    assert ran.status == -signal.SIGKILL


# -------------------------------------------------------------------------------------- the name that workers follow by


def dies_as_it_leaves(_: int) -> None:
    """Have a worker be killed behind its last batch, by what its process does at its end."""
    util.Finalize(None, os.kill, (os.getpid(), signal.SIGKILL), exitpriority=0)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_worker_that_dies_while_it_leaves_is_no_error(persistent: bool) -> None:
    loader = shmloader.DataLoader(
        torch.arange(12), 4, num_workers=2, worker_init_fn=dies_as_it_leaves, persistent_workers=persistent
    )
    iterator = iter(loader)
    workers = iterator._workers
    assert [batch.tolist() for batch in iterator] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    loader.close()
    assert [worker.exitcode for worker in workers] == [-signal.SIGKILL] * 2
