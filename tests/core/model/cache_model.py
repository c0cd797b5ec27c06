"""Every interleaving of processes that share a cache of pictures, with SIGKILL of any of them.
This is a model of the table of kept pictures: NOTE [ Cache table ] in atomics.h.

Processes look for pictures, keep those that are not there, and may be killed between any two steps.  A later process
may have the pid of a killed one.  A process may be taken for dead though it lives, because its pid is of a namespace
that nobody else sees: then work is lost, and nothing else.

A word of the table is 0, a claim (who), or an entry (which picture, where).  `CLAIM` and `ENTRY` below are its bits.
"""

from __future__ import annotations

from collections.abc import Iterator

from model.promises import Violated

WHOLE = "what is read is whole, and of the picture that was looked for"
ONCE = "a picture has one entry at most"
FINAL = "an entry stays"
ONE_WRITER = "bytes have one writer, who writes before they are published"
FREE = "no claim is left for ever"
PROPERTIES = (WHOLE, ONCE, FINAL, ONE_WRITER, FREE)

MUTANTS = (
    "publish before the bytes are written",
    "publish when half is written",
    "publish by store",
    "claim by store",
    "take over by store",
    "release by store",
    "release is forgotten",
    "reserve in two steps",
    "take over with the bytes of the dead",
    "who is dead is known by its pid alone",
    "the dead are left alone",
    "who meets a claim claims behind it",
    "an entry is taken for a claim's end",
)

EMPTY, CLAIM, ENTRY = 0, 0x40, 0x80
LOOK, TAKE, RESERVE, WRITE, WRITE_REST, PUBLISH, RELEASE, READ, DONE, DEAD = range(10)
PC, WANT, PASSED, EXTENT, BORN, SEEN, FIELDS = range(7)  # of a process


