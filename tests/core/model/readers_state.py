"""The state of the model of several readers, byte by byte, its promises and mutants: NOTE [ Readers model ]."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

# -------------------------------------------------------------------------------------------------- what must hold

READ = "a payload is not written while anybody reads it"
WHOLE = "what a reader takes is what was written for its batch"
DESCRIBED = "what a reader copies out of the entries belongs to the batch that it takes"
PASSED = "no batch passes a reader by"
PUBLISHED = "a reader gets all published batches before the error for a lost conductor"
BOOKS = "in the end no reader is due, and exactly the lent payloads are held"
LEFT_ALONE = "a batch is opened only in a payload and in entries that nobody uses"
BEHIND = "a reader that joins where there is no other gets no batch that another one took"
PROMISES = (READ, WHOLE, DESCRIBED, PASSED, PUBLISHED, BOOKS, LEFT_ALONE, BEHIND)

# Faults that somebody could build in; each must break a promise.
MUTANTS = (
    "take holds nothing",
    "take is a load and a store",
    "take before the entries are copied",
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
    "joins at what the conductor has not taken",
    "joins at what tasks are written over",
    "the payload is chosen before the tasks are written",
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


# An entry; DESCRIBES: the sequence, plus 1, that the text in its area is of.
SEQ, STATE, NUMBER, DESCRIBES = (_bytes(ENTRIES) for _ in range(4))
DUE, HELD, OWN, OF = (_bytes(PAYLOADS) for _ in range(4))  # OWN: the conductor lends it; OF: its sequence, plus 1
CONTENT = _bytes(PAYLOADS * ROWS)  # the sequence of each row, plus 1; TORN
WPC, WCUR = _bytes(WORKERS), _bytes(WORKERS)
READY_BELL, READER_BELL, RUNG = _bytes(), _bytes(), _bytes(READERS)
STATUS, BIT, PC, CURSOR, PAYLOAD, SEEN, GOOD, AFTER = (_bytes(READERS) for _ in range(8))
LENT, LENT_OF, INFORMED, THREAD, LOADED, FORGOTTEN = (_bytes(READERS) for _ in range(6))
CPC, OPENED, TAKEN, ALL_TOOK, HAND, CHUNK, LIVE, ALARMED = (_bytes() for _ in range(8))
RESERVED, UNTAKEN, EVER = (_bytes() for _ in range(3))  # EVER: the sequence behind all that any reader took
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
C_LOOK, C_WRITE, C_MARK, C_OPEN, C_AGAIN, C_SLEEP, C_ASLEEP, C_DONE, C_DEAD = range(9)
V_IDLE, V_BURY, V_DROP, V_LEAVE, V_TOLL = range(5)
R_NAMES = ["look", "copy", "take", "store", "tell", "clear", "wake", "read", "free", "announce", "again", "sleep"]
W_NAMES = ["claim", "publish", "ring", "bell", "clear", "wake"]
C_NAMES = ["look", "write", "mark", "open", "again", "sleep"]


@dataclass
class State:
    """One configuration, its first state, and its bells.

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
