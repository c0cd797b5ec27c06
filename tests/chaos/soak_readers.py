"""A long run in which processes that share one loader's batches are killed at random.  Part of `make test-long`.

Jobs read a loader that a server hosts.  Every batch must be the one that an undisturbed run has there, whoever is
killed: `--who readers`, `workers` or `server`.  Readers come and go at random besides.  This process adopts every
orphan, so it sees whether one is left.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import multiprocessing
import os
import random
import signal
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import tqdm
from torch.utils.data import DataLoader, Dataset

import shmloader
from shmloader.readers.server import serve

WORKERS = 2
BATCHES = 50  # an epoch
JOBS = 3
REST = 8  # batches between the deaths of workers, because the third over one batch is an error
SPOILT = 1e9  # what readers write into their batches
SET_CHILD_SUBREAPER = 36
GRACE = 60  # seconds that a process may take to follow another one, or to see that it is gone
FORK: Any = multiprocessing.get_context("fork")


class Drawn(Dataset[Any]):
    """Items of changing size that draw."""

    def __len__(self) -> int:
        return 4 * BATCHES

    def __getitem__(self, index: int) -> Any:
        return index, torch.rand(1), torch.full((10 + index // 4 % 10 * 3000,), float(index))


def loader(kind: Any = shmloader.DataLoader, **options: Any) -> Any:
    """The same loader in each process."""
    torch.manual_seed(7)
    made = {"batch_size": 4, "num_workers": WORKERS, "persistent_workers": True, "multiprocessing_context": "fork"}
    return kind(Drawn(), **made, **options)


def digest(batch: Any) -> int:
    """What tells a batch from every other one.  It spoils the batch, which nobody else may see."""
    index, drawn, rows = batch
    if not torch.equal(rows, index[:, None].expand_as(rows).float()):
        raise AssertionError(f"batch {index.tolist()} has {rows[:, :4].tolist()}")
    found = zlib.crc32(index.numpy().tobytes() + drawn.numpy().tobytes())
    rows[:, random.randrange(rows.shape[1]) :] = SPOILT
    return found


def pause() -> None:
    """Otherwise readers get far ahead of this process, which compares."""
    time.sleep(random.random() * 0.02)


class Undisturbed:
    """What each epoch has, in order, from a loader that torch gives and nobody kills."""

    def __init__(self) -> None:
        self._loader = loader(DataLoader)
        self._epochs = [[digest(batch) for batch in self._loader]]
        self.workers = set(children(os.getpid()))

    def __getitem__(self, epoch: int) -> list[int]:
        while len(self._epochs) <= epoch:
            self._epochs.append([digest(batch) for batch in self._loader])
        return self._epochs[epoch]


# --------------------------------------------------------------------------------------------------- who reads


def attached(name: str) -> Any:
    """Wait for the server, which may be starting."""
    while True:
        try:
            return shmloader.attach(name)
        except ConnectionError:
            time.sleep(0.01)


def job(name: str, say: Any, stays: bool, seed: int) -> None:
    """Read until the server ends; one that does not stay leaves and comes back at random."""
    draw = random.Random(seed)
    while True:
        with attached(name) as batches:
            left = -1 if stays else draw.randrange(1, 3 * BATCHES)
            try:
                while left:
                    for batch in batches:
                        state = batches.state_dict()
                        say.send((state["epoch"], state["batches"] - 1, digest(batch)))
                        pause()
                        left -= 1
                        if not left:
                            break
            except (RuntimeError, ConnectionError) as error:
                if "has ended" not in str(error) and "No server" not in str(error) and "reset" not in str(error):
                    raise
                say.send(None)  # the server has ended
                if stays:
                    return


class Process:
    """A process of the run, and what it says."""

    def __init__(self, does: Callable[..., None], *arguments: Any, says: bool = True) -> None:
        self.heard, say = FORK.Pipe(False) if says else (None, None)
        self.place: tuple[int, int] | None = None  # of the batch that it must say next
        self.pid = os.fork()
        if not self.pid:
            status = 1
            try:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                does(*arguments, *([say] if says else []))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        if say is not None:
            say.close()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Wait until it has ended; it may have been killed, and must not have failed."""
        _, status = os.waitpid(self.pid, 0)
        if status not in (0, signal.SIGKILL, signal.SIGTERM):
            raise SystemExit(f"process {self.pid} ended with {status}")
        if self.heard is not None:
            self.heard.close()

    def check(self, expected: Undisturbed, follows: bool) -> tuple[int, bool]:
        """Compare what it has said, of an epoch at most; how many batches, and whether it has seen its server end.

        Args:
            expected: What is right.
            follows: Whether each batch must be the one behind the batch before.
        """
        count = 0
        with contextlib.suppress(EOFError, ConnectionError):
            while count < BATCHES and self.heard.poll():
                message = self.heard.recv()
                if message is None:
                    return count, True
                epoch, at, found = message
                if follows and self.place not in (None, (epoch, at)):
                    raise SystemExit(f"batch {at} of epoch {epoch} came in place of {self.place}")
                if expected[epoch][at] != found:
                    raise SystemExit(f"batch {at} of epoch {epoch} is another one")
                self.place = (epoch, at + 1) if at + 1 < BATCHES else (epoch + 1, 0)
                count += 1
        return count, False


