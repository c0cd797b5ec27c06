"""Every interleaving of one conductor, its workers and two readers of the ring, with SIGKILL of any of them.

NOTE [ Readers model ]

This model runs the verbs of NOTE [ Readers ] (readers.pxd), cut into single accesses to shared words.  The model of the
slot ring covers how workers walk, sleep and are revoked, so here a worker claims its next sequence as soon as it is
open.

    worker     claim      the CAS, then writes half of its row of the payload
               publish    writes the other half and its description, then the CAS
               ring       rings the conductor's bell
               bell, clear, wake   ring the readers' bell
    reader     look       whether all chunks are READY; announces if not
               copy       what the workers wrote into the entries
               take       the CAS from due to held
               tell, clear, wake   rings the conductor's bell, if the payload has no other reader to wait for
               read       the payload: it lends it, or copies it
               free       clears its bit in held, after a copy
               again, sleep   as in the slot ring; both readers sleep on one bell
    its thread note       the conductor's death, or that it dropped the reader
               add, clear, wake   tolls the readers' bell
    conductor  look       takes what is READY for itself, or picks a payload for what comes next
               write      the tasks of what it opens next: reserves their entries, and looks again whether there is room
               mark       the payload's word: who is due
               open       opens one entry in each step
               again, sleep   as in the slot ring
    watcher    when a worker has died: alarm, and it tolls both bells.  When a reader is dropped, leaves or has died:
               strike (clears its bits in one payload a step), done, and it tolls both bells.  It holds the GIL from
               strike to done, and the conductor holds it while it opens
    may happen ("!" in traces)   somebody is killed, a lease dies, a reader joins, leaves or is dropped

Each process that reads has a number of its own, and a bit.  A process that has ended may have had the same bit.
`Ring.late` has the readers that join later.  With `resumes`, a reader that joins begins at the oldest batch that the
ring still has.

Checked: the PROMISES.  In two cases, several accesses are one step, because nothing that happens between them makes a
difference.  The first: accesses under the GIL to words that no reader changes.  The second: add, clear and wake.  The
model kills nobody between these three.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from model.explore import explore
from model.promises import Violated
from model.readers_state import (
    AFTER,
    ALARMED,
    ALL_TOOK,
    AWAY,
    BEHIND,
    BIT,
    BOOKS,
    C_AGAIN,
    C_ASLEEP,
    C_DEAD,
    C_DONE,
    C_LOOK,
    C_MARK,
    C_NAMES,
    C_OPEN,
    C_SLEEP,
    C_WRITE,
    CHUNK,
    CLAIMED,
    CONDUCTOR_KILLS,
    CONTENT,
    CPC,
    CURSOR,
    DEAD,
    DESCRIBES,
    DROPS,
    DUE,
    EVER,
    FORGOTTEN,
    GOOD,
    HAND,
    HELD,
    IN,
    INFORMED,
    JOINS,
    KILLS,
    LEAVES,
    LEFT,
    LEFT_ALONE,
    LENT,
    LENT_OF,
    LIVE,
    LOADED,
    NOTED,
    NUMBER,
    OF,
    OPEN,
    OPENED,
    OWN,
    PAYLOAD,
    PC,
    R_DONE,
    R_LOOK,
    R_NAMES,
    R_OUT,
    READERS,
    READY,
    READY_BELL,
    RESERVED,
    ROWS,
    RUNG,
    SEEN,
    SEQ,
    SLEEPER,
    STATE,
    STATUS,
    TAKEN,
    THREAD,
    UNTAKEN,
    V_BURY,
    V_DROP,
    V_IDLE,
    V_LEAVE,
    V_TOLL,
    VAT,
    VPC,
    VWHO,
    W_CLAIM,
    W_DEAD,
    W_NAMES,
    WHOLE,
    WORKER_KILLS,
    WPC,
)
from model.readers_taking import Taking


class Ring(Taking):
    """All of it: the conductor, who watches the others, and what may happen to each."""

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
        if pc >= C_ASLEEP or (s[VPC] in (V_BURY, V_DROP, V_LEAVE) and pc in (C_LOOK, C_WRITE, C_AGAIN)):
            return False
        if pc == C_LOOK:
            if s[ALARMED]:
                self.revoke(s)
            elif (p := self.room(s)) is not None:
                self.reserve(s)
                to = C_WRITE
                if self.mutant == "the payload is chosen before the tasks are written":
                    s[HAND], to = p, C_MARK
            elif self.ready(s):
                self.take(s)
            else:
                to = C_DONE if s[TAKEN] == self.total else self.lie_down(s)
        elif pc == C_WRITE:
            p = self.room(s)  # again, because meanwhile a reader may have joined that needs the payload
            to = C_LOOK if p is None else C_MARK
            if p is not None:
                s[HAND] = p
                if self.mutant == "due is marked behind open":
                    to = C_OPEN
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

    def reserve(self, s: bytearray) -> None:
        """Write the tasks of the next batch over what its entries had.  The thread may give up the GIL meanwhile."""
        behind = s[OPENED] + self.size_of[s[OPENED]]
        s[RESERVED] = max(s[RESERVED], behind)
        for seq in range(s[OPENED], behind):
            s[DESCRIBES + seq % self.entries] = 0

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
        """A worker is dead: what it had claimed is open again, to the process that takes its place."""
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
            if s[LIVE] & s[BIT + lost[0]]:
                s[UNTAKEN] = s[OPENED]
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
            if s[DUE + p] & bit and not s[LIVE]:
                s[UNTAKEN] = min(s[UNTAKEN], s[OF + p] - 1)
            if not (mutant == "bury leaves what is due" and s[VPC] == V_BURY):
                s[DUE + p] &= ~bit
            held = s[VPC] == V_BURY and mutant != "bury leaves what is held"
            if held or (mutant == "a drop takes what is held" and s[VPC] == V_DROP):
                s[HELD + p] &= ~bit
            s[VAT] += 1
            return
        if s[VPC] == V_BURY:
            s[STATUS + r], s[BIT + r] = AWAY, 1 << r
            for at in (PC, CURSOR, INFORMED):
                s[at + r] = 0
        elif s[STATUS + r] != DEAD:
            s[STATUS + r] = LEFT
        s[VPC], s[VWHO], s[VAT] = V_TOLL, 0, 0

    # ------------------------------------------------------------------------------------ may happen, need not happen

    def join(self, s: bytearray, r: int) -> bool:
        """A reader joins: at what is opened next; where nobody else is, or it resumes, at what the ring still has."""
        mutant, at = self.mutant, s[OPENED]
        resumes = self.resumes or not (s[LIVE] or self.own)
        until = max(at, s[RESERVED]) if mutant != "joins at what tasks are written over" else at
        least = s[ALL_TOOK] if mutant == "joins at what the conductor has not taken" else max(s[ALL_TOOK], s[UNTAKEN])
        while resumes and at > 0:
            before = max(k for k in self.size_of if k < at)
            p = s[NUMBER + before % self.entries]
            has_all = all(s[SEQ + k % self.entries] == k for k in range(before, at)) and s[OF + p] == before + 1
            has_all = has_all and until - before <= self.entries
            if not has_all and not (mutant == "joins at what is filled again" and before + self.entries >= at):
                break
            if not self.resumes and before < least:
                break
            at = before
        if not self.resumes and not (s[LIVE] or self.own) and at < s[EVER]:
            raise Violated(BEHIND)
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
        if s[PC + r] != R_OUT:  # it closes once it takes nothing more
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
                for at in (PC, CURSOR, PAYLOAD, SEEN, GOOD, AFTER, LENT, LENT_OF, INFORMED, THREAD, RUNG, LOADED):
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
        early = self.mutant == "the payload is chosen before the tasks are written" and not s[CHUNK]
        has_gil = s[CPC] == C_OPEN or (s[CPC] == C_MARK and not early)
        free_gil = s[VPC] == V_IDLE and (not has_gil or self.mutant == "joins while a batch is opened")
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
                        n[UNTAKEN] = n[OPENED]
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
