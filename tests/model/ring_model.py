"""Every interleaving of the slot ring's protocol, with SIGKILL of a worker at any step.

NOTE [ Slot ring model ]

The verbs of NOTE [ Slot ring ] (ring.pyx), each cut into its accesses to shared words, run by N workers, the trainer
and the thread that watches the workers.  A state is a string of bytes; all reachable ones are visited, breadth first,
so the trace to the first bad one is the shortest.

    worker   look      the walk, or lowest(); what it finds it claims, and writes half of the payload
             publish   writes the other half, and CAS          ring, clear, wake   the three steps of ring_ring
             announce, again (the same look, and whether it is over), sleep (FUTEX_WAIT)
    trainer  open, ring, wake, look, announce, again, sleep, take, copy, dismiss, stop, toll, join, done
             heed (clear_alarm), who (is dead), revoke, respawn
    watcher  note (who has ended), alarm, add, wake
    closer   another thread that closes the iterator: alarm, add, wake, stop, toll, join
    may happen, need not ("!")   a worker is killed, a lease dies, a worker keeps its batch, the trainer quits, another
                                 thread closes the iterator

Checked: the PROPERTIES below.  For the last two nothing that need not happen is of help: no lease dies, and nobody
else is killed, to end a wait.

Left out: memory orders (one access after another here; tests/test_atomics.py has them), spurious wake-ups, timeouts and
spinning (they hide lost wake-ups), tasks (their area goes with the payload's number), and the limit on deaths in a row
(the number of kills is bounded).  In one step, because nothing that happens in between makes a difference: accesses to
what nobody else may touch, and the word operation beside them; the walk's steps past what stays so; a look that fails,
and the flags beside it (raised first, rung after); clearing a bit and FUTEX_WAKE, where nobody can be killed between.
"""

from __future__ import annotations

import sys
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

ONCE = "a sequence is delivered once, and each worker's in their order"
IN_ORDER = "sequences are delivered in order"
WHOLE = "what is delivered is what was written for its sequence"
READ = "a payload is not written while the trainer or a lease reads it"
ONE_WRITER = "a payload has one writer at most"
KEPT_ALONE = "a payload that a living worker keeps is left alone"
BOOKS = "no payload is lost or used twice"
OWN = "a sequence is filled by the worker it was opened for"
DUTY = "who is dismissed does what is open for it before it leaves"
ENTRY = "an entry has one sequence at a time"
FREE_PAYLOAD = "open() finds a free payload"
NO_DEADLOCK = "who sleeps is woken"
TERMINATION = "the end can be reached from everywhere"
PROPERTIES = (
    ONCE, IN_ORDER, WHOLE, READ, ONE_WRITER, KEPT_ALONE, BOOKS, OWN, DUTY, ENTRY, FREE_PAYLOAD, NO_DEADLOCK, TERMINATION
)  # fmt: skip

# Faults that somebody could build in; each must break a property.
MUTANTS = (
    "lowest() in a single pass",
    "lowest() looks at what is taken too",
    "walk passes what is not open yet",
    "walk stops at what is not its own",
    "claim ignores the owner",
    "recover by timeout",
    "recover by timeout, publish by store",
    "check, then announce",
    "futex does not compare",
    "toll trusts the sleeper bit",
    "wake before the bit is cleared",
    "alarm does not toll",
    "alarm is cleared after the look",
    "alarm before the death is noted",
    "alarm is not looked at again",
    "death is forgotten after the successor's start",
    "respawn before revoke",
    "no revoke",
    "new incarnation starts at next_open",
    "new incarnation starts behind its first claim",
    "open names the incarnation",
    "open before the task is written",
    "take frees the payload before the copy is complete",
    "lend without limit",
    "a payload too few",
    "kept payload is used again",
    "kept payload is used again once the reserve is empty",
    "kept payload of a living worker is freed",
    "what the dead one kept is retired for the new one",
    "retired payloads stay retired",
    "pass_over stops at busy entries",
    "publish does not ring",
    "publish rings before the word",
    "publish before the payload is whole",
    "open does not ring",
    "dismissed is looked at after the tasks",
    "dismiss does not ring",
    "the death of a dismissed worker is no death",
    "stop does not toll",
    "close does not alarm",
    "closing is looked at before the alarm is cleared",
    "stop is not looked at again",
    "stop is looked at before sleeping only",
    "take what is ready though the order matters",
)

# ------------------------------------------------------------------------------------------- a state, byte by byte

WORKERS, ENTRIES, PAYLOADS = 2, 3, 6  # at most
GHOST = WORKERS  # a process more: an incarnation that was taken for dead ("recover by timeout")

_at = 0


def _bytes(count: int = 1) -> int:
    global _at
    _at += count
    return _at - count


