"""How far workers scale: a simulation of clusters that do not fit here, which prints the tables of docs/scale.md.

Stand-ins and far workers follow shmloader/far: a stand-in claims up to `in_flight` batches, receives them in order, and
publishes each; a far worker makes one batch while it sends the one before.  Networks and cores pass one thing after
another, and keep in mind when they are free.  So a batch costs a few events, and not a few for each packet.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import itertools
import json
import math
import random
import statistics
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import simpy
from rich.console import Console

from bench.core.question import Question, Turn, add_choice
from bench.core.results import ROOT, failures, print_lines
from shmloader.far_workers import FarWorkers
from shmloader.trainer.schedule import FURTHER_BYTES, STEALING_FACTOR

Steps = Generator[Any, Any, None]

# Of each case that was measured: its plan, its rates, and how long actors were away.
MEASURED = json.loads((ROOT / "bench/results/scale-cluster.json").read_text(encoding="utf-8"))["cases"]
SAMPLE = 653.4446951219521e-6  # seconds; with fewer digits, a full network gives other figures
MEMCPY = 7.4e-3 / 2.4 / 38.5e6  # seconds a byte
COSTS = {  # in seconds or copies; as the page shows it; what costs it; the source
    "sample": (SAMPLE, "653 us", "making one sample, on one CPU", "`bench recipes` at a2207e94: bilinear crop"),
    "copy": (MEMCPY, "0.080 ns", "copying one byte", "docs/far-workers.md: 7.4 ms are 2.4 copies of 38.5 MB"),
    "receiving": (2.5, "2.5 copies", "receiving a byte on the trainer's machine", "`bench far`: 2.4 to 2.6 copies"),
    "sending": (2.0, "2 copies", "collating and sending a byte on a far CPU", "`bench far`: 6.5 ms for 38.5 MB"),
    "loop": (429e-6, "429 us", "the loop's own thread per batch", "docs/far-workers.md"),
    "restart": (3.1, "3.1 s", "an actor's restart after its death", "measured on Ray: 2.3 to 3.1 s"),
    "latency": (100e-6, "0.1 ms", "latency in one direction", "assumed: one data center"),
    "heartbeat": (30.0, "30 s", "until a machine that vanished counts as dead", "default of `Workers(heartbeat=)`"),
}
COST = {name: cost[0] for name, cost in COSTS.items()}


class Death(NamedTuple):
    """A node of far workers that vanishes, with all of them."""

    at: float  # seconds
    node: int
    away: float  # seconds until its far workers are back
    noticed: float = 0.0  # seconds until the trainers know; 0 if the connections break


class Plan(NamedTuple):
    """A cluster and its work.  Worker w belongs to trainer w % trainers, and runs on node w // far_per_node.

    Each trainer has a node of its own.
    """

    batch_bytes: float
    making: float  # seconds that a worker takes for a batch
    far: int  # far workers in all
    local: int = 0  # workers of each trainer on its own node
    trainers: int = 1
    far_per_node: int = 16
    bandwidth: float = math.inf  # bytes a second of each trainer's network, in each direction
    far_bandwidth: float = math.inf  # the same of nodes with far workers
    latency: float = 0.0  # seconds that a byte takes from node to node
    receiving: float = 0.0  # seconds of a core that a stand-in takes for a byte
    cores: int = 4  # of a trainer's node, which its stand-ins share
    loop: float = 0.0  # seconds between two batches in which the loop asks for none
    steals: bool = True
    in_flight: int = FarWorkers.in_flight
    prefetch_factor: int = 2  # torch's default
    deepens: bool = True  # whether more small batches are open, as without max_ring_bytes
    slow: frozenset[int] = frozenset()  # far workers that take three times as long
    jitter: float = 0.0  # by which share of its time a batch may take more or less, at random
    deaths: tuple[Death, ...] = ()
    seconds: float = 10.0  # for which rates are counted
    warm_up: float = 2.0  # seconds before

    def under_way(self, workers: int) -> int:
        """How many batches a trainer with so many workers has under way, as in trainer/schedule.py."""
        least = workers * self.prefetch_factor
        deep = min(max(least, int(FURTHER_BYTES // self.batch_bytes)), STEALING_FACTOR * least)
        return deep if self.steals and self.deepens else least


class Line:
    """A direction of a network, or cores: it passes one thing after another."""

    def __init__(self, env: simpy.Environment, count: int = 1) -> None:
        self._env, self._free = env, [0.0] * count

    def take(self, seconds: float) -> tuple[float, float]:
        """Be busy for so long, after all that was there before; returns when that begins and ends."""
        begins = max(self._env.now, self._free[0])
        heapq.heapreplace(self._free, begins + seconds)
        return begins, begins + seconds


class Ring:
    """A trainer's ring: which batches are open, and which are made."""

    def __init__(self, env: simpy.Environment, plan: Plan, workers: int) -> None:
        self.env, self.rate = env, 0.0  # batches a second of the trainer
        self._open = [simpy.PriorityStore(env) for _ in range(1 if plan.steals else workers)]  # the first one first
        self.made: list[Any] = []  # for each sequence, an event that happens when it is published
        self.taken = 0
        for _ in range(plan.under_way(workers)):
            self._open_next()

    def _open_next(self) -> None:
        self.made.append(self.env.event())
        self.open(len(self.made) - 1)

    def open(self, sequence: int) -> None:
        """Open a sequence; also once more, if the worker that had claimed it is lost."""
        self._open[sequence % len(self._open)].put(sequence)

    def claim(self, worker: int) -> Any:
        """An event whose value is a sequence for this worker.  It happens at once if one is open."""
        return self._open[worker % len(self._open)].get()

    def read(self, loop: float) -> Steps:
        """Take batches in order, each as soon as it is there, and open the next one in its place."""
        for sequence in itertools.count():
            yield self.made[sequence]
            self.taken += 1
            self._open_next()
            if loop:
                yield self.env.timeout(loop)

    def work(self, me: int, takes: Callable[[], float]) -> Steps:
        """A local worker: claim, make and publish, for ever."""
        while True:
            sequence = yield self.claim(me)
            yield self.env.timeout(takes())
            self.made[sequence].succeed()