def children(pid: int) -> list[int]:
    """A server's workers."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]
    return []


def nothing_is_left(known: set[int]) -> None:
    """All processes of the run but these have ended, and no name of it is in /dev/shm."""
    end = time.monotonic() + GRACE
    while left := set(children(os.getpid())) - known:
        if time.monotonic() > end:
            raise SystemExit(f"processes are left: {left}")
        for pid in left:
            os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)
    if left := [name for name in os.listdir("/dev/shm") if name.startswith("shmloader")]:
        raise SystemExit(f"names are left in /dev/shm: {left}")


# --------------------------------------------------------------------------------------------------- who is killed


class Served:
    """Jobs that read a server's loader.  One of them stays, and must get every batch, in order.

    Args:
        who: Who is killed: "readers", "workers" or "server".
        seed: What is drawn from.
    """

    def __init__(self, who: str, seed: int) -> None:
        self._who, self._draw = who, random.Random(seed)
        self._name = f"soak-{os.getpid()}"
        self._expected = Undisturbed()
        self._kills = 0
        self.batches = 0

    def run(self, kills: int) -> Iterator[int]:
        """Kill so many; yields how many were."""
        while self._kills < kills:
            server = Process(lambda: serve(loader(on_worker_death="respawn"), self._name, patience=GRACE), says=False)
            stays = self._job(True)
            others = [self._job(False) for _ in range(JOBS - 1)]
            if self._who == "server":
                self._until(stays, self._draw.randrange(1, 2 * BATCHES))
                self._kills += 1
            else:
                for _ in range(min(100, kills - self._kills)):
                    self._kill_another(server, stays, others)
                    yield self._kills
            server.kill()
            server.wait()
            self._see_the_end(stays)
            for other in others:
                other.kill()
                other.wait()
            nothing_is_left(self._expected.workers)
            yield self._kills

    def _job(self, stays: bool) -> Process:
        seed = self._draw.random()
        return Process(lambda say: job(self._name, say, stays, int(seed * 1e9)))

    def _kill_another(self, server: Process, stays: Process, others: list[Process]) -> None:
        """Kill one of the jobs that do not stay, or a worker."""
        self._until(stays, self._draw.randrange(1, 12) if self._who == "readers" else REST)
        for other in others:
            self.batches += other.check(self._expected, False)[0]
        if self._who == "readers":
            victim = self._draw.randrange(len(others))
            others[victim].kill()
            others[victim].wait()
            others[victim] = self._job(False)
            self._kills += 1
        elif workers := children(server.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._draw.choice(workers), signal.SIGKILL)
                self._kills += 1

    def _until(self, stays: Process, batches: int) -> None:
        """Wait until the job that stays has read so many more."""
        end = time.monotonic() + 6 * GRACE
        while batches > 0:
            if not stays.heard.poll(GRACE) and time.monotonic() > end:
                raise SystemExit(f"the job that stays hangs behind {stays.place}")
            got, ended = stays.check(self._expected, True)
            if ended:
                raise SystemExit("the job that stays says that the server has ended")
            batches -= got
            self.batches += got

    def _see_the_end(self, stays: Process) -> None:
        end = time.monotonic() + GRACE
        while True:
            got, ended = stays.check(self._expected, True)
            self.batches += got
            if ended:
                break
            if time.monotonic() > end:
                raise SystemExit("a job has not seen that its server ended")
            stays.heard.poll(0.1)
        stays.wait()


def soak(who: str, kills: int, seed: int, seconds: float) -> None:
    """Kill so many."""
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    run = Served(who, seed)
    began, done = time.monotonic(), 0
    with tqdm.tqdm(total=kills, unit="kill") as bar:
        for done in run.run(kills):
            bar.update(done - bar.n)
            if done < kills and time.monotonic() - began > seconds:
                raise SystemExit(f"{done} of {kills} kills in {seconds:g} s")
    print(f"{done} kills of {who}, {run.batches} batches: each once, in order, the same; nothing is left")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--who", choices=["readers", "workers", "server"], default="readers")
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.randrange(1000))
    parser.add_argument("--seconds", type=float, default=600, help="give up after this long")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    torch.set_num_threads(1)
    try:
        soak(given.who, given.kills, given.seed, given.seconds)
    finally:
        known = {process.pid for process in multiprocessing.active_children()}  # they end with their loader
        for child in set(children(os.getpid())) - known:
            os.kill(child, signal.SIGKILL)
