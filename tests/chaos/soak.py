"""A long run whose workers are killed at random; every batch must be that of an undisturbed run.  `make soak`.

A worker is killed again only after some batches, because the third death over one batch is an error.  If work is
stolen, that may be the death of any three, so no three are killed while one batch is under way.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import threading
import time
from collections import deque
from typing import Any

import numpy
import torch
import tqdm
from torch.utils.data import DataLoader, Dataset

import shmloader

WORKERS = 3
BATCHES = 200  # an epoch
REST = 8  # batches that are taken after a worker was killed, before it may be killed again
UNDER_WAY = 4 * 2 * WORKERS  # batches at most, where work is stolen


class Drawn(Dataset[Any]):
    """Items of changing size that draw from all three generators."""

    def __len__(self) -> int:
        return 4 * BATCHES

    def __getitem__(self, index: int) -> Any:
        time.sleep(random.random() * 0.001)
        x = numpy.random.randn(2 + index // 4 % 50 * 97)  # a batch is four neighbours, of one size
        return {"index": index, "x": x, "t": torch.randn(3)}


class Killer(threading.Thread):
    """Kills workers of one iterator until `stop` is set."""

    def __init__(self, iterator: Any, kills: int, seed: int, stealing: bool) -> None:
        super().__init__(daemon=True)
        self.iterator, self.wanted, self.kills, self.taken = iterator, kills, 0, 0
        self.random = random.Random(seed)
        self.stop = threading.Event()
        self.since = [-REST] * WORKERS
        self.last_two = deque([-1 - UNDER_WAY] * 2, 2)
        self.stealing = stealing

    def run(self) -> None:
        while not self.stop.wait(self.random.random() * 0.03) and self.kills < self.wanted:
            victim = self.random.randrange(WORKERS)
            if self.taken - self.since[victim] < REST:
                continue
            if self.stealing and self.taken - self.last_two[0] <= UNDER_WAY:
                continue
            self.since[victim] = self.taken
            self.last_two.append(self.taken)
            try:
                os.kill(self.iterator._workers[victim].pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            self.kills += 1


def same(a: Any, b: Any) -> bool:
    return all(torch.equal(a[key], b[key]) for key in a)


def soak(kills: int, start: str, share: str, seed: int, seconds: float) -> None:
    options: dict[str, Any] = {"batch_size": 4, "num_workers": WORKERS, "persistent_workers": True}
    torch.manual_seed(seed)
    expected = DataLoader(Drawn(), **options)
    if share != "no":  # then samples are seeded by their place, so one worker makes the same
        options |= {"schedule": "steal", "chunk_size": 2 if share == "chunks" else None}
        expected = shmloader.DataLoader(Drawn(), **{**options, "num_workers": 1})
    ours = shmloader.DataLoader(Drawn(), multiprocessing_context=start, on_worker_death="respawn", **options)
    torch.manual_seed(seed)
    epoch, began = 0, time.monotonic()
    with ours, tqdm.tqdm(total=kills, unit="kill") as bar:
        killer: Killer | None = None
        while killer is None or killer.kills < kills:
            if time.monotonic() - began > seconds:
                raise SystemExit(f"{0 if killer is None else killer.kills} of {kills} kills in {seconds:g} s")
            if epoch == 0:
                torch.manual_seed(seed)
                reference = iter(expected)
                torch.manual_seed(seed)
                iterator = iter(ours)
                killer = Killer(iterator, kills, seed, share != "no")
                killer.start()
            else:
                reference, iterator = iter(expected), iter(ours)
            assert killer is not None
            count = 0
            for count, (batch, right) in enumerate(zip(iterator, reference, strict=True), 1):
                if not same(batch, right):
                    raise SystemExit(f"epoch {epoch}, batch {count - 1}: {batch} for {right}")
                killer.taken += 1
                bar.update(killer.kills - bar.n)
            if count != BATCHES:
                raise SystemExit(f"epoch {epoch} has {count} batches")
            epoch += 1
        killer.stop.set()
        killer.join()
        bar.update(killer.kills - bar.n)
    text = f"{killer.kills} kills in {epoch} epochs of {BATCHES} batches ({start}, shared: {share})"
    print(f"{text}: every batch once, in order, the same")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--start", choices=["fork", "spawn", "forkserver"], default="fork")
    parser.add_argument("--share", choices=["no", "steal", "chunks"], default="no", help="how work is shared")
    parser.add_argument("--seed", type=int, default=random.randrange(1000))
    parser.add_argument("--seconds", type=float, default=600, help="give up after this long")
    given = parser.parse_args()
    print(f"seed {given.seed}")
    soak(given.kills, given.start, given.share, given.seed, given.seconds)
