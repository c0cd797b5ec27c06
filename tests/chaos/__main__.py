"""Torment loaders, torch's beside ours, and say what either did wrong.  `make test-long`.

A trial is a process of its own.  What befalls it is drawn from the seed, the scenario's name and the trial's number:
`python -m tests.chaos --seed 123 --only interrupts --trial 17` draws the same again, while the moment at which a signal
arrives is never quite the same.  A flaw of ours ends in status 1; torch's are counted beside it.
"""

from __future__ import annotations

import argparse
import collections
import gc
import json
import random
import resource
import sys
import time
from multiprocessing import resource_tracker
from typing import Any

import torch
from torch.utils.data import DataLoader

import shmloader
from tests.chaos.inside import Case, Inside
from tests.chaos.outside import Outcome, Outside
from tests.chaos.scenarios import ALL, Expected, Scenario
from tests.scripts import own_shm

LOADERS = {"torch": DataLoader, "shmloader": shmloader.DataLoader}


class Chaos:
    """Runs trials, and keeps count.

    Args:
        seed: what is drawn from.
        kinds: the loaders' classes, by name.
    """

    def __init__(self, seed: int, kinds: dict[str, Any]) -> None:
        self.seed, self.kinds = seed, kinds
        self.trials: collections.Counter[str] = collections.Counter()
        self.seconds: collections.Counter[str] = collections.Counter()
        self.flaws: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
        self._expected: dict[str, Expected] = {}

    def run(self, scenario: Scenario, trial: int) -> None:
        """One trial, with each loader."""
        began = time.monotonic()
        drawn = random.Random(f"{self.seed} {scenario.name} {trial}")
        case = scenario.draw(drawn)
        torment = drawn.random()
        fields: dict[str, Outcome] = {}
        for name, kind in self.kinds.items():
            outside = Outside(scenario.inside, kind, name != "torch", case, random.Random(torment))
            scenario.outside(outside, case)
            fields[name] = outside.finish()
        expected = self.expected(case, scenario.epochs)
        for name, its in fields.items():
            flaws = scenario.judge(case, its, expected)
            if name != "torch" and "torch" in fields and not flaws:
                flaws = scenario.compare(case, its, fields["torch"])
            self.flaws[scenario.name, name].update(flaw.partition(":")[0] for flaw in flaws)
            if flaws and (name != "torch" or len(fields) == 1):
                self.report(scenario, trial, case, its, flaws)
        self.trials[scenario.name] += 1
        self.seconds[scenario.name] += time.monotonic() - began

    def expected(self, case: Case, epochs: int) -> Expected:
        """What torch's loader gives for a case that nothing befalls."""
        calm = {**case, "misdeeds": {}, "persistent": False, "ours": {}, "start": "fork", "pause": 0, "timeout": 0}
        alike = not (calm["draws"] or calm["stream"])  # then epochs are, and workers change nothing
        if alike:
            calm["workers"], calm["prefetch"] = 0, None
        names = ("order", "batches", "floats", "workers", "stream", "draws")
        key = json.dumps([*(calm[name] for name in names), alike or epochs])
        if key not in self._expected:

            def calmly(trial: Inside) -> None:
                for number in range(1 if alike else epochs):
                    trial.epoch(trial.loader(), number)

            self._expected[key] = Outside(calmly, DataLoader, False, calm, random.Random()).finish().epochs()
        return self._expected[key] * (epochs if alike else 1)

    def report(self, scenario: Scenario, trial: int, case: Case, outcome: Outcome, flaws: list[str]) -> None:
        print(f"\n{scenario.name}, trial {trial}, after {outcome.seconds:.1f} s:", *flaws, sep="\n  ")
        print(f"  again: python -m tests.chaos --seed {self.seed} --only {scenario.name} --trial {trial}")
        print(f"  case: {json.dumps(case)}")
        print(f"  outcome: {outcome.events[-6:]}")
        if lines := outcome.of("line"):
            print("  interrupted at:", *(line for (line,) in lines), sep="\n    ")
        if outcome.err:
            print("  stderr:", *outcome.err.strip().splitlines()[-150:], sep="\n    ")
        sys.stdout.flush()

    def table(self) -> str:
        lines = [f"{'scenario':20} {'trials':>6} {'seconds':>7}  " + "  ".join(f"{name:40}" for name in self.kinds)]
        for name, count in self.trials.items():
            cells = []
            for kind in self.kinds:
                found = self.flaws[name, kind]
                cells.append(f"{', '.join(f'{n} {what}' for what, n in found.items()) or 'nothing':40}")
            lines.append(f"{name:20} {count:6} {self.seconds[name]:7.1f}  " + "  ".join(cells))
        return "\n".join(lines)

    @property
    def failed(self) -> bool:
        return any(any(found.values()) for (_, kind), found in self.flaws.items() if kind != "torch")


def main(arguments: list[str] | None = None, kinds: dict[str, Any] = LOADERS) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.randrange(1000))
    parser.add_argument("--only", nargs="+", default=[], help="scenarios: " + " ".join(kind.name for kind in ALL))
    parser.add_argument("--trial", type=int, help="that trial alone")
    parser.add_argument("--trials", type=int, default=10**6, help="the most of each scenario")
    parser.add_argument("--seconds", type=float, default=60, help="for all together; each has its share")
    parser.add_argument("--loader", choices=list(kinds), help="that one alone")
    given = parser.parse_args(arguments)
    chosen = [kind() for kind in ALL if kind.name in given.only or not given.only]
    if unknown := set(given.only) - {kind.name for kind in ALL}:
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    prepare()
    chosen_kinds = {name: kind for name, kind in kinds.items() if given.loader in (None, name)}
    chaos = Chaos(given.seed, chosen_kinds)
    print(f"seed {given.seed}", flush=True)
    if given.trial is not None:
        for scenario in chosen:
            chaos.run(scenario, given.trial)
    else:
        end = time.monotonic() + given.seconds
        while time.monotonic() < end:
            left = [scenario for scenario in chosen if chaos.trials[scenario.name] < given.trials]
            if not left:
                break
            scenario = min(left, key=lambda scenario: chaos.seconds[scenario.name] / scenario.share)
            chaos.run(scenario, chaos.trials[scenario.name])
    print(f"\n{chaos.table()}\nseed {given.seed}")
    return chaos.failed


def prepare() -> None:
    """What all trials' processes inherit."""
    if not own_shm("50%"):
        print("others' names in /dev/shm cannot be distinguished from a trial's: it needs a mount namespace of its own")
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    torch.set_num_threads(1)
    resource_tracker.ensure_running()  # otherwise a trial that spawns would start one, which stays
    # torch looks for dead workers, and for a dead trainer, every 5 s, and waits as long for each that does not end
    for module in (torch.utils.data._utils, torch.utils.data._utils.worker):
        module.MP_STATUS_CHECK_INTERVAL = 0.5  # type: ignore[attr-defined]
    torch.utils.data.dataloader._MultiProcessingDataLoaderIter._try_get_data.__defaults__ = (0.5,)  # type: ignore[attr-defined]
    for kind in LOADERS.values():  # what is imported when it is first needed is not there for another user
        list(kind([torch.ones(1)], num_workers=1))
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    sys.exit(main())
