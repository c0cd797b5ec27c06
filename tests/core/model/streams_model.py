"""Every order in which threads change streams, copy from a batch and drop it, and the loader reuses its slot.

NOTE [ Streams model ]

One batch, two threads, and the streams: the default one, two of torch's, and a foreign one, which may be destroyed.
The rules are those of NOTE [ Streams ] (streams.py) and NOTE [ Pinning ].  A state is a string of bytes, and the search
visits all states that can be reached.

    thread    leaves a stream (and notes when), chooses another (which becomes current, and is noted), marks (records an
              event on a foreign stream that it left), copies, hands over, drops.  In current.pxi, leaving one stream
              and choosing the next are one step.  Here they are two, which shows that the order of the two is
              sound even if another thread looks in between
    thread 0  lends; looks (records events on the streams that may have a copy); gives the slot back when these have
              passed (then the slot is filled again); closes, which waits for the device, and then unmaps
    stream    does its copy; an event passes only after the copy
    may happen ("!" in traces)   the foreign stream is destroyed, once torch no longer uses it

Checked: the PROPERTIES.  With `hidden` the threads may also be put on an unseen stream, as C++ can do.  Then a slot may
be filled while a copy on that stream reads it, as NOTE [ Streams ] admits.  That must happen for no other stream, and
nothing is ever unmapped under a copy.  One gap is not modelled: if a thread is moved from a foreign stream to an unseen
one, the foreign stream could be queried after its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from model.promises import Violated

UNTOUCHED = "a slot is not filled while a copy reads it"
MAPPED = "a slot is not unmapped while a copy reads it"
ALIVE = "no stream is asked that was destroyed"
PROPERTIES = (UNTOUCHED, MAPPED, ALIVE)

MUTANTS = (
    "only where it died",
    "streams that were left are forgotten",
    "streams of other threads are forgotten",
    "the default stream is forgotten",
    "a stream is left when another one is noted",
    "the moment is taken behind the hand-out",
    "a stream of others is asked when it is gone",
    "a mark is forgotten",
    "what was left out of sight is forgotten",
    "events are not waited for",
    "unmapped without a wait",
)

THREADS, STREAMS = 2, 4
DEFAULT, ONE, OTHERS, HIDDEN = range(STREAMS)
NOTHING = 255
VOID, LENT, DEAD, RECORDED, FILLED, CLOSED = range(6)

# a state: of the threads, the stream that is current, the one that is noted, the one that it is on its way to, whether
# it is to mark; of the streams, whether they were left since the batch was lent, have a copy, and an event to pass;
# then where the batch is, who holds it, where it died, whether a mark stands for OTHERS, whether that is gone, and
# whether the moment is noted
CURRENT, NOTED, TOWARDS, MARKS = 0, THREADS, 2 * THREADS, 3 * THREADS
LEFT = 4 * THREADS
COPY, EVENT = LEFT + STREAMS, LEFT + 2 * STREAMS
BATCH = LEFT + 3 * STREAMS
HOLDERS, DIED, MARKED, GONE, MOMENT, SIZE = (BATCH + k for k in range(1, 7))


@dataclass
class Streams:
    """The model.

    Args:
        hidden: whether a stream may be chosen out of sight.
        closes: whether the loader may be closed at any time.
        mutant: one of MUTANTS, or "".
    """

    hidden: bool = False
    closes: bool = False
    mutant: str = ""

    def __post_init__(self) -> None:
        assert not self.mutant or self.mutant in MUTANTS
        state = bytearray(SIZE)
        state[TOWARDS : TOWARDS + THREADS] = bytes([NOTHING] * THREADS)
        self.start = bytes(state)

    def moves(self, s: bytes) -> Iterator[tuple[str, bytearray]]:
        if s[BATCH] == CLOSED:
            return
        for t in range(THREADS):
            yield from self._changes(s, t)
            yield from self._uses(s, t)
        yield from self._looks(s)
        for stream in range(STREAMS):
            if s[COPY + stream]:
                n = bytearray(s)
                n[COPY + stream] = 0
                yield f"stream {stream} copies", n
            elif s[EVENT + stream]:
                n = bytearray(s)
                n[EVENT + stream] = 0
                yield f"an event passes on stream {stream}", n
        in_use = OTHERS in s[CURRENT:MARKS] or any(s[MARKS:LEFT])  # in use also where it was left out of sight
        if not s[GONE] and not in_use and s[BATCH] not in (VOID, LENT):
            n = bytearray(s)
            n[GONE] = 1
            yield "! others destroy their stream", n

    def ended(self, s: bytes) -> bool:
        return s[BATCH] in (FILLED, CLOSED)

    # ------------------------------------------------------------------------------------------------------- threads

    def _changes(self, s: bytes, t: int) -> Iterator[tuple[str, bytearray]]:
        at, towards = s[CURRENT + t], s[TOWARDS + t]
        late = self.mutant == "a stream is left when another one is noted"
        if s[MARKS + t] and (towards == NOTHING or not late):
            n = bytearray(s)
            n[MARKS + t] = 0
            n[MARKED], n[LEFT + OTHERS] = 1, 0
            yield f"t{t} marks the stream of others", n
        elif towards == NOTHING:
            for stream in (DEFAULT, ONE, OTHERS):
                if stream != at and not (stream == OTHERS and s[GONE]):
                    n = bytearray(s)
                    n[TOWARDS + t] = stream
                    if late:
                        n[CURRENT + t] = n[NOTED + t] = stream
                        n[LEFT + at] |= 2  # to be set by the next step
                        n[MARKS + t] = at == OTHERS
                    else:
                        self._leave(n, at)
                        if s[NOTED + t] != OTHERS and self.mutant != "what was left out of sight is forgotten":
                            self._leave(n, s[NOTED + t])
                    yield f"t{t} leaves stream {at}", n
            if self.hidden and at not in (HIDDEN, OTHERS):
                n = bytearray(s)
                n[CURRENT + t] = HIDDEN
                yield f"t{t} is put on a stream out of sight", n
            if at == HIDDEN:
                n = bytearray(s)
                n[CURRENT + t] = s[NOTED + t]
                yield f"t{t} is put back", n
        else:
            n = bytearray(s)
            n[TOWARDS + t] = NOTHING
            if late:
                for stream in range(STREAMS):
                    if n[LEFT + stream] & 2:
                        n[LEFT + stream] = 1
            else:
                n[CURRENT + t] = n[NOTED + t] = towards
                n[MARKS + t] = at == OTHERS and self.mutant != "a stream of others is asked when it is gone"
            yield f"t{t} chooses stream {towards}", n

    @staticmethod
    def _leave(n: bytearray, stream: int) -> None:
        if stream not in (DEFAULT, HIDDEN):
            n[LEFT + stream] = 1

    def _uses(self, s: bytes, t: int) -> Iterator[tuple[str, bytearray]]:
        if not s[HOLDERS] & 1 << t or s[TOWARDS + t] != NOTHING or s[MARKS + t]:
            return
        if not s[COPY + s[CURRENT + t]]:
            n = bytearray(s)
            n[COPY + s[CURRENT + t]] = 1
            yield f"t{t} copies", n
        if s[HOLDERS] != 3:
            n = bytearray(s)
            n[HOLDERS] = 3
            yield f"t{t} hands over", n
        n = bytearray(s)
        n[HOLDERS] &= ~(1 << t)
        if not n[HOLDERS]:
            n[BATCH], n[DIED] = DEAD, s[CURRENT + t]
        yield f"t{t} drops", n

    # ------------------------------------------------------------------------------------------------------ the loader

    def _looks(self, s: bytes) -> Iterator[tuple[str, bytearray]]:
        if s[TOWARDS] != NOTHING or s[MARKS]:
            return  # thread 0 is at something else
        behind = self.mutant == "the moment is taken behind the hand-out"
        n = bytearray(s)
        if s[BATCH] == VOID:
            n[BATCH], n[HOLDERS], n[MOMENT] = LENT, 1, not behind
            self._forget(n)
            yield "lend", n
        elif s[BATCH] == LENT and not s[MOMENT]:
            n[MOMENT] = 1
            self._forget(n)
            yield "note the moment", n
        elif s[BATCH] == DEAD:
            for stream in self._may_be_on(s):
                if stream == OTHERS and s[GONE]:
                    raise Violated(ALIVE)
                n[EVENT + stream] = 1
            n[EVENT + OTHERS] |= s[MARKED] and self.mutant != "a mark is forgotten"
            n[BATCH] = RECORDED
            yield "record events", n
        elif s[BATCH] == RECORDED and (not any(s[EVENT:BATCH]) or self.mutant == "events are not waited for"):
            if any(s[COPY : COPY + HIDDEN]):
                raise Violated(UNTOUCHED)
            n[BATCH] = FILLED
            yield "fill the slot again", n
        if self.closes and s[BATCH] in (DEAD, RECORDED, FILLED):
            if any(s[COPY : COPY + STREAMS]):
                if self.mutant == "unmapped without a wait":
                    raise Violated(MAPPED)
                return
            n = bytearray(s)
            n[BATCH] = CLOSED
            yield "close", n

    @staticmethod
    def _forget(n: bytearray) -> None:
        """What was left before this moment is none of the batch's."""
        for stream in range(STREAMS):
            n[LEFT + stream] = 0
        n[MARKED] = 0

    def _may_be_on(self, s: bytes) -> set[int]:
        here = {s[CURRENT], s[DIED]}
        if self.mutant == "only where it died":
            return here
        noted = {s[NOTED + t] for t in range(THREADS)}
        left = {stream for stream in range(STREAMS) if s[LEFT + stream] == 1}
        gone = {OTHERS} if s[MARKED] else set()
        if self.mutant == "streams that were left are forgotten":
            left = set()
        if self.mutant == "streams of other threads are forgotten":
            noted = {s[NOTED]}
        noted.discard(DEFAULT)
        default = set() if self.mutant == "the default stream is forgotten" else {DEFAULT}
        return (here - gone) | noted | left | default