class Cache:
    """The table, the bytes, and the processes.

    Args:
        wants: of each process, the pictures that it looks for, in their order.
        slots: of the table.
        homes: of each picture, where its way through the slots begins.
        kills: how many processes are killed at most; each is followed by another one with its pid.
        errors: how often a process that lives is taken for dead.
        failures: how often bytes cannot be written, because there is no memory.
        mutant: a fault.
    """

    def __init__(
        self,
        wants: tuple[tuple[int, ...], ...] = ((0,), (0,)),
        slots: int = 2,
        homes: tuple[int, ...] = (0, 0, 0, 0),
        kills: int = 0,
        errors: int = 0,
        failures: int = 0,
        mutant: str = "",
    ) -> None:
        self._wants, self._slots, self._homes, self._mutant = wants, slots, homes, mutant
        self._extents = sum(map(len, wants)) * (1 + kills)  # as many as can be written
        self._used = slots
        self._bytes = slots + 1  # of each extent: what it has (picture + 1, twice, and 1 if whole), and whose it is
        self._first = self._bytes + 2 * self._extents
        self._left = self._first + FIELDS * len(wants)  # kills, errors, failures
        self.start = bytes(self._left) + bytes((kills, errors, failures))

    def ended(self, s: bytes) -> bool:
        """Whether every process has looked for all that it wants, or is dead; then whoever meets a claim takes it."""
        if any(self._get(s, who, PC) not in (DONE, DEAD) for who in range(len(self._wants))):
            return False
        for slot, word in enumerate(s[: self._slots]):
            if word & CLAIM and not word & ENTRY:
                labels = [label for label, _ in self._look(s, 0, 3, slot, 0)]
                if labels != ["finds a dead one's claim"]:
                    raise Violated(FREE)
        return True

    def moves(self, s: bytes) -> Iterator[tuple[str, bytearray]]:
        """See Model."""
        self._check(s)
        self.ended(s)  # raises where a claim stays
        for who in range(len(self._wants)):
            if self._get(s, who, PC) in (DONE, DEAD):
                continue
            for label, n in self._steps(s, who):
                self._check_step(s, n)
                yield f"{who} {label}", n
            if s[self._left]:
                n = bytearray(s)
                n[self._left] -= 1
                self._set(n, who, PC=DEAD)
                yield f"! {who} is killed", n
        for who in range(len(self._wants)):
            if self._get(s, who, PC) == DEAD and self._get(s, who, BORN) < 3:
                n = bytearray(s)
                self._set(n, who, PC=LOOK, BORN=self._get(s, who, BORN) + 1, PASSED=0, WANT=0)
                yield f"! another one has the pid of {who}", n

    # ------------------------------------------------------------------------------------------------ one step of one

    def _steps(self, s: bytes, who: int) -> Iterator[tuple[str, bytearray]]:
        pc, passed, extent = (self._get(s, who, field) for field in (PC, PASSED, EXTENT))
        want, mine, n = self._wants[who][self._get(s, who, WANT)], self._claim(s, who), bytearray(s)
        slot = (self._homes[want] + passed) % self._slots
        if pc == LOOK:
            yield from self._look(s, who, want, slot, passed)
        elif pc == TAKE:
            seen = self._get(s, who, SEEN)
            by_store = self._mutant == ("take over by store" if seen else "claim by store")
            if s[slot] == seen or by_store:
                n[slot] = mine
                self._set(n, who, PC=RESERVE)
                if seen and self._mutant == "take over with the bytes of the dead":
                    self._set(n, who, EXTENT=self._get(s, (seen & 63) // 4, EXTENT))
                    self._set(n, who, PC=WRITE)
                yield "claims", n
            else:
                yield "comes too late", self._next(n, who)
        elif pc == RESERVE:
            at = self._get(s, who, SEEN) if self._mutant == "reserve in two steps" else s[self._used]
            n[self._used] = at + 1
            first = PUBLISH if self._mutant == "publish before the bytes are written" else WRITE
            self._set(n, who, PC=first, EXTENT=at)
            yield "reserves", n
        elif pc in (WRITE, WRITE_REST):
            is_half = pc == WRITE
            if s[self._bytes + 2 * extent + 1] not in (0, mine & 63) or self._is_published(s, extent):
                raise Violated(ONE_WRITER)
            n[self._bytes + 2 * extent : self._bytes + 2 * extent + 2] = 2 * (want + 1) + (not is_half), mine & 63
            too_soon = is_half and self._mutant == "publish when half is written"
            self._set(n, who, PC=PUBLISH if too_soon or not is_half else WRITE_REST)
            yield "writes", n
            if s[self._left + 2]:
                n = bytearray(s)
                n[self._left + 2] -= 1
                self._set(n, who, PC=RELEASE)
                yield "! cannot write", n
        elif pc == PUBLISH:
            if s[slot] == mine or self._mutant == "publish by store":
                n[slot] = ENTRY | want << 4 | extent
            yield "publishes", self._next(n, who)
        elif pc == RELEASE:
            if s[slot] == mine or self._mutant == "release by store":
                n[slot] = EMPTY
            yield "lets go", self._next(bytearray(s) if self._mutant == "release is forgotten" else n, who)
        elif pc == READ:
            if s[self._bytes + 2 * extent] != 2 * (want + 1) + 1:
                raise Violated(WHOLE)
            yield "reads", self._next(n, who)

    def _look(self, s: bytes, who: int, want: int, slot: int, passed: int) -> Iterator[tuple[str, bytearray]]:
        n = bytearray(s)
        if passed >= self._slots:
            yield "finds no room", self._next(n, who)
            return
        word = s[slot]
        if word & ENTRY and self._mutant == "an entry is taken for a claim's end" and (word >> 4 & 3) != want:
            self._set(n, who, PC=TAKE, SEEN=word)
            yield "takes an entry", n
        elif word & ENTRY and (word >> 4 & 3) == want:
            self._set(n, who, PC=READ, EXTENT=word & 15)
            yield "finds it", n
        elif word & ENTRY:
            self._set(n, who, PASSED=passed + 1)
            yield "finds another one", n
        elif word == EMPTY:
            self._set(n, who, PC=TAKE, SEEN=EMPTY)
            if self._mutant == "reserve in two steps":  # what is used is read here, and written later
                self._set(n, who, PC=RESERVE, SEEN=s[self._used])
                n[slot] = self._claim(s, who)
            yield "finds an empty slot", n
        elif self._mutant == "who meets a claim claims behind it":
            self._set(n, who, PASSED=passed + 1)
            yield "passes a claim", n
        elif not self._lives(s, word) and self._mutant != "the dead are left alone":
            self._set(n, who, PC=TAKE, SEEN=word)
            yield "finds a dead one's claim", n
        else:
            if s[self._left + 1]:
                taken = bytearray(s)
                taken[self._left + 1] -= 1
                self._set(taken, who, PC=TAKE, SEEN=word)
                yield "! takes a living one for dead", taken
            yield "leaves it to another", self._next(n, who)

    # --------------------------------------------------------------------------------------------------- the promises

    def _check(self, s: bytes) -> None:
        entries = [word >> 4 & 3 for word in s[: self._slots] if word & ENTRY]
        if len(entries) != len(set(entries)):
            raise Violated(ONCE)

    def _check_step(self, s: bytes, n: bytearray) -> None:
        if any(s[k] & ENTRY and n[k] != s[k] for k in range(self._slots)):
            raise Violated(FINAL)

    def _is_published(self, s: bytes, extent: int) -> bool:
        return any(word & ENTRY and word & 15 == extent for word in s[: self._slots])

    def _lives(self, s: bytes, word: int) -> bool:
        """Whether who claimed is there: the same one, and not another one with its pid."""
        who, born = (word & 63) // 4, (word & 63) % 4
        same = born == self._get(s, who, BORN) or self._mutant == "who is dead is known by its pid alone"
        return same and self._get(s, who, PC) != DEAD

    # ---------------------------------------------------------------------------------------------------- its memory

    def _claim(self, s: bytes, who: int) -> int:
        return CLAIM | who * 4 + self._get(s, who, BORN)

    def _get(self, s: bytes, who: int, field: int) -> int:
        return s[self._first + FIELDS * who + field]

    def _set(self, s: bytearray, who: int, **fields: int) -> None:
        for name, value in fields.items():
            s[self._first + FIELDS * who + globals()[name]] = value

    def _next(self, s: bytearray, who: int) -> bytearray:
        """Go on to what it wants next."""
        want = self._get(s, who, WANT) + 1
        is_done = want == len(self._wants[who])
        self._set(s, who, PC=DONE if is_done else LOOK, WANT=0 if is_done else want, PASSED=0, EXTENT=0, SEEN=0)
        return s
