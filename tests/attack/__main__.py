"""Draw programs of users, run each with our loader and with what it is compared with, and print what differs.

`make attack SEED=7 SECONDS=600`.  The same seed draws the same programs.  A finding is printed once, as a script of at
most 40 lines; `--only 7-123` judges one program of a seed again.  The programs of corpus.py come first.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Iterator

# CUDA's driver keeps descriptors as long as a process lives, and they would count as left behind.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy
import torch

import shmloader
from tests.attack.corpus import CORPUS
from tests.attack.draw import draw
from tests.attack.findings import Findings, Group
from tests.attack.judge import judged
from tests.attack.print_program import script
from tests.attack.program import Program

_SHRINKS = 10.0  # seconds: the least in which a program is made smaller


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument(
        "--seed", default=str(int(time.time())), help="what programs are drawn from (default: the time)"
    )
    parser.add_argument("--seconds", type=float, default=60, help="for how long programs are drawn")
    parser.add_argument("--random", action="store_true", help="leave out the programs of corpus.py")
    parser.add_argument("--only", help="the one program to judge: SEED-NUMBER")
    parser.add_argument("--deadline", type=float, default=120, help="seconds after which a program hangs")
    parser.add_argument("--first", action="store_true", help="end at the first finding, and do not make it smaller")
    parser.add_argument("--out", help="a folder that scripts are written to, instead of printing them")
    given = parser.parse_args()
    torch.set_num_threads(1)
    numpy.random.rand()
    findings = Findings(lambda program: judged(program, given.deadline))
    began, number = time.monotonic(), 0
    ends = began + given.seconds
    for seed, program in _programs(given.seed, given.only, given.random):
        number += 1
        found = judged(program, given.deadline)
        until = 0 if given.first else _stop_shrinking(ends)
        group = found and findings.add(program, found, seed, time.monotonic() - began, until)
        if group:
            _show(group, given.out)
        if time.monotonic() > ends or (group and given.first):
            break
    took = time.monotonic() - began
    print(f"\n{number} programs in {took:.0f} s with seed {given.seed}; {len(findings.groups)} kinds of findings")
    for group in findings.groups:
        print(f"  {group.count:5}  {group.seconds:6.1f} s  {group.seed:12}  {group.finding.cause}")
    return 1 if findings.groups else 0


def _stop_shrinking(ends: float) -> float:
    """When to stop making a program smaller: a short run leaves most of its time to drawing, and ends in time."""
    now = time.monotonic()
    return now + min(60.0, max(_SHRINKS, (ends - now) / 3))


def _programs(seed: str, only: str | None, random: bool) -> Iterator[tuple[str, Program]]:
    """Each with its name: those that found a fault once, and then new ones without end."""
    if only is not None:
        yield only, CORPUS[only] if only in CORPUS else draw(only)
        return
    yield from () if random else CORPUS.items()
    for number in itertools.count():
        yield f"{seed}-{number}", draw(f"{seed}-{number}")


def _show(group: Group, folder: str | None) -> None:
    text = script(group.program, group.finding)
    print(f"\n==== {group.seed}: {group.finding.cause}\n{text}")
    print("\n".join(f"# {line}" for line in group.finding.detail.splitlines()), flush=True)
    if folder:
        os.makedirs(folder, exist_ok=True)
        with open(f"{folder}/{group.seed.replace(' ', '-')}.py", "w") as file:
            file.write(text)


if __name__ == "__main__":
    print(f"shmloader {shmloader.__file__}, process {os.getpid()}", file=sys.stderr)
    sys.exit(main())
