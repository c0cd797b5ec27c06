"""Every interleaving of the slot ring's protocol, with SIGKILL of a worker at any step.

NOTE [ Slot ring model ]

This model runs the verbs of NOTE [ Slot ring ] (ring.pxd), cut into single accesses to shared words.  N workers run
them, and so do the trainer and its watching thread.  A state is a string of bytes.  The search visits all reachable
states, breadth first, so the trace to the first bad state is the shortest.

    worker   look      the walk, or lowest(); it claims what it finds, and writes half of its row of the payload
             take up   only of a worker that puts claims aside: it takes up its oldest claim, and writes that first half
                       now, instead of in look
             claim     the CAS of look, if another worker may come first: then it is a step of its own
             publish   writes the other half, and CAS
             ring, clear, wake   the three steps of ring_ring
             peek, read  upcoming(): the word of another sequence that is open for it, then that sequence's task
             forget, begin, write, vouch   the steps of remember(), before publish: it saves the state of the worker's
                                           generator, if workers do that (see below)
             announce, again (the same look, and whether it is over), sleep (FUTEX_WAIT), rise (clears its sleeper bit)
    trainer  open, ring, wake, look, announce, again, sleep, take, copy, dismiss, stop, toll, join, done
             heed (clear_alarm), who (is dead), revoke, count, rouse, respawn
    watcher  note (who has ended), alarm, add, wake
    closer   another thread that closes the iterator: alarm, add, wake, stop, toll, join
    may happen ("!" in traces)   a worker is killed, a lease dies, a worker keeps its batch, the trainer quits, another
                                 thread closes the iterator, a free payload gives its pages back

A batch is one sequence.  With `chunks` it is several sequences, and each fills a row of the same payload.  With
`windows`, batches are opened in windows, where the sequences of one batch lie between those of another one: NOTE
[ Windows ] in ring.pxd.

With `in_flight` above 1, a worker is the stand-in of a far worker: NOTE [ Far workers ].  It puts aside what it claims.
It claims again without sleeping (claim_at_once()), until it has `in_flight` claims or no sequence is open.  Then it
takes up what it claimed first, and publishes that.  put_aside() and take_up() write no word of the protocol.  But
several words are in CLAIMED for one worker, although it fills only one payload at a time, and after its death all of
them must be opened again.

If workers remember, each saves the state of its generator, so that its successor goes on from there.  In the model a
state is a number: 0 after seeding, and 1 + s after the draws for sequence s.  A worker draws when it claims, or takes
up.  The first time, it recalls the state that its predecessor left.

If sequences are open to all workers (`steal`), open() rings one bell after another until one of them wakes a worker.
After a death, the successor walks from the sequence that is taken next.  That would be enough to get everything done.
But a process takes long to start, and the living workers have already passed the sequences that the dead one had
claimed.  So `revocations` is incremented, which makes them walk again, and all of them are woken.  NO_IDLER tests that.
It is violated if a sequence is open, a worker sleeps, and no process is going to wake this worker.  (That is the case
if all other processes fill a payload, sleep or are just starting, and no death has to be noted.)  NO_IDLER is also the
reason for another rule: a worker that has set its sleeper bit, and then finds a sequence before it sleeps, clears the
bit before it claims.  Otherwise open() would take it for a sleeper, and wake no other worker.  If each sequence has its
own worker, the count and the bells after a death change nothing, so the model leaves them out.

Checked: the PROPERTIES (promises.py).  The last two, NO_DEADLOCK and TERMINATION, must hold even if none of the events
marked "!" happens: nobody may have to wait until a lease or another process dies.

Left out:

    - memory orders: here one access follows another (tests/core/test_atomics.py tests the orders);
    - spurious wake-ups, timeouts and spinning, because they would hide a lost wake-up;
    - the contents of a task: the trainer writes them together with the payload's number, which the model has, so a
      worker that reads the right number reads the right task;
    - the limit on deaths in a row, because the model's number of kills is bounded.

Some accesses are one step, because nothing that happens in between makes a difference:

    - accesses to memory that no other process may touch, together with the next operation on a word;
    - a walk past words that cannot become open again.  (If sequences are open to all workers and claims may be revoked,
      a claimed word can become open again, so passing such a word is a step of its own.)
    - a look that finds nothing, together with reading the flags, because whoever raises a flag rings the bell after it;
    - clearing a bit and FUTEX_WAKE, if nobody can be killed in between;
    - the last take(), together with raising `stop`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, chain

from model.explore import explore
from model.promises import (
    BOOKS,
    DRAWN,
    DUTY,
    ENTRY,
    FREE_PAYLOAD,
    IN_ORDER,
    KEPT_ALONE,
    MUTANTS,
    NO_IDLER,
    ONCE,
    ONE_WRITER,
    OWN,
    READ,
    TASKS,
    VOUCHED,
    WHOLE,
    Violated,
)

# ------------------------------------------------------------------------------------------- a state, byte by byte

WORKERS, ENTRIES, PAYLOADS, ROWS = 3, 3, 6, 2  # at most; a row of a payload is one chunk's
GHOST = WORKERS  # a process more: an incarnation that was taken for dead ("recover by timeout")

_at = 0


def _bytes(count: int = 1) -> int:
    global _at
    _at += count
    return _at - count


# the words that are shared: an entry's (seq, state, owner) with its payload's number, and what its worker says of it;
# the bells, the flags
SEQ, STATE, OWNER, NUMBER, OUTCOME, DESCRIBED = (_bytes(ENTRIES) for _ in range(6))
BELL, DISMISSED = _bytes(WORKERS), _bytes(WORKERS)
READY_BELL, STOP = _bytes(), _bytes()
CONTENT = _bytes(PAYLOADS * ROWS)
# a worker process: where it is, lowest()'s place (K, FOUND, LOWER; K: in a walk, whether it has begun), whether it saw
# `dismissed`, the row it writes, whether `revocations` is not what it saw last
PC, CURSOR, CURRENT, LEAVING, MISSED = (_bytes(WORKERS + 1) for _ in range(5))
K, FOUND, LOWER = (_bytes(WORKERS + 2) for _ in range(3))  # the last is the trainer's
INCARNATION, KEEPS = _bytes(WORKERS), _bytes(WORKERS)
# where workers remember: the two words a worker that vouch, the states behind them; and of a process: the state of its
# generators, plus 1 (0: it has not begun); the sequence it published last, plus 1; the half that it writes
VOUCHER, REMEMBERED = _bytes(2 * WORKERS), _bytes(2 * WORKERS)
STATES, PUBLISHED, HALVES = (_bytes(WORKERS) for _ in range(3))
ASIDE = _bytes(WORKERS * ENTRIES)  # of each worker: the sequences, plus 1, that it has put aside, the first one first
PEEKED = _bytes(WORKERS + 1)  # the sequence whose task a worker is about to read without having claimed it, plus 1
# the trainer, and its books: what it uses each payload for, and what is really read through it
TRAINER, NEXT_OPEN, NEXT_TAKE, OPENED, TAKEN, SEEN = (_bytes() for _ in range(6))
COPYING, KEEPERS, RUNG_FIRST, RINGING, VICTIM = (_bytes() for _ in range(5))
BUSY, MEANT, USE, READS = _bytes(ENTRIES), _bytes(ENTRIES), _bytes(PAYLOADS), _bytes(PAYLOADS)
CLOSER, SHUT, TOLLED = _bytes(), _bytes(), _bytes()  # another thread that closes the iterator, and what it says first
WATCHER, ALARMED, ENDED, NOTED = _bytes(), _bytes(), _bytes(WORKERS), _bytes(WORKERS)
# what may still happen, and what was delivered last of each worker
KILLS, KEEPINGS, LAST, GHOSTS = _bytes(), _bytes(), _bytes(WORKERS), _bytes()
SIZE = _at

VOID, OPEN, CLAIMED, READY = range(4)
SLEEPER, RUNG = 1, 2  # a bell: the sleeper bit, and whether the count is not what was announced
NOTHING, TORN, SEQUENCE_0 = range(3)  # a payload's content
HALF = 255  # states that are being written
FILLED, KEPT = range(2)
FREE, FLIGHT, HELD, RESERVE, RETIRED = range(5)  # RETIRED + the set of workers that keep it, as bits
T = WORKERS + 1  # the trainer's place in K, FOUND, LOWER
ANY = NOBODY = 255

(
    START, LOOK, CLAIM, LEAVE, FORGET, BEGIN, WRITE, VOUCH, PUBLISH, LATE, RING, CLEAR, WAKE, ANNOUNCE, AGAIN, SLEEP,
    RISE, PEEK, TASK, TAKE_UP, ASLEEP, LEFT, DEAD,
) = range(23)  # fmt: skip
(
    T_OPEN, T_TASK, T_RING, T_WAKE, T_LOOK, T_TAKE, T_ANNOUNCE, T_AGAIN, T_SLEEP, T_ASLEEP, T_COPY, T_DISMISS,
    T_HEED, T_QUIET, T_WHO, T_REVOKE, T_COUNT, T_ROUSE, T_ROUSED, T_RESPAWN, T_STOP, T_TOLL, T_JOIN, T_DONE,
) = range(24)  # fmt: skip
W_NOTE, W_ALARM, W_ADD, W_WAKE = range(4)
C_AWAY, C_ALARM, C_ADD, C_WAKE, C_STOP, C_TOLL, C_JOIN, C_DONE = range(8)


def _names(who: str, steps: str) -> list[str]:
    return [f"{who} {step}" for step in steps.split()]


# of the steps, for traces
WORKER_STEPS = "start look claim leave forget begin write vouch publish late ring clear wake announce again sleep rise"
WORKER_STEPS += " peek read"  # upcoming()
W_NAMES = [[*_names(f"w{w}", WORKER_STEPS), f"w{w} take up"] for w in range(WORKERS + 1)]
T_NAMES = _names("trainer", "open task ring wake look take announce again sleep asleep copy dismiss heed quiet who "
                            "revoke count rouse roused respawn stop toll join")  # fmt: skip
WATCHER_NAMES = _names("watcher", "note alarm add wake")
CLOSER_NAMES = _names("closer", "away alarm add wake stop toll join")


@dataclass
class Ring:
    """One configuration of the protocol.

    Args:
        workers, entries, spare, sequences: its size.
        in_order: whether sequences are taken in their order.
        owners: whose each sequence is; None: in turn.
        steal: whether whoever comes first takes a sequence, instead.
        chunks: of how many sequences each batch is, in order; None: of one.  Then `sequences` is their sum.
        windows: of each window that is opened as a whole, the batch of each sequence; None: there are no windows.
        respawn: what follows a death: another takes the dead one's place, or the run ends.
        in_flight: how many sequences a worker claims before it publishes the first of them.
        looks_ahead: whether workers read tasks that are open for them before they claim them.
        remember: whether workers leave the states of their generators to those that take their places.
        kills, keeps: how many workers may be killed, how many batches kept.
        gives_back: whether a free payload may give its pages back at any time; what was written there is lost then.
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
    steal: bool = False
    chunks: tuple[int, ...] | None = None
    windows: tuple[tuple[int, ...], ...] | None = None
    respawn: bool = True
    in_flight: int = 1
    looks_ahead: bool = False
    remember: bool = False
    kills: int = 0
    keeps: int = 0
    gives_back: bool = False
    dismiss: tuple[int, int] | None = None
    quits: bool = False
    closes: bool = False
    mutant: str = ""
    payloads: int = field(init=False)
    processes: tuple[int, ...] = field(init=False)
    batches: dict[int, tuple[int, ...]] = field(init=False)  # of each sequence: those of its batch, lowest first
    opened_with: dict[int, tuple[int, int]] = field(init=False)  # the first one that is opened with it, and how many
    then: dict[int, int] = field(init=False)  # of a batch's first sequence: that of the next batch
    any_order: bool = field(init=False)  # the trainer takes the lowest that is ready

    def __post_init__(self) -> None:
        assert not self.mutant or self.mutant in MUTANTS
        if self.chunks:
            self.sequences = sum(self.chunks)
        if self.windows:
            self.sequences = sum(map(len, self.windows))
        sizes = tuple(map(len, self.windows)) if self.windows else self.chunks or (1,) * self.sequences
        self.batches, self.opened_with = {}, {}
        for first, size in zip((0, *accumulate(sizes)), sizes, strict=False):
            self.opened_with.update((seq, (first, size)) for seq in range(first, first + size))
        order = list(chain.from_iterable(self.windows)) if self.windows else None
        for seq in range(self.sequences):
            first, size = self.opened_with[seq]
            together = range(first, first + size)
            self.batches[seq] = tuple(each for each in together if order is None or order[each] == order[seq])
        firsts = list(dict.fromkeys(self.batches[seq][0] for seq in range(self.sequences)))
        firsts.sort(key=lambda seq: (self.opened_with[seq], seq if order is None else order[seq]))
        self.then = dict(zip(firsts, [*firsts[1:], self.sequences], strict=True))
        working = (
            self.entries // min(map(len, self.batches.values())) + self.spare - (self.mutant == "a payload too few")
        )
        self.payloads = working + (self.workers if self.keeps else 0)
        self.any_order = not self.in_order or self.mutant == "take what is ready though the order matters"
        self.processes = (*range(self.workers), GHOST) if "timeout" in self.mutant else tuple(range(self.workers))
        s = bytearray(SIZE)
        s[KILLS], s[KEEPINGS] = self.kills, self.keeps
        s[TRAINER] = T_OPEN
        if self.mutant != "the batches of a window are taken by their first sequences":
            s[NEXT_TAKE] = firsts[0]
        s[USE + working : USE + self.payloads] = bytes([RESERVE] * (self.payloads - working))
        s[PC : PC + self.workers] = bytes([START if self.steal else LOOK] * self.workers)
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
        name, thief = ANY if self.steal else self.name(s, w), self.mutant == "claim ignores the owner"
        revocable = self.steal and (s[KILLS] or DEAD in s[PC : PC + self.workers])
        if self.steal and not s[K + me]:
            self.rewind(s, me)
            if revocable:
                s[K + me] = 1
                return None
        while True:  # what is passed over stays so, therefore all of it in one step
            cursor = s[CURSOR + me]
            e = cursor % self.entries
            here, state = s[SEQ + e] == cursor, s[STATE + e]
            found = here and state == OPEN and (s[OWNER + e] == name or thief)
            at_end = s[SEQ + e] < cursor or state == VOID
            if self.mutant == "walk passes what is not open yet":
                at_end = cursor > self.sequences
            if found or at_end or (here and self.mutant == "walk stops at what is not its own"):
                s[K + me] = 0
                return found
            s[CURSOR + me] = cursor + 1
            if here and state == CLAIMED and revocable:
                return None

    def rewind(self, s: bytearray, me: int) -> None:
        """The load of `revocations`: where it has changed, what was passed may be open again."""
        blind = self.mutant == "revocations are not looked at again" and s[PC + me] == AGAIN
        if s[MISSED + me] and not blind:
            back = s[CURSOR + me] - (1 if self.mutant == "rewind by one" else self.entries)
            wrapped = 255 if self.mutant == "rewind wraps around" else 0
            s[MISSED + me], s[CURSOR + me] = 0, back if back >= 0 else wrapped

    def write(self, s: bytearray, me: int, content: int) -> None:
        """Write to the row that this process fills."""
        row = s[CURRENT + me] - 1
        payload = row // ROWS
        if s[READS + payload]:
            raise Violated(READ)
        if any(other != me and s[CURRENT + other] == row + 1 for other in range(WORKERS + 1)):
            raise Violated(ONE_WRITER)
        if s[USE + payload] != FLIGHT:
            raise Violated(BOOKS)
        s[CONTENT + row] = content

    def row(self, s: bytes | bytearray, seq: int) -> int:
        """The row of a payload that this sequence's worker is to fill."""
        chunk = 0 if self.mutant == "every chunk fills the first row" else self.batch(seq).index(seq)
        return s[NUMBER + seq % self.entries] * ROWS + chunk

    def described_in(self, seq: int) -> int:
        """The entry where a sequence's worker says what it has put into its row."""
        shared = self.mutant == "chunks are described in one place"
        return (self.batch(seq)[0] if shared else seq) % self.entries

    def claim(self, s: bytearray, me: int, w: int) -> int:
        """The CAS has succeeded."""
        e = s[CURSOR + me] % self.entries
        if s[MEANT + e] not in (w, ANY):
            raise Violated(OWN)
        s[STATE + e] = CLAIMED
        if self.mutant not in ("claim does not record who", "who has claimed is recorded when that is taken up"):
            s[OWNER + e] = self.name(s, w)
        return self.fill(s, me, w) if self.in_flight == 1 else self.put_aside(s, me, w)

    def put_aside(self, s: bytearray, me: int, w: int) -> int:
        """Leave what was just claimed; returns where it goes on."""
        cursor, aside = s[CURSOR + me], self.aside(s, w)
        self.set_aside(s, w, [*aside, cursor])
        s[CURSOR + me] = cursor + 1 if self.in_order else 0
        return LOOK if len(aside) + 1 < self.in_flight else TAKE_UP

    def take_up(self, s: bytearray, me: int, w: int) -> int:
        """Go on with what was put aside first; returns where."""
        aside = self.aside(s, w)
        s[CURSOR + me] = aside.pop(-1 if self.mutant == "what was put aside last is taken up first" else 0)
        self.set_aside(s, w, aside)
        if self.mutant == "who has claimed is recorded when that is taken up":
            s[OWNER + s[CURSOR + me] % self.entries] = self.name(s, w)
        return self.fill(s, me, w)

    def aside(self, s: bytes | bytearray, w: int) -> list[int]:
        """The sequences that a worker has put aside, the first one first."""
        return [seq - 1 for seq in s[ASIDE + w * ENTRIES : ASIDE + (w + 1) * ENTRIES] if seq]

    def set_aside(self, s: bytearray, w: int, aside: list[int]) -> None:
        s[ASIDE + w * ENTRIES : ASIDE + (w + 1) * ENTRIES] = bytes(seq + 1 for seq in aside).ljust(ENTRIES, b"\0")

    def fill(self, s: bytearray, me: int, w: int) -> int:
        """Write the first half of what is claimed; returns where it goes on."""
        s[CURRENT + me] = self.row(s, s[CURSOR + me]) + 1
        self.write(s, me, TORN)
        s[OUTCOME + self.described_in(s[CURSOR + me])] = FILLED  # until it turns out to be kept
        if self.remember:
            self.draw(s, w)
            return PUBLISH if self.mutant == "remember behind publish" else FORGET
        if self.looks_ahead:
            return PEEK
        return RING if self.mutant == "publish rings before the word" else PUBLISH

    def peek(self, s: bytearray, me: int, w: int) -> int:
        """One step of upcoming(): a word that says OPEN, or the task behind it; returns where it goes on."""
        if s[PC + me] == PEEK:
            anybody = self.mutant == "look ahead reads what is open to all"
            mine = [
                s[SEQ + e]
                for e in range(self.entries)
                if s[STATE + e] == OPEN and (s[OWNER + e] == self.name(s, w) or (anybody and s[OWNER + e] == ANY))
            ]
            if not mine:
                return PUBLISH
            s[PEEKED + me] = 1 + min(mine)
            return TASK
        seq = s[PEEKED + me] - 1
        e = seq % self.entries
        # what is written behind the task overwrites it, once somebody has claimed the sequence
        if s[SEQ + e] != seq or s[STATE + e] != OPEN or s[USE + s[NUMBER + e]] != FLIGHT:
            raise Violated(TASKS)
        s[PEEKED + me] = 0
        return PUBLISH

    def draw(self, s: bytearray, w: int) -> None:
        """The batch that the worker begins takes numbers from the generators."""
        if not s[STATES + w]:
            good = self.recalled(s, w)
            s[STATES + w] = 1 + (s[REMEMBERED + 2 * w + good] if good is not None else 0)
        if s[STATES + w] != 1 + s[PUBLISHED + w]:
            raise Violated(DRAWN)
        s[STATES + w] = 2 + s[CURSOR + w]

    def recalled(self, s: bytearray, w: int) -> int | None:
        """WorkerSide.recall(): which half tells of the last sequence before the one that is claimed; None: neither."""
        halves = [2 * w, 2 * w + 1]
        if self.mutant == "nothing is recalled":
            return None
        for half in halves:
            if s[VOUCHER + half] and s[REMEMBERED + half] != s[VOUCHER + half]:
                raise Violated(VOUCHED)
        cursor = 254 if self.mutant == "recall takes what is latest" else s[CURSOR + w]
        lines = [half for half in halves if 0 < s[VOUCHER + half] <= cursor]
        return max(lines, key=lambda half: s[VOUCHER + half]) - 2 * w if lines else None

    def memory(self, s: bytearray, w: int) -> int:
        """The half that remember() overwrites: not the one that whoever takes this worker's place is to recall."""
        older = 1 if s[VOUCHER + 2 * w] > s[VOUCHER + 2 * w + 1] else 0
        if self.mutant == "there is one memory":
            return 2 * w
        if self.mutant == "remember overwrites what is older":
            return 2 * w + older
        good = self.recalled(s, w)
        return 2 * w + (1 if good == 0 else 0)

    def leave_states(self, s: bytearray, w: int) -> int:
        """One step of remember(); returns where it goes on."""
        pc, mutant, text = s[PC + w], self.mutant, s[STATES + w] - 1
        if pc == FORGET:
            s[HALVES + w] = self.memory(s, w)
            if mutant != "remember does not forget first":
                s[VOUCHER + s[HALVES + w]] = text if mutant == "remember vouches first" else 0
        elif pc == BEGIN:
            s[REMEMBERED + s[HALVES + w]] = HALF
        elif pc == WRITE:
            s[REMEMBERED + s[HALVES + w]] = text
        else:
            s[VOUCHER + s[HALVES + w]] = text
            s[HALVES + w] = 0
            return RING if mutant == "remember behind publish" else PUBLISH
        return pc + 1

    def worker(self, s: bytearray, me: int) -> None:
        """One step of a process, in place."""
        pc, mutant = s[PC + me], self.mutant
        w = me if me != GHOST else s[GHOSTS]
        cursor, bell, to = s[CURSOR + me], BELL + w, pc
        e = cursor % self.entries
        if pc == START:
            to = LOOK
        elif pc == LOOK:
            first = not (s[K + me] or s[LOWER + me] or s[FOUND + me])
            if first:
                s[LEAVING + me] = s[DISMISSED + w]
            over = first and s[STOP] and mutant != "stop is looked at before sleeping only"
            at_once = s[ASIDE + w * ENTRIES] > 0 and mutant != "a worker sleeps over what it has put aside"
            if at_once and mutant != "a dismissed worker leaves what it has put aside":
                over = over or (first and bool(s[DISMISSED + w]))
            found = None if over else self.look(s, me, w)
            if over:
                to = TAKE_UP if at_once else LEFT
            elif found:
                to = CLAIM if self.steal else self.claim(s, me, w)  # nobody else may claim it: all in one step
            elif found is not None:
                to = LEFT if s[LEAVING + me] else TAKE_UP if at_once else ANNOUNCE
                if mutant == "dismissed is looked at after the tasks":
                    to = LEAVE
        elif pc == CLAIM:
            open_still = (s[SEQ + e], s[STATE + e], s[OWNER + e]) == (cursor, OPEN, ANY)
            to = self.claim(s, me, w) if open_still or mutant == "claim by store" else LOOK
            if s[bell] and to != LOOK:
                to = RISE if mutant == "a worker that rises clears its bit after its claim" else to
        elif pc == LEAVE:
            to = LEFT if s[DISMISSED + w] else ANNOUNCE
        elif pc in (PEEK, TASK):
            to = self.peek(s, me, w)
        elif pc == TAKE_UP:
            to = self.take_up(s, me, w)
        elif pc in (FORGET, BEGIN, WRITE, VOUCH):
            to = self.leave_states(s, w)
        elif pc in (PUBLISH, LATE):
            to = RING
            if mutant != "publish before the payload is whole" or pc == LATE:
                self.write(s, me, SEQUENCE_0 + cursor)
                s[CURRENT + me], s[DESCRIBED + self.described_in(cursor)] = 0, SEQUENCE_0 + cursor
            else:
                to = LATE
            if pc == PUBLISH:
                held = (s[SEQ + e], s[STATE + e], s[OWNER + e]) == (cursor, CLAIMED, self.name(s, w))
                if held or mutant == "recover by timeout, publish by store":
                    s[SEQ + e], s[STATE + e], s[OWNER + e] = cursor, READY, self.name(s, w)
                    s[CURSOR + me] = cursor + 1 if self.in_order else 0
                    if self.remember:
                        s[PUBLISHED + w] = cursor + 1
                        to = FORGET if mutant == "remember behind publish" else to
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
        elif pc == RISE:
            s[bell], to = 0, PUBLISH if s[CURRENT + me] else LOOK
        if to == LOOK and pc != LOOK:
            s[bell] &= SLEEPER
            s[LEAVING + me] = 0
            if s[bell] and pc in (AGAIN, SLEEP) and self.steal and not mutant.startswith("a worker that rises"):
                to = RISE
        s[PC + me] = to
        if to == LEFT:
            if not s[STOP] and self.owes(s, w):
                raise Violated(DUTY)
            s[bell] = s[CURSOR + me] = s[LEAVING + me] = s[MISSED + me] = 0

    # ---------------------------------------------------------------------------------------------------- trainer

    def looks(self, s: bytes) -> bool:
        """Whether the trainer is about to look whether something is ready."""
        return s[TRAINER] == T_LOOK and not (s[K + T] or s[FOUND + T] or s[LOWER + T])

    def choices(self, s: bytes) -> int:
        """In how many ways the trainer may go on.

        An alarm may be looked after before what is ready is taken.  Where any worker will do, the bell that is rung
        first may be any: that covers every way to take turns.
        """
        if s[TRAINER] == T_OPEN and self.steal:
            return self.workers
        return 2 if s[ALARMED] and self.looks(s) else 1

    def trainer(self, s: bytearray, choice: int = 0) -> bool:
        """One step of the trainer, in place; false where it has none."""
        pc, mutant = s[TRAINER], self.mutant
        if pc == T_OPEN:
            s[TRAINER] = self.open(s, choice)
        elif pc == T_TASK:
            self.task(s, s[NEXT_OPEN] - 1)
            s[TRAINER] = T_RING
        elif pc == T_RING:
            s[TRAINER] = T_WAKE if self.add(s, BELL + s[RINGING]) else self.ring_on(s)
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
                if mutant == "entries of a batch are freed one by one" and self.go_on(s) == T_OPEN:
                    s[TRAINER] = T_OPEN
        elif pc == T_TAKE:  # take() calls ready() again, which may find a lower one out of order
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
        elif T_COUNT <= pc <= T_ROUSED:
            self.rouse(s)
        elif T_HEED <= pc <= T_RESPAWN:
            self.recover(s)
        elif pc == T_STOP:
            here = [w for w in range(self.workers) if s[PC + w] not in (LEFT, DEAD)]
            if s[TAKEN] == self.sequences and any(s[DISMISSED + w] for w in here):
                return False  # for the model's sake: a dismissed worker leaves before the end
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
        """WorkerSet.stop(), by whichever thread."""
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

    def batch(self, seq: int) -> tuple[int, ...]:
        """The sequences of the batch that this one is a chunk of."""
        return self.batches.get(seq, (seq,))

    def go_on(self, s: bytearray) -> int:
        """The iterator: opens the batches that there is room for, then waits for the next."""
        s[RINGING] = s[RUNG_FIRST] = 0
        if s[OPENED] < self.sequences:
            first, size = self.opened_with.get(s[OPENED], (s[OPENED], 1))
            taken = s[TAKEN] + (s[SEEN] if self.mutant == "entries of a batch are freed one by one" else 0)
            if self.mutant == "a batch is opened where one chunk has room":
                size = 1
            if self.windows:
                sizes = 1 if self.mutant == "a window is opened where its first entry is free" else size
                room = not any(s[BUSY + (first + k) % self.entries] for k in range(sizes))
            else:
                room = first + size - taken <= self.entries
            if s[OPENED] > first or room:
                return T_OPEN
        if s[TAKEN] < s[OPENED]:
            return T_LOOK
        # nobody looks at what take() did: what happens between it and the end may as well happen before it
        return T_STOP if self.dismiss or s[SHUT] else self.stop(s, T_STOP, T_TOLL, T_JOIN)

    def ring_on(self, s: bytearray) -> int:
        """This bell's worker was awake: where any will do, try the next, until all have been rung."""
        s[RINGING] = (s[RINGING] + 1) % self.workers
        if self.steal and s[RINGING] != s[RUNG_FIRST] and self.mutant != "open rings one bell":
            return T_RING
        return self.go_on(s)

    def open(self, s: bytearray, bell: int) -> int:
        seq = s[NEXT_OPEN]
        e, w = seq % self.entries, self.owners[s[OPENED]] if self.owners else s[OPENED] % self.workers
        if s[BUSY + e]:
            raise Violated(ENTRY)
        s[SEQ + e], s[STATE + e], s[OWNER + e] = seq, OPEN, ANY if self.steal else self.name(s, w)
        s[BUSY + e], s[MEANT + e] = 1, ANY if self.steal else w
        s[RINGING] = s[RUNG_FIRST] = bell if self.steal else w
        s[OPENED] += 1
        s[NEXT_OPEN] += 1
        if self.mutant == "open before the task is written" and seq >= self.entries:
            return T_TASK
        self.task(s, seq)
        self.pass_over(s)
        return self.go_on(s) if self.mutant == "open does not ring" else T_RING

    def task(self, s: bytearray, seq: int) -> None:
        first = self.batch(seq)[0]
        if seq > first and self.mutant != "a payload a chunk":
            payload = s[NUMBER + first % self.entries]
        else:
            payload = s.find(FREE, USE, USE + self.payloads) - USE  # they are all alike: any will do
        if payload < 0:
            raise Violated(FREE_PAYLOAD)
        s[NUMBER + seq % self.entries], s[USE + payload] = payload, FLIGHT
        self.audit(s)

    def pass_over(self, s: bytearray) -> None:
        if self.mutant == "pass_over stops at busy entries":
            return
        if self.windows and self.mutant != "pass_over skips the entries of a window":
            return
        while s[BUSY + s[NEXT_OPEN] % self.entries] and s[OPENED] - s[TAKEN] < self.entries:
            s[NEXT_OPEN] += 1

    def audit(self, s: bytearray) -> None:
        """The trainer's books: what is in flight is what the busy entries name, each by those of one batch."""
        named = {(s[NUMBER + e], self.batch(s[SEQ + e])[0]) for e in range(self.entries) if s[BUSY + e]}
        in_flight = [p for p in range(self.payloads) if s[USE + p] == FLIGHT]
        if sorted(p for p, _ in named) != in_flight or len({first for _, first in named}) < len(named):
            raise Violated(BOOKS)

    def is_ready(self, s: bytearray, keep: bool = False) -> bool | None:
        """One load of Sequences.is_ready(); None while it goes on."""
        if not self.any_order:
            chunks = self.batch(s[NEXT_TAKE])
            if self.mutant == "the chunks of a batch follow its first":
                chunks = tuple(range(chunks[0], chunks[0] + len(chunks)))
            if self.mutant == "a batch is ready when its last chunk is":
                return self.published(s, chunks[-1])
            if self.mutant == "a batch is ready when its first chunk is":
                return self.published(s, chunks[0])
            while s[SEEN] + 1 < len(chunks) and self.published(s, chunks[s[SEEN]]):  # it stays so: all in one step
                s[SEEN] += 1
            return self.published(s, chunks[s[SEEN]])
        ready = self.lowest(s, T, READY, NOBODY)
        if ready is not None:
            if ready and keep:
                s[NEXT_TAKE] = s[FOUND + T] - 1
            s[FOUND + T] = 0
        return ready

    def published(self, s: bytes | bytearray, seq: int) -> bool:
        e = seq % self.entries
        return (s[SEQ + e], s[STATE + e]) == (seq, READY)

    def take(self, s: bytearray) -> int:
        chunks = self.batch(s[NEXT_TAKE])
        seq = chunks[0]
        payload = s[NUMBER + seq % self.entries]
        if self.in_order and not self.is_next(s, seq):
            raise Violated(IN_ORDER)
        s[USE + payload], s[READS + payload] = HELD, seq + 1
        for chunk in chunks:
            self.take_chunk(s, chunk)
        self.read(s, payload)
        s[TAKEN] += len(chunks)
        s[NEXT_TAKE] = self.then[seq] if self.in_order else 0
        if self.mutant != "chunks seen are remembered for the next batch":
            s[SEEN] = 0
        self.pass_over(s)
        s[COPYING] = payload + 1
        lent = s.count(HELD, USE, USE + self.payloads)
        if s[KEEPERS]:
            return T_COPY
        if lent > self.spare and self.mutant != "lend without limit":
            if self.mutant == "take frees the payload before the copy is complete":
                s[USE + payload] = FREE
                return self.taken(s, seq)
            return T_COPY
        s[COPYING] = 0
        return self.taken(s, seq)

    def is_next(self, s: bytes | bytearray, seq: int) -> bool:
        """Whether as many sequences were taken as are in all batches before this one."""
        before, first = 0, next(iter(self.then))
        while first != seq:
            before += len(self.batch(first))
            first = self.then[first]
        return s[TAKEN] == before

    def oldest(self, s: bytes | bytearray) -> int:
        """The lowest sequence in flight, from which a successor walks."""
        in_flight = [s[SEQ + e] for e in range(self.entries) if s[BUSY + e]]
        if self.mutant == "a successor walks from what is taken next":
            return s[NEXT_TAKE]
        return min(in_flight, default=s[NEXT_OPEN]) if self.windows else s[NEXT_TAKE]

    def take_chunk(self, s: bytearray, seq: int) -> None:
        e, place = seq % self.entries, self.described_in(seq)
        w = s[OWNER + e] % WORKERS
        if seq + 1 <= s[LAST + w] or not s[BUSY + e]:
            raise Violated(ONCE)
        if s[DESCRIBED + place] != SEQUENCE_0 + seq:
            raise Violated(WHOLE)
        if self.mutant == "the last chunk says whether a batch is kept":
            s[KEEPERS] = 0
        if s[OUTCOME + place] == KEPT:
            s[KEEPERS] |= 1 << w
        s[BUSY + e] = s[OUTCOME + e] = s[DESCRIBED + e] = s[OWNER + e] = s[MEANT + e] = 0
        if self.any_order:  # in order, it is `TAKEN`
            s[LAST + w] = seq + 1

    def taken(self, s: bytearray, seq: int) -> int:
        return T_DISMISS if self.dismiss and self.dismiss[0] == seq else self.go_on(s)

    def read(self, s: bytearray, payload: int) -> None:
        at, chunks = CONTENT + payload * ROWS, self.batch(s[READS + payload] - 1)
        if s[at : at + len(chunks)] != bytes(SEQUENCE_0 + chunk for chunk in chunks):
            raise Violated(WHOLE)

    def finish_reading(self, s: bytearray, payload: int) -> None:
        """Read it for the last time."""
        self.read(s, payload)
        s[CONTENT + payload * ROWS : CONTENT + (payload + 1) * ROWS] = bytes(ROWS)
        s[READS + payload] = 0

    def free(self, s: bytearray, payload: int) -> None:
        """Let another batch have it."""
        if payload + 1 in s[KEEPS : KEEPS + self.workers]:
            raise Violated(KEPT_ALONE)
        s[USE + payload] = FREE

    def copied(self, s: bytearray) -> None:
        """The copy is complete: the lease dies, or replace() retires the payload."""
        payload = s[COPYING] - 1
        seq = s[READS + payload] - 1
        self.finish_reading(s, payload)
        spare = s.find(RESERVE, USE, USE + self.payloads)
        careless = "kept payload is used again" + (" once the reserve is empty" if spare < 0 else "")
        if s[KEEPERS] and self.mutant != careless:
            s[USE + payload] = RETIRED + s[KEEPERS]
            if spare >= 0:
                s[spare] = FREE
        else:
            self.free(s, payload)
        s[COPYING] = s[KEEPERS] = 0
        s[TRAINER] = self.taken(s, seq)

    def recover(self, s: bytearray) -> None:
        """The alarm: revoke what the dead had claimed, and start others in their places."""
        pc, mutant = s[TRAINER], self.mutant
        early, forgetful = mutant == "respawn before revoke", mutant == "death is forgotten after the successor's start"
        late, counted = mutant == "alarm is cleared after the look", mutant == "revocations are counted too early"
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
                s[TRAINER] = T_RESPAWN if early else T_COUNT if counted else T_REVOKE
        elif pc == T_QUIET and forgetful:
            s[ENDED + s[VICTIM]] = s[VICTIM] = 0
            s[TRAINER] = T_WHO
        elif pc == T_QUIET:
            s[ALARMED], s[TRAINER] = 0, T_LOOK if late else T_WHO
        elif pc == T_REVOKE:
            w, e = s[VICTIM], s[K + T]
            if (s[STATE + e], s[OWNER + e]) == (CLAIMED, self.name(s, w)) and mutant != "no revoke":
                s[STATE + e] = OPEN
                if mutant == "one claim of a dead worker is revoked":
                    s[K + T] = self.entries - 1
                if self.steal and mutant != "revoke opens to the successor alone":
                    s[OWNER + e] = ANY
            s[K + T] = (s[K + T] + 1) % self.entries
            if not s[K + T]:
                self.forget_kept(s, w)
                rouse = T_ROUSE if counted else T_COUNT
                s[TRAINER] = T_WHO if early else rouse if self.steal else T_RESPAWN
                s[VICTIM] = 0 if early else w
        elif pc == T_RESPAWN:
            w = s[VICTIM]
            s[PC + w], s[NOTED + w], s[MISSED + w] = START if self.steal else LOOK, 0, self.steal
            s[CURSOR + w] = self.oldest(s) if self.in_order else 0
            if mutant == "new incarnation starts at next_open":
                s[CURSOR + w] = s[NEXT_OPEN]
            elif mutant == "new incarnation starts behind its first claim":
                s[CURSOR + w] = s[NEXT_TAKE] + 1
            if mutant == "open names the incarnation":
                s[INCARNATION + w] += 1
            s[TRAINER] = T_REVOKE if early else T_QUIET if forgetful else T_WHO
            s[VICTIM] = w if early or forgetful else 0

    def rouse(self, s: bytearray) -> None:
        """Tell the living that something is open that they have passed: `revocations`, and then every bell."""
        pc, mutant, w = s[TRAINER], self.mutant, s[RINGING]
        if pc == T_COUNT:
            for k in range(self.workers):
                s[MISSED + k] = s[PC + k] < LEFT and mutant != "revocations are not counted"
            counted = mutant == "revocations are counted too early"
            s[TRAINER] = T_REVOKE if counted else T_RESPAWN if mutant == "revocations do not toll" else T_ROUSE
        elif pc == T_ROUSE:
            self.add(s, BELL + w)
            s[TRAINER] = T_ROUSED
        else:
            self.clear_and_wake(s, BELL + w)
            s[RINGING] = (w + 1) % self.workers if mutant != "revocations wake one" else 0
            s[TRAINER] = T_ROUSE if s[RINGING] else T_RESPAWN

    def owes(self, s: bytes | bytearray, w: int) -> bool:
        """Whether something is open for this worker, or claimed by it."""
        return any(s[STATE + e] in (OPEN, CLAIMED) and s[OWNER + e] == self.name(s, w) for e in range(self.entries))

    def forget_kept(self, s: bytearray, w: int) -> None:
        """The process that kept payloads is gone: they are as good as others."""
        for p in range(self.payloads):
            keepers = s[USE + p] - RETIRED
            others = keepers & ~(1 << w)
            if self.mutant == "kept payload is freed with its first keeper":
                others *= others == keepers
            elif self.mutant == "kept payload of a living worker is freed":
                others = 0
            if keepers > 0 and self.mutant != "retired payloads stay retired":
                s[USE + p] = RETIRED + others
                if not others:
                    self.free(s, p)
        for e in range(self.entries):  # and so is what it had published and nobody has taken yet
            mine = s[BUSY + e] and s[STATE + e] == READY and s[OWNER + e] % WORKERS == w
            if mine and self.mutant != "what the dead one kept is retired for the new one":
                s[OUTCOME + self.described_in(s[SEQ + e])] = FILLED

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
                for at in (CURRENT, KEEPS, CURSOR, LEAVING, MISSED, K, FOUND, LOWER, STATES, HALVES, PEEKED):
                    n[at + w] = 0
                self.set_aside(n, w, [])
                n[BELL + w] &= SLEEPER
                yield f"! w{w} is killed", n
            if s[KEEPINGS] and pc == PUBLISH and not s[KEEPS + w]:
                n = bytearray(s)
                n[KEEPINGS] -= 1
                n[KEEPS + w], n[OUTCOME + self.described_in(s[CURSOR + w])] = (s[CURRENT + w] - 1) // ROWS + 1, KEPT
                self.worker(n, w)  # killed in between, it would have kept nothing
                yield f"! w{w} keeps its batch", n
        for p in range(self.payloads):
            if s[READS + p] and s[COPYING] != p + 1:
                n = bytearray(s)
                self.finish_reading(n, p)
                self.free(n, p)
                yield f"! the lease of payload {p} dies", n
        yield from self.pages_given_back(s)
        if self.closes and not s[SHUT] and s[TRAINER] < T_STOP:
            n = bytearray(s)
            n[SHUT], n[CLOSER] = 1, C_STOP if self.mutant == "close does not alarm" else C_ALARM
            yield "! another thread closes the iterator", n
        if self.quits and (s[TRAINER] == T_ASLEEP or self.looks(s)):
            n = bytearray(s)
            n[TRAINER] = T_STOP
            yield "! the trainer quits", n

    def pages_given_back(self, s: bytes) -> Iterator[tuple[str, bytearray]]:
        """Slots.fold_one(): of payloads that are free, also of those in which a dead worker left something."""
        wrong = {
            "a payload in flight gives its pages back": (FLIGHT,),
            "a lent payload gives its pages back": (HELD,),
            "a kept payload gives its pages back": range(RETIRED, RETIRED + (1 << self.workers)),
        }.get(self.mutant, ())
        for p in range(self.payloads) if self.gives_back else ():
            if s[USE + p] != FREE and s[USE + p] not in wrong:
                continue
            if s[READS + p]:
                raise Violated(READ)
            if p + 1 in s[KEEPS : KEEPS + self.workers]:
                raise Violated(KEPT_ALONE)
            n = bytearray(s)
            n[CONTENT + p * ROWS : CONTENT + (p + 1) * ROWS] = bytes(ROWS)
            yield f"! payload {p} gives its pages back", n

    def idles(self, s: bytes) -> bool:
        """Whether somebody sleeps over what is open to all, and those awake may be busy for long."""
        return (
            self.steal
            and not s[STOP]
            and s.find(ASLEEP, PC, PC + self.workers) >= 0
            and s.find(OPEN, STATE, STATE + self.entries) >= 0
            and all(pc in (START, PUBLISH, ASLEEP) for pc in s[PC : PC + self.workers])
            and s[TRAINER] in (T_OPEN, T_LOOK, T_TAKE, T_ANNOUNCE, T_AGAIN, T_SLEEP, T_ASLEEP, T_COPY)
        )

    def moves(self, s: bytes) -> Iterator[tuple[str, bytearray]]:
        """All that may happen next."""
        if self.idles(s):
            raise Violated(NO_IDLER)
        for me in self.processes:
            if s[PC + me] < ASLEEP:
                n = bytearray(s)
                self.worker(n, me)
                yield W_NAMES[me][s[PC + me]], n
        for choice in range(self.choices(s)):
            n = bytearray(s)
            if self.trainer(n, choice):
                yield T_NAMES[s[TRAINER]], n
        if s[WATCHER] or max(s[PC : PC + self.workers]) >= LEFT:
            n = bytearray(s)
            if self.watcher(n):
                yield WATCHER_NAMES[s[WATCHER]], n
        if s[CLOSER]:
            n = bytearray(s)
            if self.closer(n):
                yield CLOSER_NAMES[s[CLOSER]], n
        yield from self.accidents(s)

    def ended(self, s: bytes) -> bool:
        return s[TRAINER] == T_DONE and s[CLOSER] in (C_AWAY, C_DONE)


if __name__ == "__main__":  # in tests/core: python -m model.ring_model "sequences=3, kills=1" ...
    for options in sys.argv[1:]:
        began, found = time.process_time(), explore(Ring(**eval(f"dict({options})")), most=4_000_000)
        print(f"{options}: {found.violated or 'all properties hold'}, {found.states} states, "
              f"{time.process_time() - began:.1f} s", *found.trace, sep="\n    ", flush=True)  # fmt: skip
