"""What attackers of far workers found, each with the least that shows it."""

from __future__ import annotations

import os
import pickle
import socket
import struct
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from engine import Here
from pretended import PLAN, words

import shmloader
from shmloader.far.door import Door
from shmloader.far.frames import Garbage
from shmloader.far.layout import Layouts
from shmloader.ray import Workers
from shmloader.statistics import causes
from shmloader.statistics.evidence import Evidence, Settings, settings_of
from shmloader.statistics.stats import Stats, Times, WorkerStats


def always_busy(number: int) -> WorkerStats:
    return WorkerStats(number, 100, 10.0, 10.0, 0.0, 0.0, 0.0, 0.0, cpu_share=0.9, delayed_share=0.3)


def advice(cause: Callable[[Evidence], Any], far: int, cores: float) -> str:
    """What a report advises a loader of three workers, so many of which are far ones; empty if nothing."""
    times = {"wait": Times(100, 10.0, 0.1), "step": Times(99, 1.0, 0.01), "first_wait": Times()}
    workers = tuple(map(always_busy, range(3)))
    stats = Stats("start", 11.0, None, 3, 100, 9.0, 0.9, **times, taken_batches=100, workers=workers)
    found = cause(Evidence(stats, Settings(3, far=far), cores))
    return "" if found is None else str(found.change)


def test_a_report_counts_far_workers_apart() -> None:
    """num_workers=8 would have made ten: it counts local workers alone, and far ones take no cores here."""
    assert advice(causes.work, 0, 8.0).startswith("num_workers=8")
    assert advice(causes.work, 2, 8.0).startswith("num_workers=6 beside 2 far workers")
    assert advice(causes.cores, 0, 2.0).startswith("num_workers=2")
    assert advice(causes.cores, 2, 2.0) == ""
    loader: Any = shmloader.DataLoader(range(2), num_workers=1, far_workers=Here(2))
    assert (settings_of(loader).num_workers, settings_of(loader).far) == (3, 2)


def test_a_fork_of_the_trainer_holds_no_door_open() -> None:
    """A far worker whose trainer was killed waited for a greeting for as long as such a child lived."""
    door = Door("127.0.0.1", 0, 1, b"s" * 32, 60.0, None)
    ready, says_so = os.pipe()
    told, tells = os.pipe()
    child = os.fork()
    if not child:
        os.close(tells)
        os.write(says_so, b"x")  # what a fork runs in the child has run
        os.read(told, 1)  # until the parent closes its end
        os._exit(0)
    try:
        os.read(ready, 1)
        door.drop()  # as the end of this process does it
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((door.ticket.host, door.ticket.port), timeout=60)
    finally:
        for end in (tells, told, ready, says_so):
            os.close(end)
        os.waitpid(child, 0)


# ------------------------------------------------------------------------------------------------- who knows the secret


def plan(*tokens: Any) -> bytes:
    return pickle.dumps(tokens)


@pytest.mark.parametrize(
    ("meta", "pickled", "why"),
    [
        (words(7, 0, ~2, 2, 2, 1000, 1), PLAN, "a leaf at 0, of 1002 bytes, in 4 bytes"),
        (words(7, 0, ~2, 2, 2, 1000, 1), plan(numpy.dtype("u1")), "a leaf of shape (2, 2) with strides (1000, 1)"),
        (words(7, 1, ~2, 3, 2, 1, 1), PLAN, "a leaf at 1, of 4 bytes, in 4 bytes"),
        (words(7, 0, ~2, 3, 2, 1, 1), plan(numpy.dtype("u1")), "a leaf of shape (3, 2) with strides (1, 1)"),
        (words(7, 0, ~2, 1 << 40, 1 << 40, 0, 0), PLAN, "with strides (0, 0)"),
        (words(7, 0, ~2, 2, 2, -1, 4), PLAN, "with strides (-1, 4)"),
        (words(7, 0, ~2, 2, 2, 1 << 62, 1 << 62), PLAN, "bytes, in 4 bytes"),
        (words(7, 0, ~0), plan(torch.float64), "a leaf at 0, of 8 bytes, in 4 bytes"),
        (words(7, 0, 1, 4), b"junk", "a plan that cannot be read (UnpicklingError"),
        (words(7, 0, 1, 4), pickle.dumps(5), "a plan that cannot be read (TypeError"),
        (words(7), plan(), "a plan that cannot be read (IndexError"),
        (words(7), plan("a", "b"), "a plan that cannot be read (TypeError"),
        (words(7, 0, 1, 0), plan(numpy.dtype(object)), "a plan with a leaf of dtype object"),
    ],
    ids=[
        "far strides",
        "far strides of an array",
        "a view past the end",
        "a view as an array",
        "too many elements",
        "a negative stride",
        "wide strides",
        "no strides",
        "junk",
        "a number",
        "no plan",
        "no token",
        "pointers",
    ],
)
def test_a_layout_that_no_writer_makes_is_refused(meta: bytes, pickled: bytes, why: str) -> None:
    """The trainer would have said that its memory was overwritten, and would have named no far worker."""
    with pytest.raises(Garbage) as error:
        Layouts().check(meta, struct.unpack(f"{len(meta) // 8}q", meta), pickled, 4)
    assert why in str(error.value)


# ------------------------------------------------------------------------------------------------------------------ Ray


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "", 5])
def test_an_address_that_no_actor_reaches_is_refused(address: Any) -> None:
    """Actors would have looked for the trainer on their own machines, and the first batch would have never come."""
    with pytest.raises(ValueError, match=r"but got address=.*leave it out to use the address that Ray uses"):
        Workers(1, address=address)
