"""What workers and readers do in the model of several readers: NOTE [ Readers model ]."""

from __future__ import annotations

from model.promises import Violated
from model.readers_state import (
    AFTER,
    BIT,
    C_DEAD,
    CLAIMED,
    CONTENT,
    CPC,
    CURSOR,
    DESCRIBED,
    DESCRIBES,
    DUE,
    EVER,
    GOOD,
    HELD,
    IN,
    INFORMED,
    LEFT,
    LENT,
    LENT_OF,
    LOADED,
    NUMBER,
    OPEN,
    OWN,
    PASSED,
    PAYLOAD,
    PC,
    PUBLISHED,
    R_AGAIN,
    R_ANNOUNCE,
    R_ASLEEP,
    R_CLEAR,
    R_COPY,
    R_DONE,
    R_FREE,
    R_LOOK,
    R_OUT,
    R_READ,
    R_SLEEP,
    R_STORE,
    R_TAKE,
    R_TELL,
    R_WAKE,
    READ,
    READER_BELL,
    READERS,
    READY,
    READY_BELL,
    ROWS,
    RUNG,
    SEEN,
    SEQ,
    SLEEPER,
    STATE,
    STATUS,
    THREAD,
    TORN,
    V_DROP,
    V_LEAVE,
    VOID,
    VPC,
    VWHO,
    W_BELL,
    W_CLAIM,
    W_CLEAR,
    W_PUBLISH,
    W_RING,
    W_WAKE,
    WCUR,
    WHOLE,
    WPC,
    State,
)


class Taking(State):
    """The workers, the readers, and the readers' threads."""

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
            s[DESCRIBES + e], s[STATE + e] = seq + 1, READY
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
            elif s[INFORMED + r] and mutant == "gone is looked at before what is published":
                to = self.gone(s, r)
            elif s[STATE + cursor % self.entries] != VOID and s[SEQ + cursor % self.entries] > cursor:
                to = self.passed_by(s, r)
            elif self.finds(s, r):
                late = mutant == "take before the entries are copied"
                s[PAYLOAD + r], s[GOOD + r] = s[NUMBER + cursor % self.entries] + 1, 1
                to = R_TAKE if late else self.copy(s, r)
            elif s[INFORMED + r]:
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
                if self.leaves or self.drops or self.kills:
                    s[EVER] = max(s[EVER], cursor + self.size_of[cursor])
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
            to = R_LOOK if self.finds(s, r) or (s[INFORMED + r] and not blind) else R_SLEEP
        elif pc == R_SLEEP:
            to = R_ASLEEP if s[READER_BELL] and not s[RUNG + r] else R_LOOK
        if to in (R_LOOK, R_OUT, R_DONE):
            s[SEEN + r] = s[GOOD + r] = s[RUNG + r] = s[PAYLOAD + r] = s[AFTER + r] = 0
        if to in (R_OUT, R_DONE):
            s[CURSOR + r] = s[INFORMED + r] = s[THREAD + r] = 0
        s[PC + r] = to
        return True

    def announce(self, s: bytearray, r: int) -> int:
        s[READER_BELL], s[RUNG + r] = SLEEPER, 0
        return R_AGAIN

    def copy(self, s: bytearray, r: int) -> int:
        """Copy what the worker of the next chunk wrote; returns where it goes on."""
        cursor = s[CURSOR + r]
        seq = cursor + s[SEEN + r]
        s[GOOD + r] &= s[DESCRIBES + seq % self.entries] == seq + 1
        s[SEEN + r] += 1
        if s[SEEN + r] < self.size_of[cursor]:
            return R_COPY
        return R_READ if self.mutant == "take before the entries are copied" else R_TAKE

    def taken(self, s: bytearray, r: int) -> int:
        """The CAS has succeeded."""
        p = s[PAYLOAD + r] - 1
        to = R_READ
        if self.mutant == "take before the entries are copied":
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
            if s[INFORMED + r] or not (dropped or dead) or s[PC + r] >= R_OUT:
                return False
            s[INFORMED + r] = 1
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
