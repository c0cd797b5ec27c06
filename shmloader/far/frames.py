"""The frames on the wire between a stand-in and its far worker: heads of a fixed size, and what follows each.
It limits their sizes, and refuses a head that no far worker sends.

An Ask names a batch: its sequence, indices, seeds and epoch.  An Answer has the batch: the description of its leaves as
64-bit words and, the first time, the plan of its structure, as both would lie in the ring (batch_writer.pyx); then the
bytes of the payload.  So of a batch nothing is pickled that is not pickled for a local worker too.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

READY, BEAT, BATCH = 1, 2, 3  # kinds of answers
NO_EPOCH = -(1 << 63)  # no set_epoch()

LONGEST_WORDS = 64 << 20  # bytes beside the payload: an entry's area reserves no more
LONGEST_STATES = 16 << 10  # of the random generators; a ring's memory for them is as large
MOST_KEPT = 1 << 20  # bytes of plans that both ends keep: NOTE [ Kept plans ] in batch_tree.pyx


class Ask(NamedTuple):
    """A request for a batch."""

    sequence: int
    seed: int  # the batch's
    epoch: int
    epoch_seed: int
    dataset_epoch: int  # for set_epoch(), or NO_EPOCH
    task: int  # bytes of the task, pickled as WorkerSide.claim() gave it, which follow
    states: int  # bytes of the random states from which to go on, which follow; 0: go on as it is
    wants_states: int  # whether the answer has the states after the batch


class Answer(NamedTuple):
    """A batch that was made, a sign of life, or READY."""

    kind: int
    sequence: int  # of the batch; of a BEAT: of the one that is being made
    used: int  # bytes of the payload, which come last
    words: int  # bytes of the description of the leaves
    plan: int  # bytes of the plan; 0: it was sent before.  Of READY: bytes of the machine's name
    objects_at: int
    objects_size: int
    report: int  # bytes of the report on bad samples
    states: int  # bytes of the random states after the batch


ASK = struct.Struct("<QQQQqIIB7x")
ANSWER = struct.Struct("<B7xQQIIQQII")


def beat(sequence: int) -> bytes:
    """A sign of life, while a batch is made."""
    return ANSWER.pack(*Answer(BEAT, sequence, 0, 0, 0, 0, 0, 0, 0))


class Garbage(Exception):
    """The other end sent what it cannot have sent if it runs this code; the text says what."""


def check(answer: Answer, sequence: int, room: int) -> None:
    """Check the head of a batch before anything is received for it.

    Args:
        answer: The head.
        sequence: What was asked for.
        room: How many bytes the widest ring can have.

    Raises:
        Garbage: It is no answer to that.
    """
    if answer.kind != BATCH:
        raise Garbage(f"an answer of kind {answer.kind}")
    if answer.sequence != sequence:
        raise Garbage(f"batch {answer.sequence} in place of batch {sequence}")
    if answer.used > room:
        raise Garbage(f"a batch of {answer.used} bytes, and a slot has room for {room}")
    if answer.words % 8 or not 8 <= answer.words <= LONGEST_WORDS:
        raise Garbage(f"a description of {answer.words} bytes")
    if answer.plan + answer.report > LONGEST_WORDS or answer.states > LONGEST_STATES:
        raise Garbage(f"a plan of {answer.plan} bytes, a report of {answer.report} and states of {answer.states}")
    if answer.objects_size > answer.used or answer.objects_at > answer.used - answer.objects_size:
        raise Garbage(f"objects at {answer.objects_at}, of {answer.objects_size} bytes, in {answer.used} bytes")
