"""Workers in the simulation: those of the trainer's machine, and far ones with their stand-ins.

They follow shmloader/far/stand_in.py and shmloader/far/maker.py.  A stand-in claims up to `in_flight` batches, receives
them in this order, and publishes each.  A far worker makes one batch while it sends the one before.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import simpy

from bench.scale.links import Cores, Line
from bench.scale.plan import Plan
from bench.scale.ring import Ring

Steps = Generator[Any, Any, None]


def local_worker(env: simpy.Environment, ring: Ring, me: int, making: Callable[[], float]) -> Steps:
    """Claim, make and publish, for ever."""
    while True:
        sequence = yield ring.claim(me)
        yield env.timeout(making())
        ring.publish(sequence)


class FarWorker:
    """A far worker and its stand-in.

    Args:
        ring: The trainer's.
        me: Which worker of the ring it is.
        making: Gives the seconds that the next batch takes.
        out: The network of its node, outwards.
        into: The network of the trainer's node, inwards.
        cores: Of the trainer's node.

    Attributes:
        busy: Seconds for which it has made batches.
    """

    def __init__(
        self,
        env: simpy.Environment,
        plan: Plan,
        ring: Ring,
        me: int,
        making: Callable[[], float],
        out: Line,
        into: Line,
        cores: Cores,
    ) -> None:
        self._env, self._plan, self._ring, self._me = env, plan, ring, me
        self._making, self._out, self._into, self._cores = making, out, into, cores
        self.busy = 0.0
        self.start()

    def start(self) -> None:
        """Begin, or begin again after die()."""
        self._claims: deque[int] = deque()
        self._asked: Any = None  # a claim that waits until a batch is open
        self._requests = simpy.Store(self._env)
        self._arrivals = simpy.Store(self._env)  # when the last byte of each batch is here
        self._lives = [self._env.process(_until_dead(steps)) for steps in (self._stand_in(), self._make())]

    def die(self, noticed: float) -> None:
        """End.  The batches that its stand-in holds are opened again when the trainer notices."""
        for life in self._lives:
            life.interrupt()
        held = list(self._claims)
        if self._asked is not None:
            if self._asked.triggered:
                held.append(self._asked.value)
            else:
                self._asked.cancel()
        self._env.process(self._open_again(held, noticed))

    def _open_again(self, held: list[int], noticed: float) -> Steps:
        yield self._env.timeout(noticed)
        for sequence in held:
            self._ring.open_again(sequence)

    def _stand_in(self) -> Steps:
        env, plan, ring, claims = self._env, self._plan, self._ring, self._claims
        while True:
            while len(claims) < plan.in_flight:
                self._asked = claim = ring.claim(self._me)
                if claims and not claim.triggered:  # it sleeps on the ring only if it expects no batch
                    claim.cancel()
                    self._asked = None
                    break
                sequence = yield claim
                self._asked = None
                claims.append(sequence)
                self._after(plan.latency, self._requests, sequence)
            last = yield self._arrivals.get()
            received = self._cores.work(plan.receiving * plan.batch_bytes)
            yield env.timeout(max(received, last) - env.now)
            ring.publish(claims.popleft())

    def _make(self) -> Steps:
        sending: Any = None
        while True:
            yield self._requests.get()
            takes = self._making()
            yield self._env.timeout(takes)
            self.busy += takes
            if sending is not None:
                yield sending
            sending = self._env.process(self._send(self._arrivals))

    def _send(self, arrivals: simpy.Store) -> Steps:
        """Pass a batch through two networks, of which the slower one decides."""
        env, size = self._env, self._plan.batch_bytes
        begins, sent = self._out.carry(size)
        yield env.timeout(begins - env.now)
        first, last = self._into.carry(size)
        last = max(last, sent)
        yield env.timeout(first - env.now)
        self._after(self._plan.latency, arrivals, last + self._plan.latency)
        yield env.timeout(last - env.now)

    def _after(self, seconds: float, store: simpy.Store, what: Any) -> None:
        """Put something into a store after a while."""

        def put(_: Any = None) -> None:
            store.put(what)

        if seconds:
            self._env.timeout(seconds).callbacks.append(put)
        else:
            put()


def _until_dead(steps: Steps) -> Steps:
    with contextlib.suppress(simpy.Interrupt):
        yield from steps