# the words that are shared: an entry's (seq, state, owner) with its payload number, the bells, the flags
SEQ, STATE, OWNER, NUMBER = (_bytes(ENTRIES) for _ in range(4))
BELL, DISMISSED = _bytes(WORKERS), _bytes(WORKERS)
READY_BELL, STOP = _bytes(), _bytes()
CONTENT, OUTCOME = _bytes(PAYLOADS), _bytes(PAYLOADS)
# a worker process: where it is, lowest()'s place (K, FOUND, LOWER), whether it saw `dismissed`, the payload it writes
PC, CURSOR, CURRENT, LEAVING = (_bytes(WORKERS + 1) for _ in range(4))
K, FOUND, LOWER = (_bytes(WORKERS + 2) for _ in range(3))  # the last is the trainer's
INCARNATION, KEEPS = _bytes(WORKERS), _bytes(WORKERS)
# the trainer, and its books: what it uses each payload for, and what is really read through it
TRAINER, NEXT_OPEN, NEXT_TAKE, OPENED, TAKEN, COPYING, RINGING, VICTIM = (_bytes() for _ in range(8))
BUSY, MEANT, USE, READS = _bytes(ENTRIES), _bytes(ENTRIES), _bytes(PAYLOADS), _bytes(PAYLOADS)
CLOSER, SHUT, TOLLED = _bytes(), _bytes(), _bytes()  # another thread that closes the iterator, and what it says first
WATCHER, ALARMED, ENDED, NOTED = _bytes(), _bytes(), _bytes(WORKERS), _bytes(WORKERS)
# what may still happen, and what was delivered last of each worker
KILLS, KEEPINGS, LAST, GHOSTS = _bytes(), _bytes(), _bytes(WORKERS), _bytes()
SIZE = _at

VOID, OPEN, CLAIMED, READY = range(4)
SLEEPER, RUNG = 1, 2  # a bell: the sleeper bit, and whether the count is not what was announced
NOTHING, TORN, SEQUENCE_0 = range(3)  # a payload's content
FILLED, KEPT = range(2)
FREE, FLIGHT, HELD, RESERVE, RETIRED_0 = range(5)  # RETIRED_0 + w: worker w keeps it
T = WORKERS + 1  # the trainer's place in K, FOUND, LOWER
NOBODY = 255

LOOK, LEAVE, PUBLISH, LATE, RING, CLEAR, WAKE, ANNOUNCE, AGAIN, SLEEP, ASLEEP, LEFT, DEAD = range(13)
(
    T_OPEN, T_TASK, T_RING, T_WAKE, T_LOOK, T_TAKE, T_ANNOUNCE, T_AGAIN, T_SLEEP, T_ASLEEP, T_COPY, T_DISMISS,
    T_HEED, T_QUIET, T_WHO, T_REVOKE, T_RESPAWN, T_STOP, T_TOLL, T_JOIN, T_DONE,
) = range(21)  # fmt: skip
W_NOTE, W_ALARM, W_ADD, W_WAKE = range(4)
C_AWAY, C_ALARM, C_ADD, C_WAKE, C_STOP, C_TOLL, C_JOIN, C_DONE = range(8)
NAMES = {  # of the steps, for traces
    "w": ["look", "leave", "publish", "late", "ring", "clear", "wake", "announce", "again", "sleep"],
    "trainer": ["open", "task", "ring", "wake", "look", "take", "announce", "again", "sleep", "asleep", "copy",
                "dismiss", "heed", "quiet", "who", "revoke", "respawn", "stop", "toll", "join"],
    "watcher": ["note", "alarm", "add", "wake"],
    "closer": ["", "alarm", "add", "wake", "stop", "toll", "join"],
}  # fmt: skip


class Violated(Exception):
    """A property does not hold; its first argument is which."""


