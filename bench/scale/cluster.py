"""A plan on a real Ray cluster of three nodes, all on this machine.

It runs in a process of its own, see core/child.py.  The interpreter is that of .venv-ray.  A slow
network is a process between actors and trainer, see far/delay.py.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ray

import shmloader
from bench.core.results import ROOT
from bench.far.delay import between
from bench.scale.cases import CASES
from bench.scale.plan import Plan
from bench.scale.simulate import simulate
from bench.scale.sleeping import VALUES, Sleeping
from bench.scale.troubles import back_at
from shmloader.far_workers import FarSession, Ticket
from shmloader.ray import Workers

NODES, CPUS = 3, 2  # CPUs of each
SHARE = 0.5  # of a CPU for an actor: its samples sleep
SAMPLES = 2  # of a batch
RING_BYTES = 1 << 28  # any limit keeps the ring from being deeper
START = 120.0  # seconds that actors may take to start


class SlowNetwork(Workers):
    """Actors behind a slow network."""

    def follow(self, plan: Plan) -> None:
        """Be as this plan says, from the next iterator on."""
        self._plan = plan
        self.in_flight = plan.in_flight

    def begin(self, tickets: list[Ticket], arguments: dict[str, Any]) -> FarSession:
        plan = self._plan
        if not plan.latency and math.isinf(plan.bandwidth):
            return super().begin(tickets, arguments)
        bandwidth = None if math.isinf(plan.bandwidth) else plan.bandwidth
        spawning = multiprocessing.get_context("spawn")
        found, answer = spawning.Pipe(False)
        process = spawning.Process(target=between, args=(tickets, plan.latency, answer, bandwidth), daemon=True)
        process.start()
        return _Behind(super().begin(found.recv(), arguments), process)

    def kill(self, number: int) -> None:
        """Kill an actor.  Ray starts it again."""
        ray.kill(self._busy[-1][number].process, no_restart=False)


class _Behind(FarSession):
    """A session with its slow network."""

    def __init__(self, session: FarSession, process: Any) -> None:
        self._session, self._process = session, process

    def wait(self) -> None:
        self._session.wait()

    def place(self, far: int) -> str:
        return self._session.place(far)

    def close(self) -> None:
        self._process.kill()  # before the far workers, which see then that the trainer listens no more
        self._process.join()
        self._session.close()


@contextlib.contextmanager
def _three_nodes() -> Iterator[None]:
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": CPUS, "include_dashboard": False})
    try:
        for _ in range(NODES - 1):
            made.add_node(num_cpus=CPUS)
        ray.init(address=made.address, runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}}, log_to_driver=False)
        yield
    finally:
        ray.shutdown()
        made.shutdown()


def measured(plan: Plan, far: SlowNetwork | None) -> tuple[float, Plan]:
    """Batches a second of a loader over this plan; and the plan with the times for which killed actors were away.

    An actor imports torch before it is back.  How long that takes depends on other programs on this machine.  So the
    simulation uses the times that were measured.
    """
    slow = frozenset(plan.local + number for number in plan.slow)
    dataset = Sleeping(plan.making / SAMPLES, int(plan.batch_bytes) // SAMPLES, slow, plan.slow_factor)
    kind: dict[str, Any] = {"far_workers": far}
    if far is None:  # with far workers that is how it is anyway
        kind = {"multiprocessing_context": "forkserver"}
    loader = shmloader.DataLoader(
        dataset,
        SAMPLES,
        num_workers=plan.local,
        prefetch_factor=plan.prefetch_factor,
        schedule="steal" if plan.steals else "round_robin",
        on_worker_death="respawn",
        max_ring_bytes=None if plan.deepens else RING_BYTES,
        **kind,
    )
    with loader:
        batches = enumerate(loader)
        next(batches)  # all workers are there, or soon will be
        _read(batches, plan.warm_up)
        killing = threading.Thread(target=_kill, args=(plan, far), daemon=True)
        killing.start()
        rate, came = _read(batches, plan.seconds)
        killing.join()
    deaths = []
    for death in plan.deaths:
        its = [at for at, worker in came if worker == plan.local + death.node]
        back = back_at(its, death.at - plan.warm_up, plan.seconds) - plan.making  # it makes one batch until it is seen
        deaths.append(replace(death, away=max(0.0, back - (death.at - plan.warm_up))))
    return rate, replace(plan, deaths=tuple(deaths))


def _read(batches: Iterator[tuple[int, Any]], seconds: float) -> tuple[float, list[tuple[float, int]]]:
    """Read for this long; returns batches a second, and when each came and from which worker."""
    came: list[tuple[float, int]] = []
    began = time.monotonic()
    while (took := time.monotonic() - began) < seconds:
        at, batch = next(batches)
        came.append((time.monotonic() - began, int(batch[0, 1])))
        if batch[0, 0] != SAMPLES * at % VALUES:
            raise AssertionError(f"batch {at} is not the one that was to be loaded")
    return len(came) / took, came


def _kill(plan: Plan, far: SlowNetwork | None) -> None:
    began = time.monotonic()
    for death in plan.deaths:
        time.sleep(max(0.0, began + death.at - plan.warm_up - time.monotonic()))
        assert far is not None
        far.kill(death.node)


def beside(names: list[str]) -> dict[str, Any]:
    """Measure and simulate these of CASES.

    Returns:
        For each, "measured" and "simulated": batches a second; "away": seconds for which killed actors were away.
    """
    os.environ["RAY_DISABLE_IMPORT_WARNING"] = "1"
    found: dict[str, Any] = {}
    with _three_nodes(), contextlib.ExitStack() as all_of_them:
        far: SlowNetwork | None = None
        for name in names:
            plan = CASES[name]
            if plan.far and (far is None or far.num != plan.far):
                if far is not None:
                    far.close()
                far = SlowNetwork(plan.far, num_cpus=SHARE, scheduling_strategy="SPREAD", start_timeout=START)
                all_of_them.enter_context(far)
            if far is not None:
                far.follow(plan)
            rate, seen = measured(plan, far if plan.far else None)
            away = [death.away for death in seen.deaths]
            found[name] = {"measured": rate, "simulated": simulate(seen).rate, "away": away}
    return {"cases": found}
