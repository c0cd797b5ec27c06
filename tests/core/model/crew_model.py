"""Every interleaving of what a crew adds to the slot ring: workers that serve several rings, and sleep on one bell.

NOTE [ Crew model ]

NOTE [ Slot ring model ] covers a single ring.  So here a ring is only a list of tasks, which its trainer opens one by
one.  This model covers what several rings share: a worker's bell, its choice of a ring, and what happens when workers
part from one ring while they serve the other.

    worker   look      at its messages, then into all rings; it chooses one of those that have something
             claim     the CAS; if another worker was quicker, it looks again
             pass on   if a task of another ring is open to all, it wakes a sleeping worker
             publish   and back to look
             announce, again (the same look), sleep, rise
             hear      does what the message says: it parts from the ring, and counts the message as heard
    trainer  (each ring has one)  open, ring
             send, notify, toll (one worker after the other), await (until each worker that has a batch of the ring,
             or may still claim one, has done `hear`), close
    may happen ("!" in traces)   a worker is killed; a trainer sends the workers away before all is done

A worker that is killed stays dead here.  The model of the ring (ring_model.py) has the process that replaces it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from model.promises import NO_DEADLOCK, NO_IDLER, Violated

HEARS = "a sleeping worker has received all its messages"
AFTER_CLOSE = "nobody fills a payload of a ring that is closed"
MUTANTS = (
    "looks into one ring before it sleeps",
    "messages are not looked at before it sleeps",
    "open rings another's bell",
    "notify does not toll",
    "close does not wait",
    "close waits for claims alone",
    "heard before it parts",
    "nobody is woken for what is left",
)

UNOPENED, OPEN, CLAIMED, READY = range(4)
LOOK, CLAIM, PASS, PUBLISH, ANNOUNCE, AGAIN, ASLEEP, HEARD, DEAD = range(9)
OPENS, RINGS, SENDS, TOLLS, AWAITS, CLOSED, LOST = range(7)  # LOST: it raises, and its memory stays
ANY = 9
NOWHERE = 99


@dataclass
class State:
    """One state, unpacked."""

    tasks: list[list[int]]  # of each ring: the state of each task, + 10 * the worker that claimed it
    trainers: list[int]
    at: list[int]  # of each trainer: its task, or the worker that it sends to
    workers: list[int]
    ring: list[int]  # that each worker has chosen
    task: list[int]
    bells: list[int]  # 1: the sleeper bit
    sent: list[int]  # a bit a ring whose message lies in the worker's socket
    noticed: list[int]  # of these, those that are counted
    parted: list[int]  # rings that the worker serves no more
    heard: list[int]
    kills: int

    def pack(self) -> bytes:
        flat: list[int] = []
        for ring in self.tasks:
            flat += ring
        for part in (self.trainers, self.at, self.workers, self.ring, self.task, self.bells):
            flat += part
        for part in (self.sent, self.noticed, self.parted, self.heard):
            flat += part
        return bytes([*flat, self.kills])


class Crew:
    """The model.

    Args:
        owners: Of each ring, whose each task is; ANY: whoever comes first.
        parts: Whether the last ring's trainer has workers part from it, at any time.  The others stay, at rest.
        kills: How many workers may be killed.
        mutant: A fault that is built in; "": none.
    """

    def __init__(
        self,
        owners: tuple[tuple[int, ...], ...],
        parts: bool = False,
        kills: int = 0,
        mutant: str = "",
        workers: int = 2,
    ) -> None:
        self.owners, self.parts, self.mutant, self.n = owners, parts, mutant, workers
        n, rings = workers, len(owners)
        self.start = State(
            [[UNOPENED] * len(ring) for ring in owners],
            [OPENS] * rings, [0] * rings,
            [LOOK] * n, [NOWHERE] * n, [0] * n, [0] * n, [0] * n, [0] * n, [0] * n, [0] * n,
            kills,
        ).pack()  # fmt: skip

    def unpack(self, packed: bytes) -> State:
        flat, at = list(packed), 0

        def take(count: int) -> list[int]:
            nonlocal at
            at += count
            return flat[at - count : at]

        tasks = [take(len(ring)) for ring in self.owners]
        rings, n = len(self.owners), self.n
        return State(
            tasks, take(rings), take(rings), take(n), take(n), take(n), take(n), take(n), take(n), take(n), take(n),
            take(1)[0],
        )  # fmt: skip

    def ended(self, packed: bytes) -> bool:
        s = self.unpack(packed)
        return all(trainer in (CLOSED, LOST) for trainer in s.trainers)

    # ------------------------------------------------------------------------------------------------- moves

    def moves(self, packed: bytes) -> Iterator[tuple[str, bytearray]]:
        for label, s in self._moves(packed):
            self._check(s)
            yield label, bytearray(s.pack())

    def _moves(self, packed: bytes) -> Iterator[tuple[str, State]]:
        s = self.unpack(packed)
        for w in range(self.n):
            if s.workers[w] == DEAD:
                continue
            for label, after in self._worker(packed, w):
                yield f"w{w} {label}", after
            if s.kills:
                after = self.unpack(packed)
                after.workers[w], after.kills = DEAD, s.kills - 1
                yield f"! w{w} killed", after
        for r in range(len(self.owners)):
            yield from self._trainer(packed, r)

    def _finds(self, s: State, w: int) -> list[tuple[int, int]]:
        """What is open for a worker: of each ring that it serves, the first task."""
        found = []
        for r, ring in enumerate(s.tasks):
            if s.parted[w] & 1 << r:
                continue
            for k, task in enumerate(ring):
                if task % 10 == OPEN and self.owners[r][k] in (w, ANY):
                    found.append((r, k))
                    break
        return found

    def _worker(self, packed: bytes, w: int) -> Iterator[tuple[str, State]]:
        s = self.unpack(packed)
        pc = s.workers[w]
        called = s.noticed[w] & ~s.parted[w]
        if pc == LOOK:
            found = self._finds(s, w)
            if called:
                r = (called & -called).bit_length() - 1
                if self.mutant == "heard before it parts":
                    s.heard[w] |= 1 << r
                    s.ring[w], s.workers[w] = r, HEARD
                    yield "hears", s
                    for q, k in found:
                        after = self.unpack(packed)
                        after.heard[w] |= 1 << r
                        after.ring[w], after.task[w], after.workers[w] = q, k, CLAIM
                        yield f"hears, and chooses ring {q}", after
                else:
                    s.parted[w] |= 1 << r
                    s.heard[w] |= 1 << r
                    yield f"parts from ring {r}", s
            elif found:
                for r, k in found:
                    after = self.unpack(packed)
                    after.ring[w], after.task[w], after.workers[w] = r, k, CLAIM
                    yield f"chooses ring {r}", after
            else:
                s.workers[w] = ANNOUNCE
                yield "finds nothing", s
        elif pc == HEARD:
            s.parted[w] |= 1 << s.ring[w]
            s.ring[w], s.workers[w] = NOWHERE, LOOK
            yield "parts", s
        elif pc == CLAIM:
            r, k = s.ring[w], s.task[w]
            if s.tasks[r][k] % 10 == OPEN:
                s.tasks[r][k] = CLAIMED + 10 * w
                s.workers[w] = PASS
            else:
                s.workers[w], s.ring[w] = LOOK, NOWHERE
            yield "claims", s
        elif pc == PASS:
            s.workers[w] = PUBLISH
            left = [(r, k) for r, k in self._finds(s, w) if r != s.ring[w] and self.owners[r][k] == ANY]
            if left and self.mutant != "nobody is woken for what is left":
                self._ring_one(s)
            yield "passes on", s
        elif pc == PUBLISH:
            s.tasks[s.ring[w]][s.task[w]] = READY + 10 * w
            s.workers[w], s.ring[w] = LOOK, NOWHERE
            yield "publishes", s
        elif pc == ANNOUNCE:
            s.bells[w] = 1
            s.workers[w] = AGAIN
            yield "announces", s
        elif pc == AGAIN:
            found = self._finds(s, w)
            if self.mutant == "looks into one ring before it sleeps":
                found = [each for each in found if each[0] == 0]
            if self.mutant == "messages are not looked at before it sleeps":
                called = 0
            if found or called:
                s.bells[w], s.workers[w] = 0, LOOK
                yield "finds something", s
            else:  # FUTEX_WAIT compares: who was rung since has its bit cleared
                s.workers[w] = ASLEEP if s.bells[w] else LOOK
                yield "sleeps", s
        elif pc == ASLEEP and not s.bells[w]:
            s.workers[w] = LOOK
            yield "rises", s

    def _ring_one(self, s: State) -> None:
        for w in range(self.n):
            if s.bells[w] and s.workers[w] != DEAD:
                s.bells[w] = 0
                return

    def _trainer(self, packed: bytes, r: int) -> Iterator[tuple[str, State]]:
        s = self.unpack(packed)
        pc, at = s.trainers[r], s.at[r]
        tasks, owners = s.tasks[r], self.owners[r]
        parts = self.parts and r == len(self.owners) - 1
        if pc == OPENS:
            if at < len(tasks):
                tasks[at] = OPEN
                s.trainers[r] = RINGS
                yield f"ring {r} opens", s
            elif all(task % 10 == READY for task in tasks):
                s.trainers[r], s.at[r] = (SENDS if parts else CLOSED), 0
                yield f"ring {r} is at its end", s
            elif self._lost(s, r):  # the death of a worker is an error here
                s.trainers[r], s.at[r] = (SENDS if parts else LOST), 0
                yield f"ring {r} has lost a worker", s
            if parts:
                after = self.unpack(packed)
                after.trainers[r], after.at[r] = SENDS, 0
                yield f"! ring {r} parts", after
        elif pc == RINGS:
            owner = owners[at]
            if owner == ANY:
                self._ring_one(s)
            else:
                s.bells[(owner + 1) % self.n if self.mutant == "open rings another's bell" else owner] = 0
            s.trainers[r], s.at[r] = OPENS, at + 1
            yield f"ring {r} rings", s
        elif pc == SENDS:
            if at == self.n:
                s.trainers[r] = AWAITS
            else:
                s.sent[at] |= 1 << r
                s.noticed[at] |= 1 << r
                s.trainers[r] = TOLLS
            yield f"ring {r} sends", s
        elif pc == TOLLS:
            if self.mutant != "notify does not toll":
                s.bells[at] = 0
            s.trainers[r], s.at[r] = SENDS, at + 1
            yield f"ring {r} tolls", s
        elif pc == AWAITS and not self._may_fill(s, r):
            s.trainers[r] = CLOSED
            yield f"ring {r} closes", s

    def _lost(self, s: State, r: int) -> bool:
        for k, task in enumerate(s.tasks[r]):
            state, holder = task % 10, task // 10
            owner = holder if state == CLAIMED else self.owners[r][k]
            dead = DEAD in s.workers if owner == ANY else s.workers[owner] == DEAD
            if state in (OPEN, CLAIMED) and dead:
                return True
        return False

    def _may_fill(self, s: State, r: int) -> bool:
        """Whether a worker lives that has not heard, and that has claimed something, or may still."""
        if self.mutant == "close does not wait":
            return False
        for w in range(self.n):
            if s.workers[w] == DEAD or s.heard[w] & 1 << r:
                continue
            for k, task in enumerate(s.tasks[r]):
                state = task % 10
                if state == CLAIMED and task // 10 == w:
                    return True
                if state == OPEN and self.owners[r][k] in (w, ANY) and self.mutant != "close waits for claims alone":
                    return True
        return False

    # ------------------------------------------------------------------------------------------------ promises

    def _check(self, s: State) -> None:
        for w in range(self.n):
            filling = s.workers[w] in (PASS, PUBLISH)
            if filling and s.trainers[s.ring[w]] == CLOSED:
                raise Violated(AFTER_CLOSE)
            called = s.noticed[w] & ~s.parted[w]
            tolled = any(pc == TOLLS and at == w for pc, at in zip(s.trainers, s.at, strict=True))
            if s.workers[w] == ASLEEP and s.bells[w] and called and not tolled:
                raise Violated(HEARS)
        awake = [w for w in range(self.n) if s.workers[w] not in (ASLEEP, DEAD)]
        asleep = [w for w in range(self.n) if s.workers[w] == ASLEEP and s.bells[w]]
        busy = all(s.workers[w] == PUBLISH for w in awake)
        about = any(trainer in (RINGS, TOLLS, SENDS) for trainer in s.trainers)
        if asleep and awake and busy and not about:
            for w in asleep:
                if any(self.owners[r][k] == ANY for r, k in self._finds(s, w)):
                    raise Violated(NO_IDLER)


assert NO_DEADLOCK
