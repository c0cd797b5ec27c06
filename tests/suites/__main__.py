"""Run other projects' own tests on torch's loader and on ours, and print where the results differ.

`make test-suites`; ARGS="opacus skorch" runs these two.  Each project's source archive, in a pinned version, comes from
PyPI.  A test that passes on torch's loader and fails twice under patch_torch() is a failure of this command, and so is
a suite in which no loader rides the ring.

Another project's checkout can be run, too, in an environment that has pytest, pytest-timeout and posix_ipc:

    python -m tests.suites --from FOLDER --name lhotse --python ENVIRONMENT/bin/python -- test/dataset -k "not slow"
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from tests.suites.projects import PROJECTS, Project

CHECKOUT = Path(__file__).resolve().parents[2]
BUILD = CHECKOUT / "build" / "suites"
_RUN_SECONDS = 1800  # the longest that one run of a suite may take


@dataclasses.dataclass
class Run:
    """What one run of a suite left behind."""

    seconds: float = 0.0
    tests: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)  # each one's outcome, and why it failed
    loaders: dict[str, str | None] = dataclasses.field(default_factory=dict)  # those with workers: why not on the ring
    warnings: dict[str, str] = dataclasses.field(default_factory=dict)  # each text: a test that had it

    def named(self, outcome: str) -> set[str]:
        return {test for test, (found, _) in self.tests.items() if found == outcome}


@dataclasses.dataclass
class Result:
    """A suite's run on torch's loader beside its run on ours."""

    title: str
    stock: Run
    ours: Run
    broken: list[str]  # tests that pass on torch's loader, and failed twice on ours

    @property
    def rode(self) -> int:
        return sum(why is None for why in self.ours.loaders.values())

    @property
    def row(self) -> str:
        numbers = [
            number
            for run in (self.stock, self.ours)
            for number in (len(run.named("passed")), len(run.named("failed")), round(run.seconds))
        ]
        numbers += [len(self.broken), len(self.ours.loaders), self.rode, len(self.new_warnings)]
        return f"{self.title:34}" + "".join(f"{number:8}" for number in numbers)

    @property
    def new_warnings(self) -> list[str]:
        return sorted(self.ours.warnings.keys() - self.stock.warnings.keys())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.suites", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("words", nargs="*", help="projects (default: all); with --from, arguments of pytest after `--`")
    parser.add_argument("--python", type=Path, default=CHECKOUT / ".venv-suites/bin/python", help="what runs the tests")
    parser.add_argument("--from", type=Path, dest="folder", help="a project's checkout")
    parser.add_argument("--name", help="its name in the table")
    parser.add_argument("--classes", default="", help="subclasses of torch's loader to cover, with spaces between them")
    parser.add_argument("--path", default=".", help="the folder in it from which its package is imported")
    parser.add_argument("--seconds", type=int, default=300, help="after how long a test fails (default: 300)")
    parser.add_argument("--workers", type=int, default=0, help="how many workers a loader gets that has none")
    given = parser.parse_args()
    python = given.python.absolute()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # so that `finally` ends what runs
    if given.folder:
        theirs = Project(given.name or given.folder.name, "", given.words, classes=given.classes, path=given.path)
        results = [compared(theirs, given.folder.resolve(), python, given.workers, given.seconds)]
    else:
        if unknown := set(given.words) - {project.name for project in PROJECTS}:
            parser.error(f"no such project: {', '.join(unknown)}")
        results = []
        for project in PROJECTS:
            if not given.words or project.name in given.words:
                folder = unpacked(project, python)
                results += [compared(project, folder, python, workers, given.seconds) for workers in project.workers]
    print(f"\n{'':36}torch's loader          ours")
    columns = [*["passed", "failed", "seconds"] * 2, "broken", "loaders", "rode", "warned"]
    print(f"{'project':34}" + "".join(f"{column:>8}" for column in columns))
    print("\n".join(result.row for result in results))
    return 1 if any(result.broken or not result.rode for result in results) else 0


def unpacked(project: Project, python: Path) -> Path:
    """The folder of a project's source archive, fetched once."""
    folder = BUILD / project.archive
    if not folder.exists():
        archives = BUILD / "archives"
        pinned = f"{project.name}=={project.version}"
        pip = [str(python), "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", project.name]
        subprocess.run([*pip, "--dest", str(archives), pinned], check=True)
        with tarfile.open(archives / f"{project.archive}.tar.gz") as archive:
            archive.extractall(BUILD, filter="data")
    if (stand_ins := Path(__file__).with_name("stand_ins") / project.name).exists():
        shutil.copytree(stand_ins, folder / "tests", dirs_exist_ok=True)
    return folder


