"""Draw programs of users, run each with our loader and with what it is compared with, and print what differs.

`make attack SEED=7 SECONDS=600`.  The same seed draws the same programs.  A finding is printed once, as a script of at
most 40 lines; `--only 7-123` judges one program of a seed again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import numpy
import torch

import shmloader
from tests.attack.draw import draw
from tests.attack.findings import Findings
from tests.attack.judge import judged
from tests.attack.print_program import script


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument(
        "--seed", default=str(int(time.time())), help="what programs are drawn from (default: the time)"
    )
    parser.add_argument("--seconds", type=float, default=60, help="for how long programs are drawn")
    parser.add_argument("--only", help="the one program to judge: SEED-NUMBER")
    parser.add_argument("--deadline", type=float, default=30, help="seconds after which a program hangs")
    parser.add_argument("--out", help="a folder that scripts are written to, instead of printing them")
    given = parser.parse_args()
    torch.set_num_threads(1)
    numpy.random.rand()
    findings = Findings(lambda program: judged(program, given.deadline))
    began, number = time.monotonic(), 0
    while True:
        seed = given.only or f"{given.seed}-{number}"
        program = draw(seed)
        found = judged(program, given.deadline)
        number += 1
        if found is not None:
            group = findings.add(program, found, seed, time.monotonic() - began)
            if group is not None:
                text = script(group.program, group.finding)
                print(f"\n==== {seed}: {group.finding.cause}\n{text}", flush=True)
                print("\n".join(f"# {line}" for line in group.finding.detail.splitlines()), flush=True)
                if given.out:
                    with open(f"{given.out}/{seed}.py", "w") as file:
                        file.write(text)
        if given.only or time.monotonic() - began > given.seconds:
            break
    took = time.monotonic() - began
    print(f"\n{number} programs in {took:.0f} s with seed {given.seed}; {len(findings.groups)} kinds of findings")
    for group in findings.groups:
        print(f"  {group.count:5}  {group.seconds:6.1f} s  {group.seed:12}  {group.finding.cause}")
    return 1 if findings.groups else 0


if __name__ == "__main__":
    print(f"shmloader {shmloader.__file__}, process {os.getpid()}", file=sys.stderr)
    sys.exit(main())
