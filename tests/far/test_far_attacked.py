"""What attackers of far workers found, each with the least that shows it."""

from __future__ import annotations

import errno
import os
import pathlib
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from conftest import assert_same, iterate
from engine import CONTEXT, Here
from torch.utils.data import Dataset, get_worker_info

import shmloader
from shmloader.commands.top.rings import Rings
from shmloader.far.door import Door
from shmloader.far.maker import Maker
from shmloader.ray import Workers
from shmloader.statistics import causes
from shmloader.statistics.evidence import Evidence, Settings, settings_of
from shmloader.statistics.stats import Stats, Times, WorkerStats
from shmloader.trainer import far_worker_set

GIB = 1 << 30
PATIENCE = 30  # seconds that a child of a dataset has to end


class Forking(Dataset[int]):
    """Its sample 3 is made in two processes, as by a library that forks and forgets to end the child."""

    def __init__(self, raises: bool) -> None:
        self.raises = raises

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if index != 3:
            return -index
        child = os.fork()
        if child:
            return exit_code(child)
        if self.raises:
            raise ValueError("in the child")
        return -index


def exit_code(child: int) -> int:
    """How a child ended; -1 if it did not."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


@pytest.mark.parametrize(
    "raises", [pytest.param(False, id="goes on", marks=pytest.mark.long), pytest.param(True, id="raises")]
)
def test_a_child_that_the_dataset_forked_is_no_far_worker(raises: bool) -> None:
    """A local worker's child ends by its error.  A far worker's child knocked at the door, and waited for its turn."""
    loader: Any = shmloader.DataLoader(Forking(raises), batch_size=None, far_workers=Here(1))
    with loader:
        assert [int(each) for each in loader] == [0, -1, -2, 1, -4, -5]


class Counted(Dataset[str]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> str:
        info: Any = get_worker_info()
        return type(info.num_workers).__name__


def test_workers_are_told_a_plain_number() -> None:
    """A batch may have it, and then it would be pickled as a class of ours."""
    with shmloader.DataLoader(Counted(), batch_size=None, num_workers=1, far_workers=Here(1)) as loader:
        assert list(loader) == ["int", "int"]


def maker() -> Maker:
    arguments = {
        "dataset": Counted(), "auto_collation": True, "collate_fn": torch.stack, "drop_last": False, "base_seed": 1,
        "init_fn": None, "num_workers": 1, "seeds_samples": False, "stride": 1,
        "dataset_epoch": None, "left": None, "look_ahead": None,
    }  # fmt: skip
    return Maker(lambda: arguments, 0, 1)


def seen_by_top() -> list[str]:
    at_work = maker()
    labels = [held.ring.totals().label for held in Rings(os.getpid()).find()]
    at_work.close()
    return labels


def test_top_names_the_ring_of_a_far_worker() -> None:
    """It was "a dataset" with as many workers as the loader has, once for each far worker of a machine."""
    with CONTEXT.Pool(1) as pool:
        assert pool.apply(seen_by_top) == ["far worker 0 of 1"]


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
    loader: Any = shmloader.DataLoader(NUMBERS, num_workers=1, far_workers=Here(2))
    assert (settings_of(loader).num_workers, settings_of(loader).far) == (3, 2)


class Wide(Dataset[Any]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return torch.full((25 << 20 if index == 1 else 4,), index, dtype=torch.uint8)


@pytest.fixture
def _little_address_space() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    if taken > 8 * GIB:
        pytest.skip("a test before this one has used CUDA, which takes 100 GiB of addresses")
    resource.setrlimit(resource.RLIMIT_AS, (16 * GIB, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.usefixtures("_little_address_space")
@pytest.mark.parametrize("max_ring_bytes", [20 << 20, None])
def test_a_batch_wider_than_a_slot_is_an_error_of_that_batch(max_ring_bytes: int | None) -> None:
    """The far worker has more room.  So it made the batch, and counted as one that sends what it cannot have made."""
    options: dict[str, Any] = {"batch_size": None, "prefetch_factor": 200, "max_ring_bytes": max_ring_bytes}
    with shmloader.DataLoader(Wide(), num_workers=1, **options) as loader:
        by_local_ones = iterate(loader)
    with shmloader.DataLoader(Wide(), far_workers=Here(1), **options) as loader:
        by_far_workers = iterate(loader)
    if max_ring_bytes is None:  # a slot gets more addresses when it needs them: NOTE [ Rooms ] in ring.pxd
        assert_same(by_far_workers, by_local_ones)
        assert len(by_far_workers[1]) == 25 << 20
        return
    assert by_local_ones[1].kind is MemoryError and by_far_workers[1].kind is MemoryError
    assert "max_ring_bytes" in str(by_far_workers[1].text)
    assert_same([by_far_workers[0], by_far_workers[2]], [by_local_ones[0], by_local_ones[2]])


def test_a_fork_of_the_trainer_holds_no_door_open() -> None:
    """A far worker whose trainer was killed waited for a greeting for as long as such a child lived."""
    door = Door("127.0.0.1", 0, 1, b"s" * 32, 60.0)
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


class Elsewhere(Here):
    """Its address is another machine's (RFC 5737 keeps it free)."""

    def address(self) -> str:
        return "203.0.113.7"


def test_an_address_that_is_not_this_machines_is_named() -> None:
    """It was "Cannot assign requested address"."""
    with pytest.raises(OSError, match=r"'203.0.113.7': .*must be an address of this machine.*Give far_workers another"):
        iter(shmloader.DataLoader(NUMBERS, far_workers=Elsewhere(1)))


def test_too_few_descriptors_for_all_doors_are_the_error_of_local_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(far_worker_set, "Door", full)
    with pytest.raises(OSError, match=r"ulimit -n.*1 of 3 workers could be started"):
        iter(shmloader.DataLoader(NUMBERS, num_workers=1, far_workers=Here(2)))


NUMBERS = Counted()


# ------------------------------------------------------------------------------------------------------------------ Ray


class Counting(Workers):
    """Its actors are counted, and nothing can be sent to them."""

    made = 0

    def _make(self) -> list[Any]:
        self.made += 1
        return [object()] * self.num

    def _put(self, heavy: dict[str, Any]) -> Any:
        raise TypeError("it cannot be pickled")


def test_actors_are_free_again_when_the_dataset_could_not_be_sent() -> None:
    """The next iter() started as many again, and waited for CPUs that the first ones held."""
    workers = Counting(2)
    heavy = dict.fromkeys(("dataset", "collate_fn", "init_fn", "pool"))
    for _ in range(2):
        with pytest.raises(TypeError, match="it cannot be pickled"):
            workers.begin([], heavy)
    assert workers.made == 1


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "", 5])
def test_an_address_that_no_actor_reaches_is_refused(address: Any) -> None:
    """Actors would have looked for the trainer on their own machines, and the first batch would have never come."""
    with pytest.raises(ValueError, match=r"but got address=.*leave it out to use the address that Ray uses"):
        Workers(1, address=address)