def compared(project: Project, folder: Path, python: Path, workers: int, seconds: int) -> Result:
    """Run a suite on torch's loader, on ours, and what then differs on ours once more; print what differs."""
    title = f"{project.name} {project.version}".strip() + (f", {workers} workers" if workers else "")
    print(f"{title} ...", flush=True)

    def run(patch: bool, *only: str) -> Run:
        return _run(project, folder, python, patch, workers, seconds, only)

    stock, ours = run(False), run(True)
    passed = stock.named("passed")
    again = sorted(passed - ours.named("passed"))
    broken = sorted(set(again) - run(True, *again).named("passed")) if again else []
    result = Result(title, stock, ours, broken)
    for test in broken:
        print(f"  BROKEN {test}: {' '.join(ours.tests.get(test, ('', 'did not run')))}")
    for test in sorted(set(again) - set(broken)):
        print(f"  failed once {test}: {' '.join(ours.tests.get(test, ('', 'did not run')))}")
    for why, count in collections.Counter(why for why in ours.loaders.values() if why).items():
        print(f"  {count} did not ride: {why}")
    for text in result.new_warnings:
        print(f"  new warning: {text} ({ours.warnings[text]})")
    return result


def _run(
    project: Project, folder: Path, python: Path, patch: bool, workers: int, seconds: int, only: tuple[str, ...]
) -> Run:
    path = BUILD / "path"  # not the checkout itself, because others have packages named `tests` and `bench`, too
    path.mkdir(parents=True, exist_ok=True)
    for name, target in (
        ("shmloader", CHECKOUT / "shmloader"),
        ("suites_plugin.py", Path(__file__).with_name("plugin.py")),
    ):
        if not (path / name).exists():
            (path / name).symlink_to(target)
    record = BUILD / f"record-{project.name}-{workers}-{int(patch)}{'-again' if only else ''}.jsonl"
    record.write_text("")
    told = {
        "PYTHONPATH": f"{folder / project.path}{os.pathsep}{path}",
        "SUITE_RECORD": str(record),
        "SUITE_PATCH": str(int(patch)),
        "SUITE_CLASSES": project.classes,
        "SUITE_WORKERS": str(workers),
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [str(python), "-m", "pytest", "-p", "suites_plugin", "-p", "no:cacheprovider", "-c", os.devnull]
    command += ["--rootdir", str(folder), "-q", "--timeout", str(seconds), *(only or project.pytest)]
    began = time.monotonic()
    with open(record.with_suffix(".log"), "w") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | told, stdout=log, stderr=log, start_new_session=True
        )
        try:
            process.wait(_RUN_SECONDS)
        except subprocess.TimeoutExpired:
            print(f"  ended after {_RUN_SECONDS} s: {record.with_suffix('.log')}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also what the tests have left
            process.wait()
    return _read(record, time.monotonic() - began)


def _read(record: Path, seconds: float) -> Run:
    run = Run(seconds)
    for line in record.read_text().splitlines():
        found = json.loads(line)
        if "loader" in found:
            run.loaders[found["loader"]] = run.loaders.get(found["loader"]) or found["why"]
        elif "warning" in found:
            run.warnings.setdefault(found["warning"], found["test"])
        elif run.tests.get(found["test"], ("", ""))[0] != "failed":
            run.tests[found["test"]] = found["outcome"], found["why"]
    return run


if __name__ == "__main__":
    sys.exit(main())
