"""Volumes of batches whose copies are late, with all that may befall a loader meanwhile.  `make torment-cuda`.

    PYTHON -m tests.software_cuda HEADERS -m tests.software_cuda.torment --late 5000 --quick 95000

A trial is a loader, or two by turns, or three in threads, and what it is and what befalls it is drawn from the seed and
the trial's number: `--seed 1 --trial 17` draws the same again.  Copies of the first batches are 5 to 50 ms late, those
of all others 0 to 1 ms.  It ends with status 1 where a byte of a copy was changed, where something was done that a
device would not forgive, or where anything is left.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import gc
import mmap
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from typing import Any

import torch
from software_cuda import operators, runtime
from software_cuda.adversary import Adversary, left

import shmloader
from shmloader.device import accelerator, pinning, to_device
from shmloader.system import user_line

LATE, QUICK = (5.0, 50.0), (0.0, 1.0)  # milliseconds
SHORT, LONG = (20, 60, 150), (150, 1000, 3000)  # batches of an epoch
ROWS = 4
REFUSALS = (2, 712, 801)
ENDS = ("to its end", "broken off", "closed", "raised out of", "collected")


class Samples(torch.utils.data.Dataset[Any]):
    """Sample k is full of k; some samples raise, and some kill their worker when they are first asked for.

    Args:
        length, size: Of the dataset, and of a sample in elements.
        grows: By how many elements each batch is larger than the one before.
        rows: Samples of a batch, or 0.
        named: Whether a sample is a dict of two tensors.
        errors: The samples that raise.
        deaths: By sample, in shared memory, whether its worker is still to die of it.
    """

    def __init__(
        self, length: int, size: int, grows: int, rows: int, named: bool, errors: set[int], deaths: torch.Tensor
    ) -> None:
        self.length, self.size, self.grows, self.rows = length, size, grows, rows
        self.named, self.errors, self.deaths = named, errors, deaths

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if self.deaths[index]:
            self.deaths[index] = 0
            os.kill(os.getpid(), signal.SIGKILL)
        if index in self.errors:
            raise KeyError(index)
        sample = torch.full((self.size + self.grows * (index // (self.rows or 1)),), index)
        return {"x": sample, "y": sample[:7].clone()} if self.named else sample


class Trial:
    """One loader and what befalls it.

    Args:
        drawn: Where it is drawn from.
        lengths: Of an epoch in batches, of which one is drawn.
        alone: Whether no other thread has a trial meanwhile.
    """

    def __init__(self, drawn: random.Random, lengths: tuple[int, ...], single: bool) -> None:
        self.drawn = drawn
        batches = self.most = drawn.choice(lengths)
        rows = drawn.choice((0, 0, ROWS))
        length = batches * (rows or 1)
        chance = drawn.random
        errors = {drawn.randrange(length) for _ in range(3)} if chance() < 0.2 else set()
        # shared with forked workers, and without a name in /dev/shm, which another test might take for a leftover
        deaths = torch.frombuffer(mmap.mmap(-1, length), dtype=torch.uint8)
        if chance() < 0.2:
            deaths[drawn.randrange(length)] = 1
        samples = Samples(
            length,
            drawn.choice((64, 1 << 10, 1 << 12)) if batches < 1000 else 1 << 8,
            drawn.choice((0, 0, 0, 40, 300)) if batches < 1000 else drawn.choice((0, 1)),
            rows,
            chance() < 0.3,
            errors,
            deaths,
        )
        self.errors = {index // (rows or 1) for index in errors}
        self.epochs = drawn.choice((1, 1, 2, 3))
        self.captures = single and chance() < 0.2
        options: dict[str, Any] = {
            "num_workers": drawn.choice((1, 2, 3)),
            "prefetch_factor": drawn.choice((1, 2, 4)),
            "spare_slots": drawn.choice((0, 1, 2, 2, 2, 5)),
            "persistent_workers": self.epochs > 1 and chance() < 0.5,
            "batch_size": rows or None,
            "on_worker_death": "respawn",
        }
        if rows and chance() < 0.5:
            options["chunk_size"] = drawn.choice((1, 2))
        if chance() < 0.3:
            options["schedule"] = "steal"
        self.on_device = chance() < 0.3
        options |= {"device": "cuda"} if self.on_device else {"pin_memory": True}
        self.rows, self.options = rows, options
        self.loader: Any = shmloader.DataLoader(samples, **options)
        assert self.loader.rides_ring
        self.batches = self.changed = 0

    def run(self) -> None:
        """All epochs, one after another."""
        for epoch in range(self.epochs):
            for _ in self.steps(epoch):
                pass

    def steps(self, epoch: int) -> Any:
        """An epoch, a batch a step."""
        end = self.drawn.choice(ENDS)
        number, stop = 0, self.drawn.randrange(self.most) if end != "to its end" else None
        adversary = Adversary(self.drawn, self.rows)
        iterator = iter(self.loader)
        try:
            while number != stop:
                try:
                    if self.captures and not self.on_device and self.drawn.random() < 0.02:
                        number += adversary.capture(iterator)
                    else:
                        adversary.next(iterator, number)
                        number += 1
                except StopIteration:
                    break
                except KeyError:
                    if number not in self.errors:
                        raise
                    number += 1
                yield
            if end == "closed":
                iterator.close()
            elif end == "raised out of":
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        finally:
            del iterator
            if end == "collected":
                self.loader._iterator = None
                gc.collect()
            self.changed += adversary.changed()
            self.batches += adversary.batches


class Torment:
    """Runs trials, and keeps count."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.found: collections.Counter[str] = collections.Counter()
        self.cloned = 0
        self._was = left()

    def count_clones(self) -> None:
        """Count the tensors that were copied on the host, and so did not lie in a slot."""
        clone = accelerator.Cuda.clone

        def counting(value: Any, tensor: torch.Tensor) -> torch.Tensor:
            self.cloned += 1
            return clone(value, tensor)

        accelerator.Cuda.clone = counting  # type: ignore[method-assign]

    def run(self, number: int, late: tuple[float, float], lengths: tuple[int, ...]) -> int:
        """One trial; returns how many batches there were."""
        drawn = random.Random(f"{self.seed} {number}")
        runtime.late(*late)
        if drawn.random() < 0.1 and runtime.is_software():
            runtime.refuse(drawn.choice(REFUSALS), drawn.randrange(8))
        to_device.AHEAD = drawn.choice((1, 2, 8))
        os.environ["SHMLOADER_STRICT_PINNING"] = str(int(drawn.random() < 0.1))
        kind = drawn.choice(("one", "one", "one", "two by turns", "three in threads"))
        trials = [Trial(drawn, lengths, kind == "one")]
        if kind == "one":
            trials[0].run()
        elif kind == "two by turns":
            trials.append(Trial(drawn, lengths, False))
            _by_turns(trials)
        else:
            trials += [Trial(random.Random(drawn.random()), lengths, False) for _ in range(2)]
            _in_threads(trials)
        if runtime.is_software():
            runtime.refuse(0)
        for trial in trials:
            trial.loader.close()
        batches = sum(trial.batches for trial in trials)
        self._reclaim(number, batches, trials)
        return batches

    def _reclaim(self, number: int, batches: int, trials: list[Trial]) -> None:
        changed = sum(trial.changed for trial in trials)
        options = [trial.options for trial in trials]
        trials.clear()
        gc.collect()
        for _ in range(3):
            torch.cuda.synchronize()
            pinning._free_late()
        now, wrong = left(), {"changed": changed}
        wrong |= {what: now[what] - self._was[what] for what in now}
        wrong["processes"] = len(multiprocessing.active_children())
        wrong["threads"] = sum(thread.name.startswith("shmloader") for thread in threading.enumerate())
        wrong["errors on the device"] = len(operators.errors())
        self._was = now
        self.found.update(wrong)
        self.found["batches"] += batches
        self.found["trials"] += 1
        if any(wrong.values()):
            print(f"trial {number}: { ({what: n for what, n in wrong.items() if n}) }")
            print(f"  again: --seed {self.seed} --trial {number}")
            print(f"  loaders: {options}", flush=True)

    @property
    def failed(self) -> bool:
        return any(n for what, n in self.found.items() if what not in ("batches", "trials"))


