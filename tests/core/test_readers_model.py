"""The protocol of several readers keeps its promises in every interleaving; each breaks under a fault."""

from __future__ import annotations

from typing import Any

from model.checks import ModelChecks
from model.promises import NO_DEADLOCK
from model.readers_model import Ring
from model.readers_state import (
    BEHIND,
    BOOKS,
    DESCRIBED,
    LEFT_ALONE,
    MUTANTS,
    PASSED,
    PROMISES,
    PUBLISHED,
    READ,
    WHOLE,
)

ONE: dict[str, Any] = {"entries": 1, "chunks": (1,)}
TWO: dict[str, Any] = {"entries": 1, "chunks": (1, 1)}
CHUNKS: dict[str, Any] = {"entries": 2, "chunks": (2,)}
OWN: dict[str, Any] = TWO | {"own": True, "spare": 1}
LATE: dict[str, Any] = TWO | {"late": (1,)}
LEAVES: dict[str, Any] = LATE | {"leaves": 1, "spare": 1}
RESUMED: dict[str, Any] = {"entries": 1, "chunks": (1, 1, 1), "late": (1,), "joins": 1, "resumes": True}
ALONE: dict[str, Any] = LATE | {"entries": 2, "joins": 1}  # the one joins when the other is gone, or beside it
REPLACED: dict[str, Any] = LATE | {"joins": 1, "drops": 1}

SOUND: dict[str, dict[str, Any]] = {
    "two batches": TWO,
    "two batches, lent": TWO | {"spare": 1},
    "three batches, two entries": {"chunks": (1, 1, 1)},
    "chunks": CHUNKS,
    "the conductor reads too, and lends": OWN,
    "a reader killed": ONE | {"kills": 1},
    "a reader killed, more batches": TWO | {"kills": 1},
    "a reader killed, and another in its place": LATE | {"kills": 1, "joins": 1},
    "a reader dropped": ONE | {"drops": 1},
    "a reader dropped, more batches": TWO | {"drops": 1},
    "a reader dropped, another joins": REPLACED,
    "a reader leaves": LEAVES,
    "a reader leaves, another joins in its place": LATE | {"leaves": 1, "joins": 1},
    "a reader leaves, another joins behind what it took": ALONE | {"leaves": 1},
    "a reader is killed, another joins behind what it took": ALONE | {"kills": 1},
    "a reader leaves and is killed, another joins in its place": LATE | {"leaves": 1, "joins": 1, "kills": 1},
    "a reader joins": LATE | {"joins": 1},
    "a reader resumes": RESUMED,
    "readers join that resume": {"entries": 2, "chunks": (1, 1, 1), "late": (0, 1), "joins": 2, "resumes": True},
    "a worker killed": ONE | {"worker_kills": 1},
    "a worker killed, more batches": TWO | {"worker_kills": 1},
    "the conductor killed": TWO | {"conductor_kills": 1},
}
# Their parts are sound alone.
LARGE = (
    "the conductor reads too, and lends",
    "three batches, two entries",
    "a reader killed, more batches",
    "a reader dropped, more batches",
    "a reader dropped, another joins",
    "a reader leaves",
    "a reader leaves and is killed, another joins in its place",
    "a reader leaves, another joins behind what it took",
    "a reader is killed, another joins behind what it took",
    "a worker killed, more batches",
    "readers join that resume",
)

# mutant -> what it runs in, and what it violates
CAUGHT: dict[str, tuple[dict[str, Any], str]] = {
    "take holds nothing": (TWO, READ),
    "take is a load and a store": (CHUNKS, BOOKS),
    "take before the entries are copied": (TWO | {"spare": 1}, DESCRIBED),
    "release clears all bits": (TWO, READ),
    "opens before all took": (TWO, LEFT_ALONE),
    "opens before the batch is READY": (LATE | {"kills": 1}, NO_DEADLOCK),
    "opens what is held": (TWO, LEFT_ALONE),
    "opens what the conductor lends": (OWN, LEFT_ALONE),
    "due is marked behind open": (TWO, PASSED),
    "due is everybody who ever was": (LATE | {"drops": 1}, BOOKS),
    "joins while a batch is opened": (LATE | {"joins": 1}, PASSED),
    "joins at what is open": (LATE | {"joins": 1}, PASSED),
    "joins at what is filled again": (RESUMED, PASSED),
    "joins without a mark": (LATE | {"kills": 1, "joins": 1}, PASSED),
    "joins at what the conductor has not taken": (ALONE | {"leaves": 1}, BEHIND),
    "joins at what tasks are written over": (RESUMED, DESCRIBED),
    "the payload is chosen before the tasks are written": (RESUMED | {"entries": 2, "spare": 1}, LEFT_ALONE),
    "a drop takes what is held": (REPLACED, READ),
    "who is dropped stays in what is opened": (LATE | {"drops": 1}, DESCRIBED),
    "bury leaves what is held": (LATE | {"kills": 1}, BOOKS),
    "bury leaves what is due": (LATE | {"kills": 1}, BOOKS),
    "bury does not toll the conductor": (ONE | {"kills": 1}, NO_DEADLOCK),
    "bury does not toll the readers": (ONE | {"kills": 1, "drops": 1}, NO_DEADLOCK),
    "index is given again before its process is dead": (REPLACED, PASSED),
    "index is given again while its reader lends": (LEAVES | {"joins": 1, "kills": 1}, BOOKS),
    "publish rings the conductor alone": (TWO, NO_DEADLOCK),
    "publish rings before the word": (TWO, NO_DEADLOCK),
    "the death of a worker tolls the conductor alone": (ONE | {"worker_kills": 1}, NO_DEADLOCK),
    "toll trusts the sleeper bit": (ONE | {"worker_kills": 1}, NO_DEADLOCK),
    "take does not tell the conductor": (LEAVES, NO_DEADLOCK),
    "release does not tell the conductor": (TWO, NO_DEADLOCK),
    "message wakes nobody": (LATE | {"drops": 1}, NO_DEADLOCK),
    "the conductor's death wakes nobody": (ONE | {"conductor_kills": 1}, NO_DEADLOCK),
    "gone is looked at before what is published": (ONE | {"conductor_kills": 1}, PUBLISHED),
    "gone is not looked at again": (ONE | {"conductor_kills": 1}, NO_DEADLOCK),
    "check, then announce": (TWO, NO_DEADLOCK),
    "a ready batch is one chunk": (CHUNKS, DESCRIBED),
}


class TestReaders(ModelChecks):
    model = Ring
    sound = SOUND
    large = LARGE
    mutants = MUTANTS
    caught = CAUGHT
    promises = {*PROMISES, NO_DEADLOCK} - {WHOLE}
