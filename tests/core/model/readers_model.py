"""Every interleaving of one conductor, its workers and two readers of the ring, with SIGKILL of any of them.

NOTE [ Readers model ]

The verbs of NOTE [ Readers ] (readers.pxd), each cut into its accesses to shared words.  The slot ring's own model has
how workers walk, sleep and are revoked, so here a worker claims its next sequence as soon as that is open.

    worker     claim      the CAS, and half of its row      publish   the other half, what it says of it, and the CAS
               ring       the conductor's bell              ring, clear, wake   the three steps of the readers' bell
    reader     look       whether all chunks are READY; announces if not
               copy       what the workers said, out of the entries
               take       the CAS from due to held          tell, clear, wake   the conductor's bell, by the last taker
               read       the payload: it lends it, or copies it       free      the fetch_and, where it has copied it
               again, sleep   as in the slot ring; both readers sleep on one bell
    its thread note       the conductor's death, or its message          add, clear, wake    its toll of that bell
    conductor  look       takes what is READY for itself, or picks a payload for what comes next
               mark       the payload's word: who is due    open      an entry a step; again, sleep
    watcher    alarm, toll (of both bells) for a worker.  For readers: strike (a payload a step), done, toll.  It has
               the GIL meanwhile, as has who opens
    may happen, need not ("!")   somebody is killed, a lease dies, a reader joins, leaves or is dropped

A reader's process has a number of its own and a bit.  `Ring.late` has readers that are not there at first; `resumes`
lets one that joins begin at the oldest batch that the ring still has.

Checked: the PROMISES.  In one step, because nothing that happens in between makes a difference: what is under the GIL
and touches no word that a reader changes; the add, clear and wake of those whom nobody kills in between.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from model.explore import explore
from model.promises import Violated

# -------------------------------------------------------------------------------------------------- what must hold

READ = "a payload is not written while anybody reads it"
WHOLE = "what a reader takes is what was written for its batch"
DESCRIBED = "what a reader has copied out of the entries is of the batch that it takes"
PASSED = "no batch passes a reader by"
PUBLISHED = "a reader gets what was published before the error that its conductor is gone"
BOOKS = "in the end nobody is due, and held is what is lent"
LEFT_ALONE = "a batch is opened in a payload and in entries that nobody uses"
PROMISES = (READ, WHOLE, DESCRIBED, PASSED, PUBLISHED, BOOKS, LEFT_ALONE)

# Faults that somebody could build in; each must break a promise.
MUTANTS = (
    "take holds nothing",
    "take is a load and a store",
    "take before what the workers said is copied",
    "release clears all bits",
    "opens before all took",
    "opens before the batch is READY",
    "opens what is held",
    "opens what the conductor lends",
    "due is marked behind open",
    "due is everybody who ever was",
    "joins while a batch is opened",
    "joins at what is open",
    "joins at what is filled again",
    "joins without a mark",
    "a drop takes what is held",
    "who is dropped stays in what is opened",
    "bury leaves what is held",
    "bury leaves what is due",
    "bury does not toll the conductor",
    "bury does not toll the readers",
    "index is given again before its process is dead",
    "index is given again while its reader lends",
    "publish rings the conductor alone",
    "publish rings before the word",
    "the death of a worker tolls the conductor alone",
    "toll trusts the sleeper bit",
    "take does not tell the conductor",
    "release does not tell the conductor",
    "message wakes nobody",
    "the conductor's death wakes nobody",
    "gone is looked at before what is published",
    "gone is not looked at again",
    "check, then announce",
    "a ready batch is one chunk",
)

# ------------------------------------------------------------------------------------------- a state, byte by byte

READERS, WORKERS, ENTRIES, PAYLOADS, ROWS = 2, 2, 2, 5, 2
_at = 0


def _bytes(count: int = 1) -> int:
    global _at
    _at += count
    return _at - count


SEQ, STATE, NUMBER, SAID = (_bytes(ENTRIES) for _ in range(4))  # an entry; SAID: the sequence, plus 1, that it tells of
DUE, HELD, OWN, OF = (_bytes(PAYLOADS) for _ in range(4))  # OWN: the conductor lends it; OF: its sequence, plus 1
CONTENT = _bytes(PAYLOADS * ROWS)  # the sequence of each row, plus 1; TORN
WPC, WCUR = _bytes(WORKERS), _bytes(WORKERS)
READY_BELL, READER_BELL, RUNG = _bytes(), _bytes(), _bytes(READERS)
STATUS, BIT, PC, CURSOR, PAYLOAD, SEEN, GOOD, AFTER = (_bytes(READERS) for _ in range(8))
LENT, LENT_OF, TOLD, THREAD, LOADED, FORGOTTEN = (_bytes(READERS) for _ in range(6))
CPC, OPENED, TAKEN, ALL_TOOK, HAND, CHUNK, LIVE, ALARMED = (_bytes() for _ in range(8))
VPC, VWHO, VAT, NOTED = (_bytes() for _ in range(4))
KILLS, WORKER_KILLS, CONDUCTOR_KILLS, JOINS, DROPS, LEAVES = (_bytes() for _ in range(6))
SIZE = _at

VOID, OPEN, CLAIMED, READY = range(4)
SLEEPER, RANG = 1, 2
TORN = 255
AWAY, IN, LEFT, DEAD = range(4)
W_CLAIM, W_PUBLISH, W_RING, W_BELL, W_CLEAR, W_WAKE, W_DEAD = range(7)
(
    R_LOOK, R_COPY, R_TAKE, R_STORE, R_TELL, R_CLEAR, R_WAKE, R_READ, R_FREE, R_ANNOUNCE, R_AGAIN, R_SLEEP, R_ASLEEP,
    R_OUT, R_DONE,
) = range(15)  # fmt: skip
C_LOOK, C_MARK, C_OPEN, C_AGAIN, C_SLEEP, C_ASLEEP, C_DONE, C_DEAD = range(8)
V_IDLE, V_BURY, V_DROP, V_LEAVE, V_TOLL = range(5)
R_NAMES = ["look", "copy", "take", "store", "tell", "clear", "wake", "read", "free", "announce", "again", "sleep"]
W_NAMES = ["claim", "publish", "ring", "bell", "clear", "wake"]
C_NAMES = ["look", "mark", "open", "again", "sleep"]


@dataclass
class Ring:
    """One configuration.

    Args:
        entries, workers, spare: its size; `spare` is each reader's, and the conductor's where it reads too.
        chunks: of how many sequences each batch is.
        late: which readers are not there at first.
        own: whether the conductor's process takes batches for itself, and lends them.
        resumes: whether who joins begins at the oldest batch that is still there.
        kills, worker_kills, conductor_kills, joins, drops, leaves: how many of these may happen.
        mutant: one of MUTANTS, or "".
    """

    entries: int = 2
    workers: int = 1
    spare: int = 0
    chunks: tuple[int, ...] = (1, 1, 1)
    late: tuple[int, ...] = ()
    own: bool = False
    resumes: bool = False
    kills: int = 0
    worker_kills: int = 0
    conductor_kills: int = 0
    joins: int = 0
    drops: int = 0
    leaves: int = 0
    mutant: str = ""
    total: int = field(init=False)
    payloads: int = field(init=False)
    size_of: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        assert not self.mutant or self.mutant in MUTANTS
        self.total = sum(self.chunks)
        self.size_of = dict(zip((0, *accumulate(self.chunks)), self.chunks, strict=False))
        self.payloads = self.entries // min(self.chunks) + (READERS + self.own) * self.spare
        s = bytearray(SIZE)
        s[KILLS], s[WORKER_KILLS], s[CONDUCTOR_KILLS] = self.kills, self.worker_kills, self.conductor_kills
        s[JOINS], s[DROPS], s[LEAVES] = self.joins, self.drops, self.leaves
        for r in range(READERS):
            s[STATUS + r], s[BIT + r] = AWAY if r in self.late else IN, 1 << r
            s[LIVE] |= 0 if r in self.late else 1 << r
        for w in range(WORKERS):
            s[WCUR + w] = w
        self.start = bytes(s)

    # ------------------------------------------------------------------------------------------------------ bells

    def add_ready(self, s: bytearray) -> bool:
        if s[CPC] in (C_AGAIN, C_SLEEP):
            s[READY_BELL] |= RANG
        return bool(s[READY_BELL] & SLEEPER)

    def wake_conductor(self, s: bytearray) -> None:
        if s[CPC] == C_ASLEEP:
            s[CPC] = C_LOOK

    def toll_ready(self, s: bytearray) -> None:
        self.add_ready(s)
        s[READY_BELL] &= ~SLEEPER
        self.wake_conductor(s)

    def add_reader(self, s: bytearray) -> bool:
        for r in range(READERS):
            if s[PC + r] in (R_AGAIN, R_SLEEP):
                s[RUNG + r] = 1
        return bool(s[READER_BELL])

    def wake_readers(self, s: bytearray) -> None:
        for r in range(READERS):
            if s[PC + r] == R_ASLEEP:
                s[PC + r] = R_LOOK

    def toll_readers(self, s: bytearray) -> None:
        sleeper = self.add_reader(s)
        if sleeper or self.mutant != "toll trusts the sleeper bit":
            s[READER_BELL] = 0
            self.wake_readers(s)

    # ----------------------------------------------------------------------------------------------------- worker

    def write(self, s: bytearray, seq: int, content: int) -> None:
        """Write to the row of the payload that this sequence fills."""
        p = s[NUMBER + seq % self.entries]
        for r in range(READERS):
            reads = s[PC + r] in (R_TELL, R_CLEAR, R_WAKE, R_READ, R_FREE) and s[PAYLOAD + r] == p + 1
            reads &= not (s[AFTER + r] == R_LOOK and s[PC + r] != R_READ and s[PC + r] != R_FREE)
            if s[STATUS + r] in (IN, LEFT) and (reads or s[LENT + r] == p + 1):
                raise Violated(READ)
        if s[OWN + p]:
            raise Violated(READ)
        s[CONTENT + p * ROWS + self.row(seq)] = content

    def row(self, seq: int) -> int:
        return 0 if seq in self.size_of else 1

    def worker(self, s: bytearray, w: int) -> bool:
        pc, seq = s[WPC + w], s[WCUR + w]
        e, mutant = seq % self.entries, self.mutant
        if pc == W_CLAIM:
            if seq >= self.total or s[SEQ + e] != seq or s[STATE + e] != OPEN:
                return False
            s[STATE + e] = CLAIMED
            self.write(s, seq, TORN)
            s[WPC + w] = W_BELL if mutant == "publish rings before the word" else W_PUBLISH
        elif pc == W_PUBLISH:
            self.write(s, seq, seq + 1)
            s[SAID + e], s[STATE + e] = seq + 1, READY
            s[WCUR + w] = seq + self.workers
            s[WPC + w] = W_RING
        elif pc == W_RING:
            if self.add_ready(s):
                s[READY_BELL] &= ~SLEEPER
                self.wake_conductor(s)
            silent = mutant in ("publish rings the conductor alone", "publish rings before the word")
            s[WPC + w] = W_CLAIM if silent else W_BELL
        elif pc == W_BELL:
            rings = self.add_reader(s)
            if rings and not self.worker_kills:  # nobody is killed in between
                s[READER_BELL], rings = 0, False
                self.wake_readers(s)
            s[WPC + w] = W_CLEAR if rings else self.after_bell(s, w)
        elif pc == W_CLEAR:
            s[READER_BELL] = 0
            s[WPC + w] = W_WAKE
        else:
            self.wake_readers(s)
            s[WPC + w] = self.after_bell(s, w)
        return True

    def after_bell(self, s: bytearray, w: int) -> int:
        return W_PUBLISH if self.mutant == "publish rings before the word" else W_CLAIM

    # ----------------------------------------------------------------------------------------------------- reader

    def finds(self, s: bytearray, r: int) -> bool:
        """Whether the batch at the reader's cursor is READY."""
        cursor = s[CURSOR + r]
        chunks = 1 if self.mutant == "a ready batch is one chunk" else self.size_of[cursor]
        for seq in range(cursor, cursor + chunks):
            e = seq % self.entries
            if s[SEQ + e] != seq or s[STATE + e] != READY:
                return False
        return True

    def is_dropped(self, s: bytearray, r: int) -> bool:
        return s[STATUS + r] == LEFT or (s[VPC] in (V_DROP, V_LEAVE) and s[VWHO] == r)

    def passed_by(self, s: bytearray, r: int) -> int:
        if not self.is_dropped(s, r):
            raise Violated(PASSED)
        return R_OUT

    def reader(self, s: bytearray, r: int) -> bool:
        pc, mutant, bit = s[PC + r], self.mutant, s[BIT + r]
        cursor, p, to = s[CURSOR + r], s[PAYLOAD + r] - 1, s[PC + r]
        if s[STATUS + r] not in (IN, LEFT) or pc >= R_ASLEEP:
            return False
        if pc == R_LOOK:
            s[SEEN + r] = 0
            if cursor == self.total:
                to = R_DONE
            elif s[TOLD + r] and mutant == "gone is looked at before what is published":
                to = self.gone(s, r)
            elif s[STATE + cursor % self.entries] != VOID and s[SEQ + cursor % self.entries] > cursor:
                to = self.passed_by(s, r)
            elif self.finds(s, r):
                late = mutant == "take before what the workers said is copied"
                s[PAYLOAD + r], s[GOOD + r] = s[NUMBER + cursor % self.entries] + 1, 1
                to = R_TAKE if late else self.copy(s, r)
            elif s[TOLD + r]:
                to = self.gone(s, r)
            elif mutant in ("check, then announce", "gone is not looked at again"):
                to = R_ANNOUNCE
            else:
                to = self.announce(s, r)
        elif pc == R_COPY:
            to = self.copy(s, r)
        elif pc == R_TAKE:
            if not s[DUE + p] & bit:
                to = self.passed_by(s, r)
            elif mutant == "take is a load and a store":
                s[LOADED + r], to = s[DUE + p] << 4 | s[HELD + p], R_STORE
            else:
                s[DUE + p] &= ~bit
                s[HELD + p] |= 0 if mutant == "take holds nothing" else bit
                to = self.taken(s, r)
        elif pc == R_STORE:
            s[DUE + p], s[HELD + p] = s[LOADED + r] >> 4 & ~bit, s[LOADED + r] & 15 | bit
            s[LOADED + r], to = 0, self.taken(s, r)
        elif pc == R_TELL:
            rings = self.add_ready(s)
            if rings and not self.kills:  # nobody is killed in between
                s[READY_BELL], rings = s[READY_BELL] & ~SLEEPER, False
                self.wake_conductor(s)
            to = R_CLEAR if rings else s[AFTER + r]
        elif pc == R_CLEAR:
            s[READY_BELL] &= ~SLEEPER
            to = R_WAKE
        elif pc == R_WAKE:
            self.wake_conductor(s)
            to = s[AFTER + r]
        elif pc == R_READ:
            if not s[GOOD + r]:
                raise Violated(DESCRIBED)
            self.check_content(s, r)
            s[CURSOR + r] += self.size_of[cursor]
            if self.spare and not s[LENT + r]:
                s[LENT + r], s[LENT_OF + r], s[PAYLOAD + r], to = p + 1, cursor, 0, R_LOOK
            else:
                to = R_FREE
        elif pc == R_FREE:
            self.free(s, p, bit)
            quiet = mutant == "release does not tell the conductor"
            to, s[AFTER + r] = R_LOOK, 0
            if not s[DUE + p] | s[HELD + p] and not quiet:
                to, s[AFTER + r] = R_TELL, R_LOOK
        elif pc == R_ANNOUNCE:
            self.announce(s, r)
            to = R_SLEEP if mutant == "check, then announce" else R_AGAIN
        elif pc == R_AGAIN:
            blind = mutant == "gone is not looked at again"
            to = R_LOOK if self.finds(s, r) or (s[TOLD + r] and not blind) else R_SLEEP
        elif pc == R_SLEEP:
            to = R_ASLEEP if s[READER_BELL] and not s[RUNG + r] else R_LOOK
        if to in (R_LOOK, R_OUT, R_DONE):
            s[SEEN + r] = s[GOOD + r] = s[RUNG + r] = s[PAYLOAD + r] = s[AFTER + r] = 0
        if to in (R_OUT, R_DONE):
            s[CURSOR + r] = s[TOLD + r] = s[THREAD + r] = 0
        s[PC + r] = to
        return True

    def announce(self, s: bytearray, r: int) -> int:
        s[READER_BELL], s[RUNG + r] = SLEEPER, 0
        return R_AGAIN

    def copy(self, s: bytearray, r: int) -> int:
        """Copy what the worker of the next chunk said; returns where it goes on."""
        cursor = s[CURSOR + r]
        seq = cursor + s[SEEN + r]
        s[GOOD + r] &= s[SAID + seq % self.entries] == seq + 1
        s[SEEN + r] += 1
        if s[SEEN + r] < self.size_of[cursor]:
            return R_COPY
        return R_READ if self.mutant == "take before what the workers said is copied" else R_TAKE

    def taken(self, s: bytearray, r: int) -> int:
        """The CAS has succeeded."""
        p = s[PAYLOAD + r] - 1
        to = R_READ
        if self.mutant == "take before what the workers said is copied":
            to = R_COPY
        if s[DUE + p] or self.mutant == "take does not tell the conductor":
            return to
        s[AFTER + r] = to
        return R_TELL

    def check_content(self, s: bytearray, r: int) -> None:
        cursor, p = s[CURSOR + r], s[PAYLOAD + r] - 1
        for seq in range(cursor, cursor + self.size_of[cursor]):
            if s[CONTENT + p * ROWS + self.row(seq)] != seq + 1:
                raise Violated(WHOLE)

    def free(self, s: bytearray, p: int, bit: int) -> None:
        s[HELD + p] &= 0 if self.mutant == "release clears all bits" else ~bit

    def gone(self, s: bytearray, r: int) -> int:
        """It gives up, because its conductor is dead or has dropped it."""
        if not self.is_dropped(s, r) and self.finds(s, r):
            raise Violated(PUBLISHED)
        return R_OUT

    def thread(self, s: bytearray, r: int) -> bool:
        """One step of the thread that listens to the conductor."""
        if s[STATUS + r] not in (IN, LEFT):
            return False
        if not s[THREAD + r]:
            dropped, dead = s[STATUS + r] == LEFT, s[CPC] == C_DEAD
            if s[TOLD + r] or not (dropped or dead) or s[PC + r] >= R_OUT:
                return False
            s[TOLD + r] = 1
            silent = "the conductor's death wakes nobody" if dead else "message wakes nobody"
            if self.mutant == silent:
                pass
            elif self.kills:
                s[THREAD + r] = 1
            else:
                self.toll_readers(s)
        elif s[THREAD + r] == 1:
            self.add_reader(s)
            s[THREAD + r] = 2
        elif s[THREAD + r] == 2:
            s[READER_BELL] = 0
            s[THREAD + r] = 3
        else:
            self.wake_readers(s)
            s[THREAD + r] = 0
        return True

    # -------------------------------------------------------------------------------------------------- conductor

    def all_took(self, s: bytearray) -> int:
        """The lowest sequence that somebody is due for, or that the conductor has not taken itself."""
        at, most = s[ALL_TOOK], s[TAKEN]
        if self.mutant == "opens before the batch is READY":
            most = s[OPENED]
        while at < most and (s[LIVE] or self.own):
            p = s[NUMBER + at % self.entries]
            if s[DUE + p] and self.mutant != "opens before all took":
                break
            at += self.size_of[at]
        return at

    def free_payload(self, s: bytearray) -> int | None:
        for p in range(self.payloads):
            held = s[HELD + p] and self.mutant != "opens what is held"
            own = s[OWN + p] and self.mutant != "opens what the conductor lends"
            due = s[DUE + p] and self.mutant != "opens before all took"
            flies = s[OF + p] > s[TAKEN] and self.mutant != "opens before the batch is READY"
            if not (due or held or own or flies):
                return p
        return None

    def room(self, s: bytearray) -> int | None:
        """The payload for the next batch; None: it cannot be opened yet."""
        if s[OPENED] == self.total or not (s[LIVE] or self.own):
            return None
        s[ALL_TOOK] = self.all_took(s)
        if s[OPENED] + self.size_of[s[OPENED]] - s[ALL_TOOK] > self.entries:
            return None
        return self.free_payload(s)

    def ready(self, s: bytearray) -> bool:
        """Whether the next batch can be taken by the conductor."""
        at = s[TAKEN]
        return at < s[OPENED] and all(
            s[SEQ + k % self.entries] == k and s[STATE + k % self.entries] == READY
            for k in range(at, at + self.size_of[at])
        )

    def conductor(self, s: bytearray) -> bool:
        pc, to = s[CPC], s[CPC]
        if pc >= C_ASLEEP or (s[VPC] in (V_BURY, V_DROP, V_LEAVE) and pc in (C_LOOK, C_AGAIN)):
            return False
        if pc == C_LOOK:
            if s[ALARMED]:
                self.revoke(s)
            elif (p := self.room(s)) is not None:
                s[HAND], to = p, C_MARK
                if self.mutant == "due is marked behind open":
                    to = C_OPEN
            elif self.ready(s):
                self.take(s)
            else:
                to = C_DONE if s[TAKEN] == self.total else self.lie_down(s)
        elif pc == C_MARK:
            if s[OWN + s[HAND]] or (s[DUE + s[HAND]] | s[HELD + s[HAND]]):
                raise Violated(LEFT_ALONE)
            everybody = self.mutant == "due is everybody who ever was"
            s[DUE + s[HAND]] = (1 << READERS) - 1 if everybody else s[LIVE]
            s[OF + s[HAND]] = s[OPENED] + 1
            to = C_OPEN
            if self.mutant == "due is marked behind open":
                s[HAND], to = 0, C_LOOK
        elif pc == C_OPEN:
            seq = s[OPENED] + s[CHUNK]
            e = seq % self.entries
            if s[STATE + e] in (OPEN, CLAIMED):
                raise Violated(LEFT_ALONE)
            s[SEQ + e], s[STATE + e], s[NUMBER + e] = seq, OPEN, s[HAND]
            s[CHUNK] += 1
            if s[CHUNK] == self.size_of[s[OPENED]]:
                s[OPENED], s[CHUNK], to = seq + 1, 0, C_LOOK
                if self.mutant == "due is marked behind open":
                    s[OPENED], to = seq, C_MARK
                    s[OPENED] += 1
                else:
                    s[HAND] = 0
        elif pc == C_AGAIN:
            looks = s[ALARMED] or self.room(bytearray(s)) is not None or self.ready(s)
            to = C_LOOK if looks else C_SLEEP
        else:
            to = C_ASLEEP if s[READY_BELL] == SLEEPER else C_LOOK
        if to == C_LOOK:
            s[READY_BELL] &= SLEEPER
        s[CPC] = to
        return True

    def lie_down(self, s: bytearray) -> int:
        s[READY_BELL] = SLEEPER
        return C_AGAIN

    def take(self, s: bytearray) -> None:
        """The conductor takes the next batch: to count it, and where it reads too, to read and to lend it."""
        at = s[TAKEN]
        p = s[NUMBER + at % self.entries]
        if self.own:
            for seq in range(at, at + self.size_of[at]):
                if s[CONTENT + p * ROWS + self.row(seq)] != seq + 1:
                    raise Violated(WHOLE)
            if self.spare and not any(s[OWN : OWN + self.payloads]):
                s[OWN + p] = 1
        s[TAKEN] += self.size_of[at]

    def revoke(self, s: bytearray) -> None:
        """A worker is dead: what it had claimed is open again, for the process that takes its place."""
        s[ALARMED] = 0
        for w in range(self.workers):
            if s[WPC + w] == W_DEAD:
                for e in range(self.entries):
                    if s[STATE + e] == CLAIMED and s[SEQ + e] % self.workers == w:
                        s[STATE + e] = OPEN
                s[WPC + w], s[NOTED] = W_CLAIM, 0

    # ---------------------------------------------------------------------------------------------------- watcher

    def watcher(self, s: bytearray) -> bool:
        """One step of the thread that watches workers and readers."""
        if s[CPC] == C_DEAD:
            return False
        busy = s[CPC] in (C_MARK, C_OPEN)  # that thread has the GIL
        if s[VPC] == V_IDLE:
            dead = [w for w in range(self.workers) if s[WPC + w] == W_DEAD]
            if dead and not s[NOTED]:
                s[NOTED], s[ALARMED] = 1, 1
                self.toll_ready(s)
                if self.mutant != "the death of a worker tolls the conductor alone":
                    self.toll_readers(s)
                return True
            lost = [r for r in range(READERS) if s[STATUS + r] == DEAD]
            if not lost or busy:
                return False
            s[VPC], s[VWHO], s[VAT] = V_BURY, lost[0], 0
            s[LIVE] &= ~s[BIT + lost[0]]
        elif s[VPC] in (V_BURY, V_DROP, V_LEAVE):
            self.strike(s)
        else:
            if self.mutant != "bury does not toll the conductor":
                self.toll_ready(s)
            if self.mutant != "bury does not toll the readers":
                self.toll_readers(s)
            s[VPC] = V_IDLE
        return True

    def strike(self, s: bytearray) -> None:
        """Clear the bits of a reader that is dead, dropped or has left, in the next payload; after the last, end."""
        r, p, mutant = s[VWHO], s[VAT], self.mutant
        bit = s[BIT + r]
        if p < self.payloads:
            if not (mutant == "bury leaves what is due" and s[VPC] == V_BURY):
                s[DUE + p] &= ~bit
            held = s[VPC] == V_BURY and mutant != "bury leaves what is held"
            if held or (mutant == "a drop takes what is held" and s[VPC] == V_DROP):
                s[HELD + p] &= ~bit
            s[VAT] += 1
            return
        if s[VPC] == V_BURY:
            s[STATUS + r], s[BIT + r] = AWAY, 1 << r
            for at in (PC, CURSOR, TOLD):
                s[at + r] = 0
        elif s[STATUS + r] != DEAD:
            s[STATUS + r] = LEFT
        s[VPC], s[VWHO], s[VAT] = V_TOLL, 0, 0

    # ------------------------------------------------------------------------------------ may happen, need not happen

    def join(self, s: bytearray, r: int) -> bool:
        """A reader joins: at what is opened next; where nobody else is, or it resumes, at what the ring still has."""
        mutant, at = self.mutant, s[OPENED]
        resumes = self.resumes or not (s[LIVE] or self.own)
        while resumes and at > 0:
            before = max(k for k in self.size_of if k < at)
            p = s[NUMBER + before % self.entries]
            there = all(s[SEQ + k % self.entries] == k for k in range(before, at)) and s[OF + p] == before + 1
            if not there and not (mutant == "joins at what is filled again" and before + self.entries >= at):
                break
            if not self.resumes and before < s[ALL_TOOK]:
                break
            at = before
        if mutant == "joins at what is open" and at:
            at = max(k for k in self.size_of if k < at)
        for k in [k for k in self.size_of if at <= k < s[OPENED]]:
            if mutant not in ("joins without a mark", "joins at what is open"):
                s[DUE + s[NUMBER + k % self.entries]] |= s[BIT + r]
        s[ALL_TOOK] = min(s[ALL_TOOK], at)
        s[LIVE] |= s[BIT + r]
        s[STATUS + r], s[PC + r], s[CURSOR + r] = IN, R_LOOK, at
        self.toll_ready(s)  # the conductor may have paused
        return True

    def gives_index(self, s: bytes, r: int) -> bool:
        """Whether another reader may get the index of one that has left or was dropped, and lives."""
        if self.mutant == "index is given again before its process is dead":
            return True
        if s[PC + r] != R_OUT:  # it says goodbye once it takes nothing more
            return False
        holds = any(s[HELD + p] & s[BIT + r] for p in range(self.payloads))
        return not holds or self.mutant == "index is given again while its reader lends"

    def accidents(self, s: bytes) -> Iterator[tuple[str, bytearray]]:
        for r in range(READERS):
            lives = s[STATUS + r] in (IN, LEFT)
            if lives and s[KILLS] and s[PC + r] != R_DONE:
                n = bytearray(s)
                n[KILLS] -= 1
                n[STATUS + r] = AWAY if s[FORGOTTEN + r] else DEAD  # nobody looks whether one that was forgotten lives
                for at in (PC, CURSOR, PAYLOAD, SEEN, GOOD, AFTER, LENT, LENT_OF, TOLD, THREAD, RUNG, LOADED):
                    n[at + r] = 0
                n[FORGOTTEN + r] = 0
                yield f"! reader {r} is killed", n
            if lives and s[LENT + r]:
                n = bytearray(s)
                p = s[LENT + r] - 1
                self.free(n, p, s[BIT + r])
                n[LENT + r] = n[LENT_OF + r] = 0
                if not n[DUE + p] | n[HELD + p] and self.mutant != "release does not tell the conductor":
                    self.toll_ready(n)
                yield f"! reader {r}'s lease dies", n
        if s[CPC] == C_DEAD:
            return
        for p in range(self.payloads):
            if s[OWN + p]:
                n = bytearray(s)
                n[OWN + p] = 0
                yield "! the conductor's lease dies", n
        for w in range(self.workers):
            if s[WORKER_KILLS] and s[WPC + w] != W_DEAD:
                n = bytearray(s)
                n[WORKER_KILLS] -= 1
                n[WPC + w] = W_DEAD
                yield f"! worker {w} is killed", n
        if s[CONDUCTOR_KILLS]:
            n = bytearray(s)
            n[CONDUCTOR_KILLS], n[CPC], n[VPC], n[KILLS] = 0, C_DEAD, V_IDLE, 0
            yield "! the conductor is killed", n
        free_gil = s[VPC] == V_IDLE and (
            s[CPC] not in (C_MARK, C_OPEN) or self.mutant == "joins while a batch is opened"
        )
        if not free_gil or s[CPC] == C_DONE:
            return
        for r in range(READERS):
            if s[JOINS] and s[STATUS + r] == AWAY:
                others = [q for q in range(READERS) if q != r and s[STATUS + q] == LEFT and self.gives_index(s, q)]
                for q in (r, *others):
                    n = bytearray(s)
                    n[JOINS] -= 1
                    n[BIT + r], n[FORGOTTEN + q] = s[BIT + q], q != r
                    self.join(n, r)
                    yield f"! reader {r} joins", n
            if s[STATUS + r] == IN and s[PC + r] != R_DONE:
                for budget, step in ((DROPS, V_DROP), (LEAVES, V_LEAVE)):
                    if s[budget] and (step == V_LEAVE) <= (s[PC + r] == R_LOOK):
                        n = bytearray(s)
                        n[budget] -= 1
                        n[LIVE] &= ~s[BIT + r]
                        n[VPC], n[VWHO], n[VAT] = step, r, 0
                        if step == V_LEAVE:  # it reads nothing more by itself
                            n[PC + r] = R_OUT
                        if self.mutant == "who is dropped stays in what is opened":
                            n[LIVE] |= s[BIT + r]
                        yield f"! reader {r} {'leaves' if step == V_LEAVE else 'is dropped'}", n

    def moves(self, s: bytes) -> Iterator[tuple[str, bytearray]]:
        if self.ended(s):
            self.check_books(s)
        for w in range(self.workers):
            if s[WPC + w] != W_DEAD:
                n = bytearray(s)
                if self.worker(n, w):
                    yield f"w{w} {W_NAMES[s[WPC + w]]}", n
        for r in range(READERS):
            n = bytearray(s)
            if self.reader(n, r):
                yield f"r{r} {R_NAMES[s[PC + r]]}", n
            n = bytearray(s)
            if self.thread(n, r):
                yield f"thread of r{r}, step {s[THREAD + r]}", n
        n = bytearray(s)
        if self.conductor(n):
            yield f"conductor {C_NAMES[s[CPC]]}", n
        n = bytearray(s)
        if self.watcher(n):
            yield f"watcher, step {s[VPC]}", n
        yield from self.accidents(s)

    def ended(self, s: bytes) -> bool:
        if s[VPC] != V_IDLE:
            return False
        for r in range(READERS):
            if s[STATUS + r] == DEAD and s[CPC] != C_DEAD:
                return False
            if s[STATUS + r] in (IN, LEFT) and s[PC + r] not in (R_OUT, R_DONE):
                return False
        if s[CPC] in (C_DONE, C_DEAD):
            return True
        paused = not (s[LIVE] or self.own)  # with nobody to read, it waits
        return paused and s[CPC] == C_ASLEEP and all(s[WPC + w] in (W_CLAIM, W_DEAD) for w in range(self.workers))

    def check_books(self, s: bytes) -> None:
        if s[CPC] == C_DEAD:
            return
        for p in range(self.payloads):
            lent = 0
            for r in range(READERS):
                if s[STATUS + r] in (IN, LEFT) and s[LENT + r] == p + 1:
                    lent |= s[BIT + r]
            if s[DUE + p] or s[HELD + p] != lent:
                raise Violated(BOOKS)


if __name__ == "__main__":  # in tests/core: python -m model.readers_model "kills=1" "drops=1, mutant='...'" ...
    for options in sys.argv[1:]:
        began, found = time.process_time(), explore(Ring(**eval(f"dict({options})")), most=6_000_000)
        print(f"{options}: {found.violated or 'all promises hold'}, {found.states} states, "
              f"{time.process_time() - began:.1f} s", *found.trace, sep="\n    ", flush=True)  # fmt: skip
