"""Whatever is asked of a closed ring is an error or nothing at all, whether or not a batch of it is still lent."""

from __future__ import annotations

import json
import pathlib
import threading
from typing import Any

import pytest
from hostile import BothSides
from scripts import run_script

from shmloader.core.lease import Lease
from shmloader.core.ring import Sequences, Slots
from shmloader.core.trainer import TrainerSide

ERROR = "RingClosed: this iterator has been shut down. Iterate over the DataLoader again."

# What each method is called with; one that is missing here fails the test.  These raise:
RAISE: dict[str, tuple[Any, ...]] = {
    "ring.format": (),
    "ring.has_room": (),
    "ring.begin_epoch": (),
    "ring.states": (),
    "ring.open": (0, 1),
    "ring.open_chunks": ([0], [[1]]),
    "ring.has_room_for": (1, 1),
    "ring.open_window": ([(0, 0, [1], None)], [1], [0]),
    "ring.dismiss": (0,),
    "ring.ready": (),
    "ring.take": (),
    "ring.lend": (),
    "sequences.holds": (0,),
    "sequences.owes": (0,),
    "sequences.awaited": (),
    "sequences.owner": (1,),
    "sequences.about": (1,),
    "sequences.rows_due": (),
    "sequences.rows_of": (1,),
    "ring.task": (1,),
    "sequences.held_for": (1,),
    "ring.revoke": (0,),
    "slots.guard_with": (None, ()),
    "slots.lent_payloads": (),
    "ring.committed": (0,),
    "ring.committed_in_all": (),
    "ring.note_committed": (0, 1),
    "ring.overflowed": (0,),
    "ring.move_to_memfd": (0, 0),
    "lease.meta": (),
    "lease.plan": (),
    "lease.reports": (),
    "lease.chunk_objects": (0, 0),
    "lease.first_row": (0,),
    "lease.overflowed": (),
}
# These do nothing, or look at no shared word; and what they return then.
QUIET: dict[str, tuple[tuple[Any, ...], Any]] = {
    "ring.stop": ((), None),
    "ring.wait": ((), False),
    "ring.alarm": ((), None),
    "ring.clear_alarm": ((), None),
    "ring.took": ((), None),
    "sequences.under_way_of": ((0,), 1),
    "slots.returns": ((), []),
    "slots.copied": ((0,), None),
    "slots.await_events": ((0, []), None),
    "slots.awaiting": ((), []),
    "slots.rest": ((), None),
    "slots.wake": ((), None),
    "ring.close": ((), None),
    "lease.objects": ((0,), [128, 16]),
    "lease.guard": ((1 << 40,), True),
    "lease.release": ((), None),
    "lease.fail": ((), None),
}
# Of what was never lent to a device nothing can be reclaimed; where a slot is may be asked until it is given back.
OTHER: dict[str, tuple[Any, ...]] = {
    "slots.one_at_a_time": (None,),
    "slots.reclaim": (([0], []),),
    "slots.address": (0,),
}
PARTS = {
    "ring.sequences",
    "ring.slots",
    "ring.turns",
    "ring.current",
}  # objects of the process, which closing does not end

# A child for each call, so that one that crashes is known by its name.
SCRIPT = """
import json, os, sys
from hostile import BothSides

ring = BothSides()
ring.fill({"x": [1.0, 2.0]})
lease = ring.trainer.take()
ring.trainer.open(0, 7)  # sequence 1 is in flight
if not LENT: lease.release()
ring.trainer.close()
for name, arguments in CALLS.items():
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            kind, _, method = name.partition(".")
            owner = lease if kind == "lease" else ring.trainer if kind == "ring" else getattr(ring.trainer, kind)
            what = getattr(owner, method)
            value = what(*[lease if a == "lease" else a for a in arguments]) if callable(what) else what
            answer = ["returned", list(value) if isinstance(value, (tuple, set)) else value]
        except Exception as error:
            answer = ["raised", f"{type(error).__name__}: {error}"]
        os.write(write, json.dumps(answer).encode())
        os._exit(0)
    _, status = os.waitpid(child, 0)
    os.close(write)
    answer = ["killed by signal", status] if status else json.loads(os.read(read, 4096))
    os.close(read)
    print(json.dumps([name, *answer]), flush=True)
os._exit(0)
"""


def public(callables: bool) -> set[str]:
    """The names that the ring, its accounts and its leases have, of methods or of properties."""
    kinds: dict[str, type] = {"ring": TrainerSide, "sequences": Sequences, "slots": Slots, "lease": Lease}
    return {
        f"{each}.{name}"
        for each, kind in kinds.items()
        for name in dir(kind)
        if not name.startswith("_") and callable(getattr(kind, name)) == callables
    }


@pytest.mark.long
@pytest.mark.parametrize("lent", [True, False])
def test_every_method_of_a_closed_ring(lent: bool) -> None:
    calls = RAISE | {name: arguments for name, (arguments, _) in QUIET.items()} | OTHER
    assert set(calls) - {"lease.overflowed"} == public(callables=True), "each method is to be called"
    properties = public(callables=False) - {"lease.overflowed"} - PARTS
    calls |= dict.fromkeys(properties, ())
    ran = run_script(SCRIPT.replace("CALLS", repr(calls)).replace("LENT", repr(lent)))
    result = {name: (how, what) for name, how, what in map(json.loads, ran.out.splitlines())}
    assert set(result) == set(calls), ran.err
    assert not [name for name, (how, _) in result.items() if how == "killed by signal"]
    for name in RAISE:
        assert result[name] == ("raised", ERROR), (name, result[name])
    for name, (_, value) in QUIET.items():
        assert result[name] == ("returned", value), (name, result[name])
    assert result["slots.reclaim"][1].startswith("ValueError: payloads [0] are not held back")
    assert result["slots.one_at_a_time"][1].startswith("TypeError: "), "it calls what it is given"
    for name in properties | {"slots.address"}:
        assert result[name][0] == "returned", (name, result[name])
    assert result["ring.alarmed"][1] is result["ring.stopped"][1] is False


@pytest.mark.long
def test_interrupting_an_iterator_that_is_closed() -> None:
    ran = run_script(
        """
        import shmloader
        iterator = iter(shmloader.DataLoader(list(range(20)), num_workers=1))
        batch = next(iterator)
        iterator.close()
        iterator.interrupt()
        print(batch.tolist(), next(iterator, "over"))
        """
    )
    assert (ran.status, ran.out) == (0, "[0] over\n"), (ran.status, ran.err)


def is_mapped(address: int) -> bool:
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= address < last:
            return True
    return False


def test_the_words_are_unmapped_once_nobody_waits_any_more() -> None:
    ring = BothSides()
    ring.fill([1.0])
    lease = ring.trainer.take()
    words = ring.trainer.slots.address(0) - ring.trainer.slot_at
    ring.trainer.open(0, 7)
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(ring.trainer.wait()))
    waiting.start()
    waiting.join(0.2)
    ring.trainer.alarm()
    ring.trainer.close()
    waiting.join()
    assert answers == [False] and not is_mapped(words) and is_mapped(words + ring.trainer.slot_at)
    lease.release()
    assert not is_mapped(words + ring.trainer.slot_at + lease.payload * ring.trainer.slot_stride)
    ring.segment.close()