def _by_turns(trials: list[Trial]) -> None:
    going = [trial.steps(0) for trial in trials]
    while going:
        for steps in list(going):
            if next(steps, going) is going:
                going.remove(steps)


def _in_threads(trials: list[Trial]) -> None:
    with concurrent.futures.ThreadPoolExecutor(len(trials)) as threads:
        for ran in [threads.submit(trial.run) for trial in trials]:
            ran.result()  # raises what was raised there


def _in_processes(given: argparse.Namespace) -> bool:
    """Most trials wait for copies, so there may be more of them at a time than cores."""
    command = [sys.executable, "-m", "tests.software_cuda.torment"]
    command += [f"--late={-(-given.late // given.jobs)}", f"--quick={-(-given.quick // given.jobs)}"]
    running = [subprocess.Popen([*command, f"--seed={given.seed + k}"]) for k in range(given.jobs)]
    ended = [process.wait() for process in running]
    return any(ended)


def main(arguments: list[str] | None = None) -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.randrange(1000))
    parser.add_argument("--late", type=int, default=5000, help="batches with copies that are 5 to 50 ms late")
    parser.add_argument("--quick", type=int, default=95_000, help="batches with copies that are 0 to 1 ms late")
    parser.add_argument("--trial", type=int, help="that trial alone, with copies of both kinds")
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes that share the batches, each with a seed of its own"
    )
    given = parser.parse_args(arguments)
    if given.jobs > 1:
        return _in_processes(given)
    if runtime.is_software():
        operators.install()
    warnings.simplefilter("ignore")  # a refusal gives a warning
    user_line._met.add("not page-locked")
    torment = Torment(given.seed)
    torment.count_clones()
    print(f"seed {given.seed}", flush=True)
    number, began = 0, time.monotonic()
    for wanted, late, lengths in ((given.late, LATE, SHORT), (given.quick, QUICK, LONG)):
        if given.trial is not None:
            torment.run(given.trial, late, lengths)
            continue
        done, since = 0, time.monotonic()
        while done < wanted:
            done += torment.run(number, late, lengths)
            number += 1
        print(
            f"{done} batches, copies {late[0]:g} to {late[1]:g} ms late: {time.monotonic() - since:.0f} s", flush=True
        )
    found = torment.found
    summary = ", ".join(f"{what}: {n}" for what, n in found.items())
    print(
        f"seed {given.seed}: {summary}; {torment.cloned} tensors copied on the host; {time.monotonic() - began:.0f} s"
    )
    return torment.failed


if __name__ == "__main__":
    sys.exit(main())
