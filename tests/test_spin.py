"""spin.h: how long a side waits on its core before it sleeps, and when it does not."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shutil
import subprocess
from pathlib import Path

import pytest

HEADERS = Path(__file__).parent.parent / "cython_ext"
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
#include "spin.h"
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


def test_pauses_are_twice_what_was_needed_of_late() -> None:
    spin = Spin(yields=0)
    assert spin.budget() == 20
    for _ in range(100):
        spin.learn(500, True)
    assert 950 <= spin.budget() <= 1000
    for _ in range(100):
        spin.learn(2000, True)
    assert spin.budget() == 2000
    for _ in range(100):
        spin.learn(2000, False)
    assert spin.budget() == 20


def test_yields_are_tried_now_and_then_and_kept_where_they_help() -> None:
    spin = Spin(yields=1)
    assert [spin.budget() > 0 for _ in range(128)] == 2 * ([False] * 63 + [True])
    spin.learn(3, True)
    assert all(spin.budget() == 32 for _ in range(128))
    for _ in range(2):  # of the waits that slept, no more than two after one that did not
        assert spin.budget()
        spin.learn(32, False)
    assert not spin.budget()


def busy() -> None:
    while True:
        pass


def test_a_yield_that_took_long_is_the_last() -> None:
    pausing, yielding = ctypes.byref(Spin(yields=0)), ctypes.byref(Spin(yields=1))
    for nanoseconds, goes_on in ((0, True), (99_999, True), (100_000, False), (10**9, False)):
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