@dataclass
class Ring:
    """One configuration of the protocol.

    Args:
        workers, entries, spare, sequences: its size.
        in_order: whether sequences are taken in their order.
        owners: whose each sequence is; None: in turn.
        respawn: what follows a death: another takes the dead one's place, or the run ends.
        kills, keeps: how many workers may be killed, how many batches kept.
        dismiss: (sequence, worker): dismiss the worker when that sequence was taken.
        quits, closes: whether the trainer, or another thread of its process, may end the run at any time.
        mutant: one of MUTANTS, or "".
    """

    workers: int = 2
    entries: int = 2
    spare: int = 0
    sequences: int = 3
    in_order: bool = True
    owners: tuple[int, ...] | None = None
    respawn: bool = True
    kills: int = 0
    keeps: int = 0
    dismiss: tuple[int, int] | None = None
    quits: bool = False
    closes: bool = False
    mutant: str = ""
    payloads: int = field(init=False)
    processes: tuple[int, ...] = field(init=False)
    any_order: bool = field(init=False)  # the trainer takes the lowest that is ready

    def __post_init__(self) -> None:
        assert not self.mutant or self.mutant in MUTANTS
        working = self.entries + self.spare - (self.mutant == "a payload too few")
        self.payloads = working + (self.workers if self.keeps else 0)
        self.any_order = not self.in_order or self.mutant == "take what is ready though the order matters"
        self.processes = (*range(self.workers), GHOST) if "timeout" in self.mutant else tuple(range(self.workers))
        s = bytearray(SIZE)
        s[KILLS], s[KEEPINGS] = self.kills, self.keeps
        s[TRAINER] = T_OPEN
        s[USE + working : USE + self.payloads] = bytes([RESERVE] * (self.payloads - working))
        s[PC + GHOST] = LEFT
        self.start = bytes(s)

    # ------------------------------------------------------------------------------------------------------ bells

    def add(self, s: bytearray, bell: int) -> bool:
        """fetch_add(2): whether the sleeper bit was set."""
        waiting = s[TRAINER] in (T_AGAIN, T_SLEEP) if bell == READY_BELL else (
            s[PC + bell - BELL] in (AGAIN, SLEEP))  # fmt: skip
        if waiting:  # to others the count does not matter
            s[bell] |= RUNG
        return bool(s[bell] & SLEEPER)

    def wake(self, s: bytearray, bell: int) -> None:
        """FUTEX_WAKE: of those who sleep already."""
        if bell == READY_BELL:
            if s[TRAINER] == T_ASLEEP:
                s[TRAINER] = T_LOOK
        elif s[PC + bell - BELL] == ASLEEP:
            s[PC + bell - BELL] = LOOK

    def clear_and_wake(self, s: bytearray, bell: int) -> None:
        """ring_wake() of the trainer's threads, whom nobody kills in between."""
        s[bell] &= ~SLEEPER
        self.wake(s, bell)

    def may_sleep(self, s: bytearray, bell: int) -> bool:
        """FUTEX_WAIT: whether the bell's value is what ring_announce returned."""
        same = s[bell] == SLEEPER or self.mutant == "futex does not compare"
        s[bell] &= SLEEPER
        return same

    # --------------------------------------------------------------------------------------------------- lowest()

    def lowest(self, s: bytearray, me: int, state: int, owner: int) -> bool | None:
        """One load of lowest(), of process `me`; None while it goes on.  What it found is in FOUND, plus 1."""
        k, single = s[K + me], self.mutant == "lowest() in a single pass"
        everywhere = self.mutant == "lowest() looks at what is taken too"
        theirs = s[OWNER + k] == owner if owner != NOBODY else s[BUSY + k] or everywhere
        if s[STATE + k] == state and theirs and (not s[FOUND + me] or s[SEQ + k] + 1 < s[FOUND + me]):
            s[FOUND + me], s[LOWER + me] = s[SEQ + k] + 1, 1
        s[K + me] = k + 1
        if k + 1 < self.entries:
            return None
        s[K + me] = 0
        if s[LOWER + me] and not single:  # another pass: the last one found something lower
            s[LOWER + me] = 0
            return None
        s[LOWER + me] = 0
        return s[FOUND + me] > 0

    # ----------------------------------------------------------------------------------------------------- worker

    def name(self, s: bytes | bytearray, w: int) -> int:
        """What OPEN and CLAIMED call this worker."""
        return w + WORKERS * s[INCARNATION + w] if self.mutant == "open names the incarnation" else w

    def look(self, s: bytearray, me: int, w: int) -> bool | None:
        """One load of WorkerSide.look(); None while it goes on."""
        if not self.in_order:
            found = self.lowest(s, me, OPEN, self.name(s, w))
            if found:
                s[CURSOR + me] = s[FOUND + me] - 1
            if found is not None:
                s[FOUND + me] = 0
            return found
        name, thief = self.name(s, w), self.mutant == "claim ignores the owner"
        while True:  # what is passed over stays so, therefore all of it in one step
            cursor = s[CURSOR + me]
            e = cursor % self.entries
            future = s[SEQ + e] < cursor or s[STATE + e] == VOID
            if future and (self.mutant != "walk passes what is not open yet" or cursor > self.sequences):
                return False
            if s[SEQ + e] == cursor and s[STATE + e] == OPEN and (s[OWNER + e] == name or thief):
                return True
            if self.mutant == "walk stops at what is not its own" and s[SEQ + e] == cursor:
                return False
            s[CURSOR + me] = cursor + 1

    def write(self, s: bytearray, me: int, payload: int, content: int) -> None:
        if s[READS + payload]:
            raise Violated(READ)
        for other in range(WORKERS + 1):
            if other != me and s[CURRENT + other] == payload + 1:
                raise Violated(ONE_WRITER)
            if other < WORKERS and s[KEEPS + other] == payload + 1 and (other != me or content == TORN):
                raise Violated(KEPT_ALONE)
        if s[USE + payload] != FLIGHT:
            raise Violated(BOOKS)
        s[CONTENT + payload] = content

    def claim(self, s: bytearray, me: int, w: int) -> int:
        """The CAS; with the look that found the sequence, for nobody else may claim it."""
        e = s[CURSOR + me] % self.entries
        if s[MEANT + e] != w:
            raise Violated(OWN)
        s[STATE + e], s[OWNER + e] = CLAIMED, self.name(s, w)
        s[CURRENT + me] = s[NUMBER + e] + 1
        self.write(s, me, s[NUMBER + e], TORN)
        s[OUTCOME + s[NUMBER + e]] = FILLED  # until it turns out to be kept
        return RING if self.mutant == "publish rings before the word" else PUBLISH

    def worker(self, s: bytearray, me: int) -> None:
        """One step of a process, in place."""
        pc, mutant = s[PC + me], self.mutant
        w = me if me != GHOST else s[GHOSTS]
        cursor, bell, to = s[CURSOR + me], BELL + w, pc
        e = cursor % self.entries
        if pc == LOOK:
            first = not (s[K + me] or s[LOWER + me] or s[FOUND + me])
            if first:
                s[LEAVING + me] = s[DISMISSED + w]
            over = first and s[STOP] and mutant != "stop is looked at before sleeping only"
            found = None if over else self.look(s, me, w)
            if over:
                to = LEFT
            elif found:
                to = self.claim(s, me, w)
            elif found is not None:
                to = LEFT if s[LEAVING + me] else ANNOUNCE
                if mutant == "dismissed is looked at after the tasks":
                    to = LEAVE
        elif pc == LEAVE:
            to = LEFT if s[DISMISSED + w] else ANNOUNCE
        elif pc in (PUBLISH, LATE):
            payload, to = s[CURRENT + me] - 1, RING
            if mutant != "publish before the payload is whole" or pc == LATE:
                self.write(s, me, payload, SEQUENCE_0 + cursor)
                s[CURRENT + me] = 0
            else:
                to = LATE
            if pc == PUBLISH:
                held = (s[SEQ + e], s[STATE + e], s[OWNER + e]) == (cursor, CLAIMED, self.name(s, w))
                if held or mutant == "recover by timeout, publish by store":
                    s[SEQ + e], s[STATE + e], s[OWNER + e] = cursor, READY, self.name(s, w)
                    s[CURSOR + me] = cursor + 1 if self.in_order else 0
                else:
                    to = LOOK
            if to == RING and mutant in ("publish does not ring", "publish rings before the word"):
                to = LOOK
        elif pc == RING:
            to = CLEAR if self.add(s, READY_BELL) else PUBLISH if s[CURRENT + me] else LOOK
        elif pc in (CLEAR, WAKE):
            if (pc == CLEAR) != (mutant == "wake before the bit is cleared"):
                s[READY_BELL] &= ~SLEEPER
            else:
                self.wake(s, READY_BELL)
            to = WAKE if pc == CLEAR else PUBLISH if s[CURRENT + me] else LOOK
        elif pc == ANNOUNCE:
            s[bell] = SLEEPER
            to = SLEEP if mutant == "check, then announce" else AGAIN
        elif pc == AGAIN:
            found = self.look(s, me, w)
            if found is not None:
                over = (s[STOP] or s[DISMISSED + w]) and mutant != "stop is not looked at again"
                to = LOOK if found or over else SLEEP
        elif pc == SLEEP:
            to = ASLEEP if self.may_sleep(s, bell) else LOOK
        s[PC + me] = to
        if to == LOOK and pc != LOOK:
            s[bell] &= SLEEPER
            s[LEAVING + me] = 0
        if to == LEFT:
            if not s[STOP] and self.owes(s, w):
                raise Violated(DUTY)
            s[bell] = s[CURSOR + me] = s[LEAVING + me] = 0

    # ---------------------------------------------------------------------------------------------------- trainer

    def looks(self, s: bytes) -> bool:
        """Whether the trainer is about to look whether something is ready."""
        return s[TRAINER] == T_LOOK and not (s[K + T] or s[FOUND + T] or s[LOWER + T])

    def choices(self, s: bytes) -> int:
        """In how many ways the trainer may go on: an alarm may be looked after before what is ready is taken."""
        return 2 if s[ALARMED] and self.looks(s) else 1

    def trainer(self, s: bytearray, choice: int = 0) -> bool:
        """One step of the trainer, in place; false where it has none."""
        pc, mutant = s[TRAINER], self.mutant
        if pc == T_OPEN:
            s[TRAINER] = self.open(s)
        elif pc == T_TASK:
            self.task(s, (s[NEXT_TAKE] + self.entries - 1) % self.entries)
            s[TRAINER] = T_RING
        elif pc == T_RING:
            s[TRAINER] = T_WAKE if self.add(s, BELL + s[RINGING]) else self.go_on(s)
        elif pc == T_WAKE:
            self.clear_and_wake(s, BELL + s[RINGING])
            s[TRAINER] = self.go_on(s)
        elif pc == T_LOOK:
            ready = False if choice else self.is_ready(s)
            if choice:
                s[TRAINER] = T_HEED
            elif ready:
                s[TRAINER] = T_TAKE if self.any_order else self.take(s)
            elif ready is not None:
                s[TRAINER] = T_HEED if s[ALARMED] else T_ANNOUNCE
        elif pc == T_TAKE:  # take() asks ready() again, and out of order may be told of a lower one
            if self.is_ready(s, keep=True):
                s[TRAINER] = self.take(s)
        elif pc == T_ANNOUNCE:
            s[READY_BELL] = SLEEPER
            s[TRAINER] = T_SLEEP if mutant == "check, then announce" else T_AGAIN
        elif pc == T_AGAIN:
            ready = self.is_ready(s)
            if ready is not None:
                alarmed = s[ALARMED] and mutant != "alarm is not looked at again"
                s[TRAINER] = T_LOOK if ready or alarmed else T_SLEEP
        elif pc == T_SLEEP:
            s[TRAINER] = T_ASLEEP if self.may_sleep(s, READY_BELL) else T_LOOK
        elif pc == T_COPY:
            self.copied(s)
        elif pc == T_DISMISS:
            assert self.dismiss is not None
            s[RINGING] = self.dismiss[1]
            s[DISMISSED + s[RINGING]] = 1
            s[TRAINER] = self.go_on(s) if mutant == "dismiss does not ring" else T_RING
        elif T_HEED <= pc <= T_RESPAWN:
            self.recover(s)
        elif pc == T_STOP:
            here = [w for w in range(self.workers) if s[PC + w] not in (LEFT, DEAD)]
            if s[TAKEN] == self.sequences and any(s[DISMISSED + w] for w in here):
                return False  # for the model's sake: who is dismissed leaves before the end
            s[TRAINER] = T_DONE if s[SHUT] else self.stop(s, T_STOP, T_TOLL, T_JOIN)
        elif pc in (T_TOLL, T_JOIN):
            s[TRAINER] = self.stop(s, pc, T_TOLL, T_JOIN)
            return s[TRAINER] != T_JOIN or pc != T_JOIN
        else:
            return False
        if s[TRAINER] == T_LOOK:
            s[READY_BELL] &= SLEEPER
        return True

    def stop(self, s: bytearray, pc: int, toll: int, join: int) -> int:
        """Crew.stop(), by whichever thread."""
        if pc == join:
            over = s[WATCHER] == W_NOTE and all(s[PC + w] in (LEFT, DEAD) for w in range(self.workers))
            return join + 1 if over else join
        w = s[TOLLED]
        if pc == toll:
            self.add(s, BELL + w)
            self.clear_and_wake(s, BELL + w)
            s[TOLLED] = (w + 1) % self.workers
            return toll if s[TOLLED] else join
        s[STOP] = s[SHUT] = 1
        return join if self.mutant == "stop does not toll" else toll

    def closer(self, s: bytearray) -> bool:
        """One step of a thread that closes the iterator while another waits for a batch; false where it has none."""
        pc = s[CLOSER]
        if pc == C_DONE:
            return False
        if pc == C_ALARM:
            s[ALARMED] = 1
        elif pc == C_ADD:
            self.add(s, READY_BELL)
        elif pc == C_WAKE:
            self.clear_and_wake(s, READY_BELL)
        else:
            s[CLOSER] = self.stop(s, pc, C_TOLL, C_JOIN)
            return s[CLOSER] != C_JOIN or pc != C_JOIN
        s[CLOSER] = pc + 1
        return True

    def go_on(self, s: bytearray) -> int:
        """The iterator: opens what there is room for, then waits for the next."""
        s[RINGING] = 0
        if s[OPENED] < self.sequences and s[OPENED] - s[TAKEN] < self.entries:
            return T_OPEN
        return T_LOOK if s[TAKEN] < s[OPENED] else T_STOP

    def open(self, s: bytearray) -> int:
        seq = s[NEXT_OPEN]
        e, w = seq % self.entries, self.owners[s[OPENED]] if self.owners else s[OPENED] % self.workers
        if s[BUSY + e]:
            raise Violated(ENTRY)
        s[SEQ + e], s[STATE + e], s[OWNER + e], s[BUSY + e], s[RINGING] = seq, OPEN, self.name(s, w), 1, w
        s[MEANT + e] = w
        s[OPENED] += 1
        s[NEXT_OPEN] += 1
        if self.mutant == "open before the task is written" and seq >= self.entries:
            return T_TASK
        self.task(s, e)
        self.pass_over(s)
        return self.go_on(s) if self.mutant == "open does not ring" else T_RING

    def task(self, s: bytearray, e: int) -> None:
        payload = s.find(FREE, USE, USE + self.payloads) - USE  # they are all alike: any will do
        if payload < 0:
            raise Violated(FREE_PAYLOAD)
        s[NUMBER + e], s[USE + payload], s[OUTCOME + payload] = payload, FLIGHT, FILLED
        self.audit(s)

    def pass_over(self, s: bytearray) -> None:
        if self.mutant == "pass_over stops at busy entries":
            return
        while s[BUSY + s[NEXT_OPEN] % self.entries] and s[OPENED] - s[TAKEN] < self.entries:
            s[NEXT_OPEN] += 1

    def audit(self, s: bytearray) -> None:
        """The trainer's books: what is in flight is what the busy entries name, each once."""
        named = sorted(s[NUMBER + e] for e in range(self.entries) if s[BUSY + e])
        if named != [p for p in range(self.payloads) if s[USE + p] == FLIGHT]:
            raise Violated(BOOKS)

    def is_ready(self, s: bytearray, keep: bool = False) -> bool | None:
        """One load of TrainerSide.is_ready(); None while it goes on."""
        if not self.any_order:
            e = s[NEXT_TAKE] % self.entries
            return (s[SEQ + e], s[STATE + e]) == (s[NEXT_TAKE], READY)
        ready = self.lowest(s, T, READY, NOBODY)
        if ready is not None:
            if ready and keep:
                s[NEXT_TAKE] = s[FOUND + T] - 1
            s[FOUND + T] = 0
        return ready

    def take(self, s: bytearray) -> int:
        seq = s[NEXT_TAKE]
        e = seq % self.entries
        payload, w = s[NUMBER + e], s[OWNER + e] % WORKERS
        if seq + 1 <= s[LAST + w] or not s[BUSY + e]:
            raise Violated(ONCE)
        if self.in_order and seq != s[TAKEN]:
            raise Violated(IN_ORDER)
        s[LAST + w] = seq + 1
        s[USE + payload], s[READS + payload], s[BUSY + e] = HELD, seq + 1, 0
        self.read(s, payload)
        s[TAKEN] += 1
        s[NEXT_TAKE] = seq + 1 if self.in_order else 0
        self.pass_over(s)
        s[COPYING] = payload + 1
        lent = s.count(HELD, USE, USE + self.payloads)
        if s[OUTCOME + payload] == KEPT:
            s[VICTIM] = w  # its keeper
            return T_COPY
        if lent > self.spare and self.mutant != "lend without limit":
            if self.mutant == "take frees the payload before the copy is complete":
                s[USE + payload] = FREE
                return self.taken(s, seq)
            return T_COPY
        s[COPYING] = 0
        return self.taken(s, seq)

    def taken(self, s: bytearray, seq: int) -> int:
        return T_DISMISS if self.dismiss and self.dismiss[0] == seq else self.go_on(s)

    def read(self, s: bytearray, payload: int) -> None:
        if s[CONTENT + payload] != SEQUENCE_0 + s[READS + payload] - 1:
            raise Violated(WHOLE)

    def copied(self, s: bytearray) -> None:
        """The copy is complete: the lease dies, or replace() retires the payload."""
        payload = s[COPYING] - 1
        seq = s[READS + payload] - 1
        self.read(s, payload)
        s[READS + payload] = s[CONTENT + payload] = s[COPYING] = 0
        s[USE + payload] = FREE
        if s[OUTCOME + payload] == KEPT and self.mutant != "kept payload is used again":
            spare = s.find(RESERVE, USE, USE + self.payloads)
            if spare >= 0:
                s[spare] = FREE
            if spare >= 0 or self.mutant != "kept payload is used again once the reserve is empty":
                s[USE + payload] = RETIRED_0 + s[VICTIM]
        s[OUTCOME + payload] = s[VICTIM] = 0
        s[TRAINER] = self.taken(s, seq)

    def recover(self, s: bytearray) -> None:
        """The alarm: revoke what the dead had claimed, and start others in their places."""
        pc, mutant = s[TRAINER], self.mutant
        early, forgetful = mutant == "respawn before revoke", mutant == "death is forgotten after the successor's start"
        late = mutant == "alarm is cleared after the look"
        if pc == T_HEED and mutant == "closing is looked at before the alarm is cleared":
            s[TRAINER] = T_DONE if s[SHUT] else T_QUIET
        elif pc == T_HEED and not late:
            s[ALARMED], s[TRAINER] = 0, T_WHO
        elif pc in (T_HEED, T_WHO):
            careless = mutant == "the death of a dismissed worker is no death"
            ended = [w for w in range(self.workers) if s[ENDED + w]]
            dead = [w for w in ended if not s[DISMISSED + w] or (self.owes(s, w) and not careless)]
            if s[SHUT] and mutant != "closing is looked at before the alarm is cleared":
                s[TRAINER] = T_DONE
            elif not dead:
                s[TRAINER] = T_QUIET if late else T_LOOK
            elif not self.respawn:
                s[TRAINER] = T_STOP  # raises, and is closed
            else:
                s[VICTIM], s[ENDED + dead[0]] = dead[0], forgetful
                s[TRAINER] = T_RESPAWN if early else T_REVOKE
        elif pc == T_QUIET and forgetful:
            s[ENDED + s[VICTIM]] = s[VICTIM] = 0
            s[TRAINER] = T_WHO
        elif pc == T_QUIET:
            s[ALARMED], s[TRAINER] = 0, T_LOOK if late else T_WHO
        elif pc == T_REVOKE:
            w, e = s[VICTIM], s[K + T]
            if (s[STATE + e], s[OWNER + e]) == (CLAIMED, self.name(s, w)) and mutant != "no revoke":
                s[STATE + e] = OPEN
            s[K + T] = (e + 1) % self.entries
            if not s[K + T]:
                self.forget_kept(s, w)
                s[TRAINER] = T_WHO if early else T_RESPAWN
                s[VICTIM] = 0 if early else w
        elif pc == T_RESPAWN:
            w = s[VICTIM]
            s[PC + w], s[NOTED + w] = LOOK, 0
            s[CURSOR + w] = s[NEXT_TAKE] if self.in_order else 0
            if mutant == "new incarnation starts at next_open":
                s[CURSOR + w] = s[NEXT_OPEN]
            elif mutant == "new incarnation starts behind its first claim":
                s[CURSOR + w] = s[NEXT_TAKE] + 1
            if mutant == "open names the incarnation":
                s[INCARNATION + w] += 1
            s[TRAINER] = T_REVOKE if early else T_QUIET if forgetful else T_WHO
            s[VICTIM] = w if early or forgetful else 0

    def owes(self, s: bytes | bytearray, w: int) -> bool:
        """Whether something is open for this worker, or claimed by it."""
        return any(s[STATE + e] in (OPEN, CLAIMED) and s[OWNER + e] == self.name(s, w) for e in range(self.entries))

    def forget_kept(self, s: bytearray, w: int) -> None:
        """The process that kept payloads is gone: they are as good as others."""
        everybody = self.mutant == "kept payload of a living worker is freed"
        for p in range(self.payloads):
            retired = s[USE + p] == RETIRED_0 + w or (s[USE + p] >= RETIRED_0 and everybody)
            if retired and self.mutant != "retired payloads stay retired":
                s[USE + p] = FREE
        for e in range(self.entries):  # and so is what it had published and nobody has taken yet
            mine = s[BUSY + e] and s[STATE + e] == READY and s[OWNER + e] % WORKERS == w
            if mine and self.mutant != "what the dead one kept is retired for the new one":
                s[OUTCOME + s[NUMBER + e]] = FILLED

    # ---------------------------------------------------------------------------------------------------- watcher

    def watcher(self, s: bytearray) -> bool:
        """One step of the thread that watches the workers, in place; false where it has none."""
        pc, mutant = s[WATCHER], self.mutant
        hasty = mutant == "alarm before the death is noted"  # with one worker only
        if pc == W_NOTE:
            ended = [w for w in range(self.workers) if s[PC + w] in (LEFT, DEAD) and not s[NOTED + w]]
            if not ended or s[STOP]:
                return False
            s[NOTED + ended[0]] = 1
            s[ALARMED if hasty else ENDED + ended[0]] = 1
            s[WATCHER] = W_ALARM
        elif pc == W_ALARM:
            s[ENDED if hasty else ALARMED] = 1
            s[WATCHER] = W_NOTE if mutant == "alarm does not toll" else W_ADD
        elif pc == W_ADD:
            trusted = mutant == "toll trusts the sleeper bit"
            s[WATCHER] = W_WAKE if self.add(s, READY_BELL) or not trusted else W_NOTE
        else:
            self.clear_and_wake(s, READY_BELL)
            s[WATCHER] = W_NOTE
        return True

    # ------------------------------------------------------------------------------------ may happen, need not happen

    def accidents(self, s: bytes) -> Iterator[tuple[str, bytearray]]:
        if s[STOP]:
            return
        for w in range(self.workers):
            pc = s[PC + w]
            if s[KILLS] and pc not in (LEFT, DEAD):
                n = bytearray(s)
                n[KILLS] -= 1
                if self.mutant.startswith("recover by timeout"):
                    if pc != PUBLISH:
                        continue
                    for at in (PC, CURSOR, CURRENT):
                        n[at + GHOST] = n[at + w]
                    n[GHOSTS] = w
                n[PC + w] = DEAD
                for at in (CURRENT, KEEPS, CURSOR, LEAVING, K, FOUND, LOWER):
                    n[at + w] = 0
                n[BELL + w] &= SLEEPER
                yield f"! w{w} is killed", n
            if s[KEEPINGS] and pc == PUBLISH and not s[KEEPS + w]:
                n = bytearray(s)
                n[KEEPINGS] -= 1
                n[KEEPS + w], n[OUTCOME + s[CURRENT + w] - 1] = s[CURRENT + w], KEPT
                yield f"! w{w} keeps its batch", n
        for p in range(self.payloads):
            if s[READS + p] and s[COPYING] != p + 1:
                n = bytearray(s)
                self.read(n, p)
                n[READS + p] = n[CONTENT + p] = 0
                n[USE + p] = FREE
                yield f"! the lease of payload {p} dies", n
        if self.closes and not s[SHUT] and s[TRAINER] < T_STOP:
            n = bytearray(s)
            n[SHUT], n[CLOSER] = 1, C_STOP if self.mutant == "close does not alarm" else C_ALARM
            yield "! another thread closes the iterator", n
        if self.quits and (s[TRAINER] == T_ASLEEP or self.looks(s)):
            n = bytearray(s)
            n[TRAINER] = T_STOP
            yield "! the trainer quits", n

    def moves(self, s: bytes) -> Iterator[tuple[str, bytearray]]:
        """All that may happen next."""
        for me in self.processes:
            if s[PC + me] < ASLEEP:
                n = bytearray(s)
                self.worker(n, me)
                yield f"w{me} {NAMES['w'][s[PC + me]]}", n
        for choice in range(self.choices(s)):
            n = bytearray(s)
            if self.trainer(n, choice):
                yield f"trainer {NAMES['trainer'][s[TRAINER]]}", n
        n = bytearray(s)
        if (s[WATCHER] or max(s[PC : PC + self.workers]) >= LEFT) and self.watcher(n):
            yield f"watcher {NAMES['watcher'][s[WATCHER]]}", n
        if s[CLOSER]:
            n = bytearray(s)
            if self.closer(n):
                yield f"closer {NAMES['closer'][s[CLOSER]]}", n
        yield from self.accidents(s)


