"""Tries all that a release needs, and lists what was not tried: `make release-check`.

Each step is a make target, which makes its own environment.  A line that says "not tried" in what a step prints is
repeated at the end, with what this never tries.  What only the release itself can put right is a remark, and no fault.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STEPS = {
    "versions and pins agree": ["suite", "ARGS=tests/project/test_release.py tests/project/test_pins.py"],
    "documentation": ["docs", "ARGS="],
    "sdist and wheels": ["wheel", "ARGS="],
}
NEVER = (
    "the gates of each commit: .ci/run",
    "the suite with other versions of torch and CPython: make test-torch, make test-3.14",
    "sanitizers, and the fuzzers under them: make sanitize, make fuzz-jpeg, make fuzz-pixels",
    "other projects: make test-ecosystem, make test-ray, make test-torchvision",
    "a GPU, and an arm64 processor",
    "wheels as cibuildwheel builds them in its containers: the workflow",
    "links to other sites: build/docs/external-links.txt lists them",
)


def main() -> int:
    rows, untried, failed = [], [], False
    for name, target in STEPS.items():
        began = time.monotonic()
        status, lines = run([os.environ.get("MAKE", "make"), "--no-print-directory", *target])
        rows.append(f"| {name} | {'failed' if status else 'passed'} | {(time.monotonic() - began) / 60:.0f} |")
        untried += [line for line in lines if "not tried" in line]
        failed |= status != 0
    print("\n| step | result | minutes |\n|---|---|---|", *rows, sep="\n")
    print("\nNot tried:", *dict.fromkeys(line.removeprefix("not tried: ") for line in untried), *NEVER, sep="\n- ")
    print("\nBefore the tag:", *(remarks() or ["nothing"]), sep="\n- ")
    return int(failed)


def run(command: list[str]) -> tuple[int, list[str]]:
    """Its status, and the lines that it printed, which are shown as they come."""
    printed = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            printed.append(line.rstrip())
    return process.returncode, printed


def remarks() -> list[str]:
    found = []
    version = re.findall(r'^__version__ = "(.+)"', (ROOT / "shmloader" / "__init__.py").read_text(), re.MULTILINE)[0]
    unreleased = (ROOT / "CHANGELOG.md").read_text().partition("## [Unreleased]")[2].partition("\n## [")[0]
    if entries := re.findall(r"^- ", unreleased, re.MULTILINE):
        found.append(f"CHANGELOG.md has {len(entries)} entries under Unreleased, and none of them under {version}")
    if changed := git("status", "--porcelain"):
        found.append(f"{len(changed)} files differ from the commit that would be tagged")
    if git("tag", "--list", f"v{version}"):
        found.append(f"v{version} is tagged already: raise the version in shmloader/__init__.py and CITATION.cff")
    return found


def git(*arguments: str) -> list[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout.splitlines()


if __name__ == "__main__":
    sys.exit(main())