class Far:
    """A far worker and its stand-in.

    Args:
        ring: The trainer's, of which it is worker `me`.
        takes: Gives the seconds that the next batch takes.
        lines: The network of its node, outwards; that of the trainer's node, inwards; the cores of the trainer's node.
    """

    def __init__(
        self, plan: Plan, ring: Ring, me: int, takes: Callable[[], float], lines: tuple[Line, Line, Line]
    ) -> None:
        self._env, self._plan, self._ring, self._me, self._takes = ring.env, plan, ring, me, takes
        self._out, self._into, self._cores = lines
        self.start()

    def start(self) -> None:
        """Begin, or begin again after die()."""
        self._claims: deque[int] = deque()
        self._asked: Any = None  # a claim that waits until a batch is open
        self._requests, self._arrivals = simpy.Store(self._env), simpy.Store(self._env)
        self._lives = [self._env.process(_until_dead(steps)) for steps in (self._stand_in(), self._make())]

    def die(self, noticed: float) -> None:
        """End.  The batches that its stand-in holds are opened again when the trainer notices."""
        for life in self._lives:
            life.interrupt()
        if self._asked is not None and self._asked.triggered:
            self._claims.append(self._asked.value)
        elif self._asked is not None:
            self._asked.cancel()
        self._env.process(self._open_again(self._claims, noticed))

    def _open_again(self, held: deque[int], noticed: float) -> Steps:
        yield self._env.timeout(noticed)
        for sequence in held:
            self._ring.open(sequence)

    def _stand_in(self) -> Steps:
        plan, claims = self._plan, self._claims
        while True:
            while len(claims) < plan.in_flight:
                self._asked = claim = self._ring.claim(self._me)
                if claims and not claim.triggered:  # it sleeps on the ring only if it expects no batch
                    claim.cancel()
                    self._asked = None
                    break
                claims.append((yield claim))
                self._asked = None
                self._travel(self._requests, None)
            last = yield self._arrivals.get()
            _, received = self._cores.take(plan.receiving * plan.batch_bytes)
            yield self._env.timeout(max(received, last) - self._env.now)
            self._ring.made[claims.popleft()].succeed()

    def _make(self) -> Steps:
        sending: Any = None
        while True:
            yield self._requests.get()
            yield self._env.timeout(self._takes())
            if sending is not None:
                yield sending
            sending = self._env.process(self._send(self._arrivals))

    def _send(self, arrivals: simpy.Store) -> Steps:
        """Pass a batch through two networks, of which the slower one decides."""
        plan, env = self._plan, self._env
        begins, sent = self._out.take(plan.batch_bytes / plan.far_bandwidth)
        yield env.timeout(begins - env.now)
        first, last = self._into.take(plan.batch_bytes / plan.bandwidth)
        last = max(last, sent)
        yield env.timeout(first - env.now)
        self._travel(arrivals, last + plan.latency)
        yield env.timeout(last - env.now)

    def _travel(self, store: simpy.Store, what: Any) -> None:
        """Put something into a store after the latency."""
        if not self._plan.latency:
            store.put(what)
        else:
            arrival: Any = self._env.timeout(self._plan.latency)
            arrival.callbacks.append(lambda _: store.put(what))


