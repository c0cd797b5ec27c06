"""Plant faults that were found once, one after another, in a copy of the project: what still finds them?

`make planted`; ARGS="--only epoch" plants those whose description has that word.  With each fault, its tests must fail,
and where it is a fault that the attack must find, a program of the attack must show it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

from tests.attack.plant import Plant, planted
from tests.attack.plants_of_reports import PLANTS as OF_REPORTS
from tests.attack.plants_of_suites import PLANTS as OF_SUITES

CHECKOUT = Path(__file__).resolve().parents[2]
PLANTS = (*OF_SUITES, *OF_REPORTS)
LONGEST = 600  # seconds for the tests of one fault
_FOUND = re.compile(r"^ +\d+ +([\d.]+) s ", re.MULTILINE)  # in the attack's summary


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack.planted", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="the faults whose description has this text")
    parser.add_argument("--seed", default="1", help="what the attack's programs are drawn from")
    parser.add_argument("--seconds", type=float, default=120, help="for how long the attack looks for a fault")
    given = parser.parse_args()
    chosen = [plant for plant in PLANTS if given.only in plant.fault]
    if not chosen:
        parser.error(f"--only {given.only!r}: no fault's description has this text")
    with tempfile.TemporaryDirectory(prefix="planted-") as name:
        folder = Path(name)
        _copy(folder)
        missed = [plant for plant in chosen if not _is_found(plant, folder, given.seed, given.seconds)]
    print(
        f"{len(chosen) - len(missed)} of {len(chosen)} faults found",
        *(f"  MISSED: {each.fault}" for each in missed),
        sep="\n",
    )
    return 1 if missed else 0


def _copy(folder: Path) -> None:
    """The files that git has, those that are new, and what is built."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout.split("\0")
    built = [str(path.relative_to(CHECKOUT)) for path in CHECKOUT.glob("[!.]*/**/*.so")]
    for name in {*names, *built}:
        if (source := CHECKOUT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, folder / name)


def _is_found(plant: Plant, folder: Path, seed: str, seconds: float) -> bool:
    """Whether all that must find it does; prints a line."""
    if wrong := plant.not_there(folder):
        print(f"{plant.fault}: NOT PLANTED: {'; '.join(wrong)}", flush=True)
        return False
    with planted(plant, folder):
        if plant.is_compiled:
            _build(folder)
        began = time.monotonic()
        options = "-q", "-x", "-m", "long or not long", "-p", "no:cacheprovider"
        status, _ = _run(folder, "pytest", *options, *plant.tests)
        took = time.monotonic() - began
        found = _attack(folder, seed, seconds) if plant.attack else None
    if plant.is_compiled:
        _build(folder)
    fails = status == 1  # pytest's status for tests that failed; another one is of pytest itself
    by_tests = f"its tests fail ({took:.0f} s)" if fails else f"ITS TESTS DO NOT FAIL (status {status})"
    by_attack = f"the attack finds it in {found:.1f} s" if found is not None else "THE ATTACK DOES NOT FIND IT"
    print(f"{plant.fault}: {by_tests}{f', {by_attack}' if plant.attack else ''}", flush=True)
    return fails and (found is not None or not plant.attack)


def _attack(folder: Path, seed: str, seconds: float) -> float | None:
    """After how many seconds the attack found the fault."""
    _, output = _run(folder, "tests.attack", "--first", "--seed", seed, "--seconds", str(seconds))
    found = _FOUND.search(output)
    return float(found[1]) if found else None


def _build(folder: Path) -> None:
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "-j2"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def _run(folder: Path, module: str, *arguments: str) -> tuple[int, str]:
    """The status and the output of a module; the copy's own shmloader comes first on the path."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", module, *arguments]
    with tempfile.TemporaryFile("w+") as output:  # no pipe: a worker that outlives its trainer would hold it
        try:
            status = subprocess.run(
                command, cwd=folder, env=environment, stdout=output, stderr=output, timeout=LONGEST
            ).returncode
        finally:
            _kill_orphans(folder)
        output.seek(0)
        return status, output.read()


def _kill_orphans(folder: Path) -> None:
    """Some faults leave workers behind."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("PYTHONPATH") == str(folder):
                process.kill()


if __name__ == "__main__":
    sys.exit(main())
