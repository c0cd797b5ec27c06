"""Actors and whole nodes are killed at random while a loader uses them.  Every batch must come once, in order, and be
that of an undisturbed run.  `make test-ray KILLS=200` kills 200 actors and 20 nodes.

An actor is killed again only after some batches, because the third death over one batch is an error.  If work is
stolen, that may be the death of any three, so no three are killed while one batch is under way.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import deque
from typing import Any

import psutil
import pytest
from conftest import assert_same, seed_all
from drawn import Drawn
from ray_nodes import CPUS, KILLS, actors, cluster_of, until

import shmloader
import shmloader.ray

FAR = 4
BATCHES = 250  # an epoch
REST = 8  # batches that are taken after an actor was killed, before it may be killed again
UNDER_WAY = 4 * 2 * (FAR + 1)  # batches at most, where work is stolen
ON_FAR = {"far": FAR / 2}  # what two of three nodes have, so that actors run there, and not on the driver's node
MOST = 1500  # seconds that a test may take

SCHEDULES = pytest.mark.parametrize("schedule", ["steal", "round_robin"])
pytestmark = [pytest.mark.long, pytest.mark.timeout(MOST + 60)]


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    """Ray has processes, threads and descriptors of its own, so soak() looks for actors that are left."""


class Long(Drawn):
    """Samples that take a moment, so that actors die in the middle of one."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(0.005)
        return super().__getitem__(index)


class Killer(threading.Thread):
    """Kills actors of one iterator until it has killed enough."""

    def __init__(self, iterator: Any, kills: int, stealing: bool) -> None:
        super().__init__(daemon=True)
        self.wanted, self.kills, self.taken = kills, 0, 0
        self.stealing = stealing
        self.numbers = {door.ticket.port: number for number, door in enumerate(iterator._worker_set._doors)}
        self.since = [-REST] * len(self.numbers)
        self.last_two = deque([-1 - UNDER_WAY] * 2, 2)
        self.random = random.Random(5)
        self.stop = threading.Event()
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stop.wait(self.random.random() * 0.1) and self.kills < self.wanted:
                self.strike()
            self.stop.wait()  # the kernel ends the processes of a node with the thread that has started them
        except BaseException as error:
            self.failed = error
            os.kill(os.getpid(), signal.SIGINT)  # the main thread may wait for an actor that nobody starts again

    def at_work(self) -> dict[int, int]:
        """The far workers that are connected to their stand-ins, each with its process."""
        found = {}
        for pid in actors(".work"):
            with contextlib.suppress(psutil.Error):
                for each in psutil.Process(pid).net_connections("tcp"):
                    if each.raddr and each.status == psutil.CONN_ESTABLISHED and each.raddr.port in self.numbers:
                        found[self.numbers[each.raddr.port]] = pid
        return found

    def may_die(self, far: int) -> bool:
        if self.stealing:
            return self.taken - self.last_two[0] > UNDER_WAY
        return self.taken - self.since[far] >= REST

    def strike(self) -> None:
        victims = {far: pid for far, pid in self.at_work().items() if self.may_die(far)}
        if not victims:
            return
        far = self.random.choice(sorted(victims))
        self.since[far] = self.taken
        self.last_two.append(self.taken)
        with contextlib.suppress(ProcessLookupError):
            os.kill(victims[far], signal.SIGKILL)
            self.kills += 1


class NodeKiller(Killer):
    """Kills one of two nodes, and adds another one in its place."""

    def __init__(self, cluster: Any, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.cluster = cluster

    def strike(self) -> None:
        if len(self.at_work()) < FAR or not all(map(self.may_die, range(FAR))):
            return
        node = self.random.choice(list(self.cluster.worker_nodes))
        self.since = [self.taken] * FAR
        self.last_two += [self.taken] * 2
        self.cluster.remove_node(node, allow_graceful=False)
        self.kills += 1
        self.cluster.add_node(num_cpus=CPUS, resources=ON_FAR)


def soak(schedule: str, kills: int, killer_of: Any) -> None:
    """Go through epochs until enough was killed, and compare every batch with that of local workers."""
    stealing = schedule == "steal"
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "persistent_workers": True, "schedule": schedule}
    local = {"num_workers": 1 if stealing else FAR + 1, "multiprocessing_context": "forkserver"}
    dataset = Long(4 * BATCHES)
    killer: Killer | None = None
    epoch, ends = 0, time.monotonic() + MOST
    with (
        shmloader.ray.Workers(FAR, num_cpus=1, resources={"far": 1}) as workers,
        shmloader.DataLoader(dataset, **options, **local) as expected,
        shmloader.DataLoader(
            dataset, num_workers=1, far_workers=workers, on_worker_death="respawn", **options
        ) as loader,
    ):
        try:
            while killer is None or killer.kills < kills:
                seed_all(epoch)
                reference = iter(expected)
                seed_all(epoch)
                iterator = iter(loader)
                if killer is None:
                    killer = killer_of(iterator, kills, stealing)
                    killer.start()
                count = 0
                for batch, right in zip(iterator, reference, strict=True):
                    for each in (batch, right) if stealing else ():
                        del each["worker"]
                    assert_same(batch, right)
                    count += 1
                    killer.taken += 1
                    assert time.monotonic() < ends, f"{killer.kills} of {kills} kills in {MOST} seconds"
                assert count == BATCHES and loader.rides_ring
                epoch += 1
        except KeyboardInterrupt:
            if killer is not None and killer.failed is not None:
                raise killer.failed from None
            raise
        deaths = loader.stats().worker_deaths
        print(f"{schedule}: {killer.kills} kills, {deaths} deaths of stand-ins, {epoch} epochs of {BATCHES} batches")
        assert deaths is not None and deaths >= kills // 2  # otherwise hardly a kill struck an actor at work
    assert until(lambda: not actors())
    killer.stop.set()  # only now: the node that it has added ends, and could no longer end an actor that starts
    killer.join()


@SCHEDULES
def test_actors_are_killed_at_random(schedule: str) -> None:
    with cluster_of(ON_FAR, ON_FAR):
        soak(schedule, max(1, KILLS // 2), Killer)


@SCHEDULES
def test_nodes_are_killed_at_random(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # a new node of Ray's would have SIGTERM end it, which only the main thread may ask for, and that waits for batches
    monkeypatch.setattr("ray._private.utils.set_sigterm_handler", lambda handler: None)
    with cluster_of(ON_FAR, ON_FAR) as cluster:
        soak(schedule, max(1, KILLS // 20), lambda *arguments: NodeKiller(cluster, *arguments))