def _until_dead(steps: Steps) -> Steps:
    with contextlib.suppress(simpy.Interrupt):
        yield from steps


def simulate(plan: Plan) -> list[Ring]:
    """The trainers' rings after a plan; each has the `rate` of its trainer, in batches a second."""
    env, draw = simpy.Environment(), random.Random(11)
    out = [Line(env) for _ in range(-(-plan.far // plan.far_per_node))]
    rings: list[Ring] = []
    far: list[tuple[int, Far]] = []  # with its node

    def takes(factor: float) -> Callable[[], float]:
        least, most = (plan.making * factor * (1 + jitter) for jitter in (-plan.jitter, plan.jitter))
        return lambda: draw.uniform(least, most)

    def vanish(death: Death) -> Steps:
        yield env.timeout(death.at)
        lost = [worker for node, worker in far if node == death.node]
        for worker in lost:
            worker.die(death.noticed)
        yield env.timeout(max(death.away, death.noticed))
        for worker in lost:
            worker.start()

    for trainer in range(plan.trainers):
        its, into, cores = range(trainer, plan.far, plan.trainers), Line(env), Line(env, plan.cores)
        rings.append(ring := Ring(env, plan, plan.local + len(its)))
        for me in range(plan.local):
            env.process(ring.work(me, takes(1)))
        for me, number in enumerate(its, plan.local):
            at, factor = number // plan.far_per_node, 3 if number in plan.slow else 1
            far.append((at, Far(plan, ring, me, takes(factor), (out[at], into, cores))))
        env.process(ring.read(plan.loop))
    for death in plan.deaths:
        env.process(vanish(death))
    env.run(plan.warm_up)
    before = [ring.taken for ring in rings]
    env.run(plan.warm_up + plan.seconds)
    for ring, count in zip(rings, before, strict=True):
        ring.rate = (ring.taken - count) / plan.seconds
    return rings


KINDS = {"uint8": 128 * 3 * 224 * 224, "float32": 4 * 128 * 3 * 224 * 224}  # bytes of a batch of 128 pictures
NETWORKS = {f"{kind}, {gigabits} Gb/s": (kind, gigabits) for kind in KINDS for gigabits in (10, 25, 100)}
FLEET = 1000  # far workers of 64 trainers
DEPTHS = ((1, 2), (2, 2), (2, 4), (4, 8))  # in_flight, prefetch_factor
TROUBLES = {f"{trouble}, {by}": (trouble, by) for trouble in ("none", "slow", "vanish") for by in ("steal", "in turns")}


def measured(case: str, away: list[float]) -> Plan:
    """A case of the cluster that was measured, with the seconds for which each killed actor was away then.

    Without jitter, simulated workers stay in step for ever, and real ones do not.  The warm-up is half a batch more
    than any number of batches, so that none falls on the edge.
    """
    usual = Plan(64e3, 0.1, 4, far_per_node=1, warm_up=2.05, jitter=0.02)._replace(**MEASURED[case]["plan"])
    deaths = (Death(usual.warm_up + 1 + 3 * node, node, its) for node, its in enumerate(away))
    return usual._replace(slow=frozenset(usual.slow), deaths=tuple(deaths))


def cluster(kind: str, gigabits: float, far: int, **others: Any) -> Plan:
    """A cluster that costs what COSTS says.  Its rate is counted after the ring has been filled twice."""
    size, bandwidth = KINDS[kind], gigabits * 1e9 / 8
    making = 128 * COST["sample"] + size * COST["sending"] * MEMCPY
    settled = 3.0 + 2.0 * far / others.get("trainers", 1) * 2 * size / bandwidth
    plan = Plan(size, making, far, bandwidth=bandwidth, far_bandwidth=bandwidth, warm_up=settled, seconds=4 * settled)
    costs = {"latency": COST["latency"], "receiving": COST["receiving"] * MEMCPY, "loop": COST["loop"]}
    return plan._replace(jitter=0.05, **{**costs, **others})


def fleet(kind: str, gigabits: int, trouble: str, by: str) -> Plan:
    """64 trainers with 1,000 far workers on nodes of 16."""
    plan = cluster(kind, gigabits, FLEET, seconds=10.0, trainers=64, steals=by == "steal")
    draw, deaths = random.Random(3), []
    if trouble == "slow":
        return plan._replace(slow=frozenset(draw.sample(range(FLEET), FLEET // 20)))
    for node in range(-(-FLEET // plan.far_per_node) if trouble == "vanish" else 0):
        at = -30.0 + draw.expovariate(1 / 300)  # nodes have vanished for long, so some are away at the beginning
        while at < plan.warm_up + plan.seconds:
            deaths.append(Death(max(0.0, at), node, 30.0 + min(0.0, at)))
            at += 30.0 + draw.expovariate(1 / 300)
    return plan._replace(deaths=tuple(deaths))


def plans() -> dict[str, dict[str, dict[str, Plan]]]:
    """The plans of each table, by row and column.  A row of the measured cluster has one for each round."""

    def of_16(in_flight: int, prefetch_factor: int, **others: Any) -> Plan:
        return cluster("uint8", 100, 16, in_flight=in_flight, prefetch_factor=prefetch_factor, **others)

    return {
        "far": {
            f"{far}": {name: cluster(*its, far) for name, its in NETWORKS.items()}
            for far in (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64)
        },
        "requests": {f"{each}": {f"{depth}": of_16(each, depth) for depth in (2, 4, 8)} for each in (1, 2, 3, 4, 6, 8)},
        "latency": {
            f"{ms:g} ms": {f"{depth}": of_16(*depth, latency=ms / 1e3, seconds=20.0) for depth in DEPTHS}
            for ms in (0.1, 1, 3, 10, 30, 100, 300)
        },
        "fleet": {
            name: {label: fleet(*its, *trouble) for label, trouble in TROUBLES.items()}
            for name, its in NETWORKS.items()
        },
        "noticed after": {
            f"{noticed:g} s": {
                "rate": cluster("uint8", 100, 32, deaths=(Death(5.0, 0, COST["restart"], noticed),), seconds=60.0)
            }
            for noticed in (0.0, 3.0, COST["heartbeat"])
        },
        "cluster": {
            case: {f"{at}": measured(case, away) for at, away in enumerate(its["away"])}
            for case, its in MEASURED.items()
        },
    }


def row(table: str, name: str) -> dict[str, Any]:
    """Simulate a row of a table: the batches a second of a trainer, on the average, by column."""
    found = {column: simulate(plan) for column, plan in plans()[table][name].items()}
    return {"rates": {column: statistics.fmean(ring.rate for ring in rings) for column, rings in found.items()}}


def page(tables: dict[str, dict[str, dict[str, float]]]) -> dict[str, list[str]]:
    """The rows of the tables of docs/scale.md, from the rates by table, row and column."""
    lines = {"costs": [_line(what, shown, source) for _, shown, what, source in COSTS.values()]}
    for table, rows in tables.items():
        for name, rates in rows.items():
            cells = [f"{rate:.0f}" if rate >= 100 else f"{rate:.1f}" for rate in rates.values()]
            if table == "fleet":
                cells = [f"{steal}, {in_turns}" for steal, in_turns in zip(cells[::2], cells[1::2], strict=True)]
            if table == "cluster":
                cells = [f"{statistics.median(each):.1f}" for each in (MEASURED[name]["rates"], rates.values())]
            lines.setdefault(table, []).append(_line(name, *cells))
    return lines


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


class Scale(Question):
    name = "scale"
    asks = "how 64 trainers with 1,000 far workers do, by a simulation that is held against a cluster of three nodes"
    more = "Prints the tables of docs/scale.md, and writes scale.json.  COSTS has what each thing costs."
    rounds = 1

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        add_choice(parser, "--tables", tuple(plans()), "which to simulate")

    def settings(self) -> dict[str, Any]:
        return {"costs": COSTS}

    def turns(self, at: int) -> list[Turn]:
        rows = [(table, name) for table, rows in plans().items() if table in self.given.tables for name in rows]
        return [
            Turn(
                {"table": table, "row": name},
                "bench.scale:row",
                {"table": table, "name": name},
                180.0 if table == "fleet" else 10.0,
                3600.0,
            )
            for table, name in rows
        ]

    def summary(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        tables: dict[str, dict[str, Any]] = {table: {} for table in self.given.tables}
        for each in measurements:
            if "failure" not in each:
                tables[each["table"]][each["row"]] = each["rates"]
        return tables

    def show(self, out: Console, result: dict[str, Any]) -> None:
        for table, lines in page(result["summary"]).items():
            print_lines(out, [f"{table}:", *lines, ""])
        print_lines(out, failures(result["measurements"]), style="red")
