"""A worker is killed at each step of the protocol, in real processes; every batch still comes once, whole, in order.

The ring is built a second time with RING_STEP (atomics.h) in place, so that a worker dies exactly there.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from conftest import label
from scripts import ROOT, run_script

import shmloader

pytestmark = pytest.mark.long

STEPS = {
    "after claim": 0,
    "while filling": 1,
    "after overflow": 2,
    "while remembering": 3,
    "before publish": 4,
    "after publish, before the bell": 5,
    "in the bell, before the wake": 6,
    "after the bell": 7,
    "announced, before sleeping": 8,
}
EVERYWHERE = [step for step in STEPS if step != "after overflow"]
SHARED = {"schedule": "steal"}, {"schedule": "steal", "chunk_size": 1}, {"chunk_size": 1}  # ways to share work
DECIDED_BY_TIME = ("in the bell, before the wake", "announced, before sleeping")  # where a side goes to sleep

# Each batch takes numbers from all three generators; half-way the slots must grow.
SCRIPT = """
import functools, multiprocessing, os, pathlib, random, sys, time, numpy, torch, shmloader
from conftest import mount_small_shm
from shmloader.trainer.iterator import RingIterator

class Drawn(torch.utils.data.Dataset):
    def __len__(self): return 48
    def __getitem__(self, k):
        time.sleep(0.001 * (k // 2 % 3))  # now the trainer waits, now the workers do
        return {"k": k, "r": random.random(), "n": numpy.random.randn(3), "t": torch.randn(2),
                "wide": torch.full((1000 if k < 24 else 90_000,), k, dtype=torch.int32)}

def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)

def indices(batch):
    return batch["k"].tolist(), batch["wide"].tolist()

def arm(wanted, worker):
    os.environ["RING_STEP_TO_DIE"] = wanted

def died(expected, start, deaths, options):
    in_order = options.get("in_order", True)
    if options.get("schedule"): expected = undisturbed(options)  # what is drawn depends on the place in the batch alone
    token = os.path.join(os.environ["SHMLOADER_TEST_DIR"], f"token_{os.getpid()}_")
    for k in range(len(deaths)):
        pathlib.Path(f"{token}{k}").touch()
    wanted = " ".join(map(str, [os.getpid(), token, *sum(deaths, ())]))
    torch.manual_seed(5)
    loader = shmloader.DataLoader(
        Drawn(), batch_size=2, multiprocessing_context=start, on_worker_death="respawn", spare_slots=1,
        worker_init_fn=functools.partial(arm, wanted), **{"num_workers": 2, **options})
    iterator = iter(loader)
    assert isinstance(iterator, RingIterator)
    got, held = [], []
    for k, batch in enumerate(iterator):
        got.append({key: value.clone() for key, value in batch.items()})
        if k % 5 == 0: held.append((k, batch))  # lent for long: a slot that is free by mistake would change them
        if k % 4 == 0: time.sleep(0.01)
    assert all(same(batch, got[k]) for k, batch in held)
    if options.get("chunk_size") and not options.get("schedule"):  # in chunks, each worker draws for other samples
        got, expected = ([{"k": b["k"], "wide": b["wide"]} for b in batches] for batches in (got, expected))
    if in_order:
        assert len(got) == len(expected)
        for k, (ours, theirs) in enumerate(zip(got, expected)):
            assert same(ours, theirs), (k, ours, theirs)
    else:  # who makes which batch depends on time, and with it what was drawn
        assert sorted(map(indices, got)) == sorted(map(indices, expected))
    return sum(not pathlib.Path(f"{token}{k}").exists() for k in range(len(deaths)))

def undisturbed(options):
    torch.manual_seed(5)
    with shmloader.DataLoader(Drawn(), batch_size=2, num_workers=1, **options) as loader:
        return [{key: value.clone() for key, value in batch.items()} for batch in loader]

if __name__ == "__main__":
    multiprocessing.set_forkserver_preload(["torch", "shmloader", "conftest"])
    expected = {}
    for workers in {case[-1].get("num_workers", 2) for case in CASES}:
        torch.manual_seed(5)
        expected[workers] = list(torch.utils.data.DataLoader(Drawn(), batch_size=2, num_workers=workers))
    if SMALL: mount_small_shm(SMALL)
    for case in CASES:
        print(case, "->", flush=True)
        print(died(expected[case[-1].get("num_workers", 2)], *case), flush=True)
"""


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package whose workers die on demand: one for all processes that run tests side by side."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # otherwise it would be this process's own
    folder /= "stepped"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "built").exists():
            shutil.rmtree(folder, ignore_errors=True)  # what one that was interrupted has left
            build_stepped(folder)
            (folder / "built").touch()
    return folder


def build_stepped(folder: Path) -> None:
    installed = Path(shmloader.__file__).parent
    shutil.copytree(installed, folder / "shmloader", ignore=shutil.ignore_patterns("__pycache__"))
    core, named = ROOT / "cython_ext", folder / "named"
    (named / "shmloader" / "core").mkdir(parents=True)
    for package in (named / "shmloader", named / "shmloader" / "core"):
        (package / "__init__.pxd").touch()
    for declared in core.glob("*/*.pxd"):
        if not declared.name.startswith("__"):
            (named / "shmloader" / "core" / declared.name).symlink_to(declared)
    include = ["-include", str(ROOT / "tests" / "core" / "stress" / "kill_step.h"), f"-I{core}"]
    include.append(f"-I{sysconfig.get_path('include')}")
    for name in ("ring", "worker"):  # which have all steps that a worker comes by
        source, built = folder / f"{name}.c", next((folder / "shmloader" / "core").glob(f"{name}.*.so"))
        translate = [sys.executable, "-m", "cython", "-3", "--module-name", f"shmloader.core.{name}"]
        translate += ["-I", str(core), "-I", str(named), str(core / "ring" / f"{name}.pyx"), "-o", str(source)]
        subprocess.run(translate, check=True)
        compile_it = ["gcc", "-shared", "-fPIC", "-O1", "-std=gnu11", *include, str(source), "-o", str(built)]
        subprocess.run(compile_it, check=True)


def deaths_in(stepped: Path, cases: list[tuple[Any, ...]], small: str = "") -> list[int]:
    """How many workers died in each of these runs, all of which gave every batch as it should."""
    path = os.pathsep.join([str(stepped), str(ROOT / "tests")])
    script = SCRIPT.replace("CASES", repr(cases)).replace("SMALL", repr(small))
    # a fork server's path begins with its folder
    ran = run_script(script, before=["env", f"PYTHONPATH={path}"], cwd=stepped)
    if "not permitted" in ran.out:
        pytest.skip("this user may not mount")
    assert ran.status == 0, ran.out + ran.err
    return [int(line) for line in ran.out.splitlines() if line.isdigit()]


@pytest.mark.parametrize("hit", [1, 3])
def test_fork(stepped: Path, hit: int) -> None:
    """Two deaths: of both workers, or of one and the one in its place."""
    died = deaths_in(stepped, [("fork", [(STEPS[step], hit)] * 2, {}) for step in EVERYWHERE])
    for step, count in zip(EVERYWHERE, died, strict=True):
        assert count == 2 or step in DECIDED_BY_TIME, (step, count)


def test_two_deaths_over_one_batch(stepped: Path) -> None:
    """The second one begins with the batch that the first one held, and dies over it; the third makes it the same."""
    steps = [STEPS[step] for step in ("while filling", "while remembering", "before publish")]
    # each batch passes "while filling" once for each of its five leaves: the eleventh time is the third batch's first
    hits = {STEPS["while filling"]: 11, STEPS["while remembering"]: 3, STEPS["before publish"]: 3}
    cases = [("fork", [(one, hits[one]), (other, 1)], {"num_workers": 1}) for one in steps for other in steps]
    assert deaths_in(stepped, cases) == [2] * len(cases)


def test_spawn(stepped: Path) -> None:
    """One step in each way of sharing work; the fork server's workers inherit as little, and take them all."""
    ways: tuple[dict[str, Any], ...] = ({}, {"schedule": "steal", "chunk_size": 1})
    assert deaths_in(stepped, [("spawn", [(STEPS["before publish"], 1)], options) for options in ways]) == [1, 1]


def test_forkserver_at_each_step(stepped: Path) -> None:
    steps = [step for step in EVERYWHERE if step not in DECIDED_BY_TIME]
    assert deaths_in(stepped, [("forkserver", [(STEPS[step], 2)], {}) for step in steps]) == [1] * len(steps)


@pytest.mark.parametrize("hit", [1, 3])
@pytest.mark.parametrize("options", SHARED, ids=label)
def test_fork_where_work_is_shared(stepped: Path, options: dict[str, Any], hit: int) -> None:
    steps = [step for step in EVERYWHERE if step != "while remembering" or "schedule" not in options]
    died = deaths_in(stepped, [("fork", [(STEPS[step], hit)] * 2, options) for step in steps])
    for step, count in zip(steps, died, strict=True):
        assert count == 2 or step in DECIDED_BY_TIME, (step, count)


@pytest.mark.parametrize("options", SHARED[:2], ids=label)
def test_forkserver_where_work_is_shared(stepped: Path, options: dict[str, Any]) -> None:
    steps = ["after claim", "while filling", "before publish", "after publish, before the bell", "after the bell"]
    assert deaths_in(stepped, [("forkserver", [(STEPS[step], 1)], options) for step in steps]) == [1] * len(steps)


def test_out_of_order(stepped: Path) -> None:
    steps = ["after claim", "before publish", "after publish, before the bell", "announced, before sleeping"]
    deaths = [[(STEPS[step], 2)] * 2 for step in steps]
    died = deaths_in(stepped, [("fork", death, {"in_order": False}) for death in deaths])
    for step, count in zip(steps, died, strict=True):
        assert count == 2 or step in DECIDED_BY_TIME, (step, count)


def test_a_slot_that_moves_to_a_memfd(stepped: Path) -> None:
    assert deaths_in(stepped, [("fork", [(STEPS["after overflow"], 1)] * 2, {})], small="3m") == [2]