@dataclass
class Result:
    """What explore() found: the property violated, or "", how many states, and the way to the bad one."""

    violated: str
    states: int
    trace: list[str]


def explore(ring: Ring, most: int = 2_000_000) -> Result:
    """Visit every state that can be reached, nearest first."""
    order, parent, ids = [ring.start], array("l", [-1]), {ring.start: 0}
    source, target, ends = array("l"), array("l"), []

    def result(violated: str, k: int = 0) -> Result:
        trace: list[str] = []
        try:
            list(ring.moves(order[k]))
        except Violated:
            trace.append("the step that violates it")
        while k > 0:
            trace.append(next(label for label, n in ring.moves(order[parent[k]]) if bytes(n) == order[k]))
            k = parent[k]
        return Result(violated, len(order), trace[::-1])

    for k, s in enumerate(order):  # grows as we go
        stuck = True
        try:
            for label, n in ring.moves(s):
                key = bytes(n)
                at = ids.setdefault(key, len(order))
                if at == len(order):
                    order.append(key)
                    parent.append(k)
                if label[0] != "!":
                    stuck = False
                    source.append(k)
                    target.append(at)
        except Violated as violated:
            return result(violated.args[0], k)
        if s[TRAINER] == T_DONE and s[CLOSER] in (C_AWAY, C_DONE):
            ends.append(k)
        elif stuck:
            return result(NO_DEADLOCK, k)
        if len(order) > most:
            raise MemoryError(f"more than {most} states")

    fine = bytearray(len(order))  # from which an end can be reached
    for k in ends:
        fine[k] = 1
    count = -1
    while count != (count := fine.count(1)):
        for a, b in zip(reversed(source), reversed(target), strict=True):
            if fine[b]:
                fine[a] = 1
    return Result("", len(order), []) if all(fine) else result(TERMINATION, fine.index(0))


if __name__ == "__main__":  # python tests/model/ring_model.py "sequences=3, kills=1" ...
    for options in sys.argv[1:]:
        began, found = time.monotonic(), explore(Ring(**eval(f"dict({options})")), most=4_000_000)
        print(f"{options}: {found.violated or 'all properties hold'}, {found.states} states, "
              f"{time.monotonic() - began:.1f} s", *found.trace, sep="\n    ", flush=True)  # fmt: skip
