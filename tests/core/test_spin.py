"""spin.h: how long a side waits on its core before it sleeps, and when it does not."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shutil
import subprocess
from pathlib import Path

import pytest

HEADERS = Path(__file__).parents[2] / "cython_ext"
EXPORTS = """
#define _GNU_SOURCE
#include <unistd.h>
#include <sys/syscall.h>
#include <sched.h>
#ifdef CLOCK_OF_ITS_OWN
#define SHMLOADER_CLOCK_H
#define sched_yield() (now += yield_takes)
#include <stdint.h>
static uint64_t now, yield_takes;
static uint64_t clock_now(void) { return now; }
void take(uint64_t nanoseconds) { yield_takes = nanoseconds; }
#endif
#include "ring/spin.h"
int budget(ring_spin *s) { return spin_budget(s); }
int once(ring_spin *s) { return spin_once(s); }
void learn(ring_spin *s, int spins, int met) { spin_learn(s, spins, met); }
"""


class Spin(ctypes.Structure):
    _fields_ = [("yields", ctypes.c_int), ("recent", ctypes.c_int), ("waits", ctypes.c_int)]

    def budget(self) -> int:
        return int(library.budget(ctypes.byref(self)))

    def learn(self, spins: int, met: bool) -> None:
        library.learn(ctypes.byref(self), spins, met)


@pytest.fixture(scope="module", autouse=True)
def build(tmp_path_factory: pytest.TempPathFactory) -> None:
    global library, timed
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    folder = tmp_path_factory.mktemp("spin")
    (folder / "spin.c").write_text(EXPORTS)
    command = ["gcc", "-std=c11", "-shared", "-fPIC", f"-I{HEADERS}", str(folder / "spin.c"), "-o"]
    subprocess.run([*command, str(folder / "spin.so")], check=True)
    subprocess.run([*command, str(folder / "timed.so"), "-DCLOCK_OF_ITS_OWN"], check=True)
    library, timed = (ctypes.CDLL(str(folder / name)) for name in ("spin.so", "timed.so"))


def after(waits: int, spins: int, met: bool, yields: int = 0) -> int:
    """The budget of one who has had so many waits, each of which took so long."""
    spin = Spin(yields=yields)
    for _ in range(waits):
        spin.learn(spins, met)
    return spin.budget()


def test_pauses_last_as_long_as_waits_did_of_late() -> None:
    fresh = Spin(yields=0).budget()
    for needed in (2 * fresh, 20 * fresh):
        assert needed < after(100, needed, True) < 3 * needed, "enough for the next, and it ends"
    assert after(1, 20 * fresh, True) < after(100, 20 * fresh, True), "one wait alone says little"


def test_pauses_are_bounded_however_long_waits_took() -> None:
    assert after(100, 10**6, True) == after(100, 10**7, True) < 10**5


def test_where_pauses_do_not_help_they_are_as_few_as_at_first() -> None:
    spin = Spin(yields=0)
    for _ in range(100):
        spin.learn(500, True)
    for _ in range(100):
        spin.learn(500, False)
    assert 0 < spin.budget() == Spin(yields=0).budget()


def test_yields_are_tried_now_and_then_and_kept_where_they_help() -> None:
    spin = Spin(yields=1)
    tried = [spin.budget() > 0 for _ in range(1000)]
    assert 0 < sum(tried) < 50
    spin.learn(3, True)
    assert all(spin.budget() for _ in range(1000))
    for _ in range(5):
        spin.learn(spin.budget(), False)
    assert sum(spin.budget() > 0 for _ in range(1000)) <= sum(tried) + 1, "given up soon where they do not help"


def test_what_helped_for_long_is_given_up_soon_all_the_same() -> None:
    assert after(10_000, 3, True, yields=1)
    spin = Spin(yields=1)
    for _ in range(10_000):
        spin.learn(3, True)
    for _ in range(20):
        spin.learn(3, False)
    assert not spin.budget()


def busy() -> None:
    while True:
        pass


def test_a_yield_that_took_long_is_the_last() -> None:
    pausing, yielding = ctypes.byref(Spin(yields=0)), ctypes.byref(Spin(yields=1))
    for nanoseconds, goes_on in ((0, True), (500, True), (4 * 10**6, False), (10**9, False)):  # 4 ms: a turn of another
        timed.take(ctypes.c_uint64(nanoseconds))
        assert bool(timed.once(yielding)) is goes_on
        assert timed.once(pausing)


def test_a_yield_to_a_busy_process_takes_long() -> None:
    yielding = ctypes.byref(Spin(yields=1))
    cores = os.sched_getaffinity(0)
    other = multiprocessing.get_context("fork").Process(target=busy, daemon=True)
    os.sched_setaffinity(0, {min(cores)})  # the other one's too
    try:
        other.start()
        assert not all(library.once(yielding) for _ in range(1000))
    finally:
        os.sched_setaffinity(0, cores)
        other.kill()
        other.join()
