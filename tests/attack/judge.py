"""Compares what a program saw with what its twin saw, and decides which differences are faults.
It also finds hangs, crashes, leaks, wrong states and false warnings, whatever the twin saw, and names each in a line.
"""

from __future__ import annotations

import functools
import itertools
import re
from dataclasses import dataclass
from typing import Any

from tests.attack.datasets import BY_PICKLE, NOT_REBUILT
from tests.attack.loaders import OFF_THE_RING
from tests.attack.program import Program
from tests.attack.rules import (
    WITHOUT_PLACE,
    fails_to_save,
    leaves_ring,
    replaced_iterator,
    tries_again,
    unreached,
)
from tests.attack.run import DEADLINE, Outcome, Plant, User, run, started
from tests.attack.samplers import KEEPS, OTHERS, WITHOUT_STATE
from tests.attack.source import OURS, compiled
from tests.attack.twin import is_followed, raises_elsewhere, twin
from tests.scripts import own_shm

_NOT_AGAIN = "in the saved run, but not in this one"  # words of a warning


@dataclass(frozen=True)
class Finding:
    """A difference.

    Attributes:
        cause: What kind of difference, without numbers: findings are grouped by it.
        detail: What was seen, and what was expected.
    """

    cause: str
    detail: str


def judged(program: Program, deadline: float = DEADLINE, plant: Plant | None = None) -> Finding | None:
    """Run a program and its twin; None: they do the same."""
    calm, library = twin(program)
    return compared(program, compiled(program, OURS), compiled(calm, library), deadline, plant)


def compared(
    program: Program, ours: User, theirs: User, deadline: float = DEADLINE, plant: Plant | None = None
) -> Finding | None:
    """The same for a program that is given as two functions."""
    prepare = plant or (functools.partial(own_shm, program.shm) if program.shm else None)
    outcome = started(ours, program.keep, deadline, prepare)  # both at a time, because each waits for its workers
    expected = run(theirs, 0, deadline)
    if expected.status is None:  # torch's loader hangs now and then: in _shutdown_workers(), or where a worker forks
        expected = run(theirs, 0, deadline)
    mine = outcome()
    if found := _alone(program, mine):
        return found
    if expected.status != 0:
        return Finding(f"what is expected: {_end_of(expected)}", expected.errors[-2000:])
    return _compared(program, mine, expected)


def check(program: Program, ours: User, theirs: User, plant: Plant | None = None) -> None:
    """What a printed program ends with: say what was found, and exit with status 1."""
    found = compared(program, ours, theirs, plant=plant)
    if found is not None:
        raise SystemExit(f"{found.cause}\n{found.detail}")
    print("no difference was found")


# --------------------------------------------------------------------------------------------------- seen by itself


def _alone(program: Program, ours: Outcome) -> Finding | None:
    """What is wrong whatever torch does."""
    if ours.status != 0:
        return Finding(_end_of(ours), ours.errors[-3000:])
    if ours.left:
        return Finding(f"left behind: {ours.left}", "")
    if program.may_lack_memory and any(event[:2] == ("raised", "iter()") for event in ours.events):
        return None  # not even the first slots fit
    for event in ours.events:
        if event[0] == "left":
            return Finding(f"left behind: {_neutral(event[1])}", event[1])
        if event[0] in ("changed", "no end", "batch of a closed iterator"):
            return Finding(event[0], str(event[1:])[:2000])
        if event[0] == "rides" and (why := _not_as_it_rides(program, *event[1:])):
            return Finding(why, f"(num_workers, rides_ring, whether it rides, whether torch must serve) {event[1:]}")
        if event[0] == "copied" and event[1] and not program.keep and program.get("spare_slots", 2) > 1:
            return Finding("batches are copied, although only labels are kept", str(event[1]))
        if event[0] == "goes on" and (why := _unsaid_error(program, ours, *event[1:])):
            return Finding(why, f"(num_workers, errors before the state) {event[1:]}")
        if event[0] == "raised" and re.search("was compared, hashed|it is not set up", event[3]):
            return Finding(f"{event[1]} compares or looks up", event[3])  # the twin may be ours, and raise it too
        if event[0] == "wrong state":
            return Finding("the state counts other batches than were handed out", f"(epoch, batches) {event[1:]}")
        if event[:2] == ("raised", "state_dict()") and not fails_to_save(program):
            return Finding(f"state_dict() raises {event[2]}: {_neutral(event[3])[:70]}", event[3])
        if event[:2] == ("raised", "next()") and _loses_text(program, *event[2:]):
            return Finding(f"the error's text is lost: {event[2]}", event[3])
        if event[0] == "warned" and (why := _false_alarm(program, event[2])):
            return Finding(f"a false warning: {_neutral(event[2])[:70]}", f"{why}: {event[2]}")
    if _drops_all(program, ours) and not _warns(ours, "the epoch had no batch"):
        return Finding("an epoch had no batch, without a warning", "")
    if unreached(program) and not _warns(ours, "does not reach the DistributedSampler"):
        return Finding("set_epoch() did not reach a sampler, without a warning", "")
    hook = replaced_iterator(program)
    if any(e[0] == "rides" and e[1] and e[4] for e in ours.events) and not _warns(ours, hook):
        return Finding("no warning names what was replaced", hook)
    if words := _unexpected_words(ours.errors):
        return Finding(f"said on stderr: {_neutral(words)[:80]}", ours.errors[-3000:])
    return None


def _warns(ours: Outcome, words: str) -> bool:
    """Whether there was a warning with such words, in the trainer or in a worker."""
    texts = [event[2] for event in ours.events if event[0] == "warned"] + [ours.errors]
    return any(re.search(words, text) for text in texts)


def _drops_all(program: Program, ours: Outcome) -> bool:
    """Whether drop_last=True has left nothing of the first epoch."""
    first = next((event[0] for event in ours.events if event[0] in ("batch", "raised", "end")), "")
    if not program.get("drop_last") or leaves_ring(program) or program.does("resume", "change"):
        return False
    return first == "end" and program.data.length > (program.order.kind == "subset")  # which leaves the first one out


def _unsaid_error(program: Program, ours: Outcome, num_workers: int, errors: int) -> str | None:
    """What is wrong if a stream goes on behind an error that did not come again.  A worker may end without a word."""
    if not errors or num_workers or not tries_again(program) or _warns(ours, _NOT_AGAIN):
        return None
    return "an error did not come again, without a warning"


def _loses_text(program: Program, name: str, text: str) -> bool:
    """Whether an exception in place of a sample's lacks its text.  torch's iterator may lose it."""
    if program.data.habit not in NOT_REBUILT or leaves_ring(program):
        return False
    return name not in ("ExceptionGroup", "WithMessage", "MemoryError", "SamplerError") and "is bad" not in text


def _end_of(outcome: Outcome) -> str:
    if outcome.status is None:
        return "hangs"
    return f"killed by signal {-outcome.status}" if outcome.status < 0 else f"ends with status {outcome.status}"


def _not_as_it_rides(program: Program, num_workers: int, reported: bool, rides: bool, hooked: bool) -> str | None:
    """What is wrong with what serves the loader; None if nothing is."""
    if reported != rides:
        return "rides_ring is False, and it rides" if rides else "rides_ring is True, and torch's iterator was made"
    if rides != (num_workers > 0 and program.loader not in OFF_THE_RING and not hooked):
        why = f"although {replaced_iterator(program)} is replaced" if hooked else "off the ring"
        return f"it rides {why if num_workers else 'without workers'}" if rides else "it does not ride"
    return None


def _false_alarm(program: Program, text: str) -> str | None:
    """Why a warning of ours is not true; None if it is, or is torch's."""
    lacks_place = "lacks the place of" in text
    if "cannot jump to its place" in text:
        lacks_place = program.data.kind not in WITHOUT_PLACE
    if lacks_place and not (program.may_lack_memory or fails_to_save(program)):
        return "the stream has a state, and there is room for it"
    if "right only if it gives the same order again" in text and program.order.kind not in WITHOUT_STATE:
        return "the sampler is known"
    if "does not ride shmloader's ring" in text and not leaves_ring(program):
        return "it rides"
    if _NOT_AGAIN in text and not tries_again(program):
        return "the error comes again"
    if "is dropped" in text and not program.does("set epoch"):
        return "no other epoch was set"
    return None


def _unexpected_words(text: str) -> str:
    lines = [
        line
        for line in text.splitlines()
        if "Exception ignored" in line or re.match(r"[\w.]+(Error|Exception)\b", line)
    ]
    return lines[0] if lines else ""


# ------------------------------------------------------------------------------------------------------- compared


def _compared(program: Program, ours: Outcome, theirs: Outcome) -> Finding | None:
    if program.resumes("shorter"):  # nobody says what comes
        return None if _warns(ours, "is past the end") else Finding("a place past the end, without a warning", "")
    refused = [e for e in ours.events if e[0] == "raised" and e[1] == "load_state_dict()"]
    if refused:
        others = any(map(program.resumes, OTHERS)) and program.order.kind != "straight distributed"
        if program.resumes("generator") or others:
            return None
        return Finding(f"load_state_dict() raises {refused[0][2]}: {_neutral(refused[0][3])[:70]}", refused[0][3])
    mine, its = ([e for e in outcome.events if e[0] in ("batch", "end", "raised")] for outcome in (ours, theirs))
    mine = [e for e in mine if e[:2] != ("raised", "state_dict()")]  # _alone() has looked at it
    mine, its = [_seen(e) for e in mine], [_seen(e) for e in its]
    if program.may_lack_memory and any(event[:2] == ("raised", "iter()") for event in mine):
        return None
    if program.order.kind in ("raising", "odd batches") and any(event[:2] == ("raised", "iter()") for event in mine):
        return None  # the first batches are opened in iter(), so that raises what opening them raises, as in torch
    if program.order.kind == "raising" and raises_elsewhere(program):
        mine, its = _without_replaced(mine, its), [event for event in its if event[0] == "batch"]
    if program.order.kind == "odd batches":  # a chunk cannot be cut of it, which the trainer says, and not the worker
        mine, its = ([(*e[:3], "") if e[0] == "raised" else e for e in each] for each in (mine, its))
    if program.get("chunk_size"):  # the rows of chunks are written out: what was one object may be several
        mine, its = ([_without_met_again(event) for event in each] for each in (mine, its))
    if (
        program.resumes("workers") or program.data.habit in NOT_REBUILT
    ):  # without workers a sample's error has its own class, and no line about a worker
        mine, its = ([_bare(event) for event in each] for each in (mine, its))
    unordered = program.get("in_order") is False
    if tries_again(program):
        unordered, extra = True, _more(mine, its)
        if len(extra) == 1 and extra[0][0] == "batch":
            if not _warns(ours, "(?i)rais|error|exception"):
                return Finding("a sample comes that had raised, without a warning", _short(extra[0]))
            mine = [event for event in mine if event is not extra[0]]
    if program.may_lack_memory:
        mine = forgiven_in_any_order(mine, its) if unordered else _forgiven(mine, its)
    if unordered:
        mine, its = sorted_by_epoch(mine), sorted_by_epoch(its)
    if found := _first_difference(mine, its):
        return found
    if not unordered and (found := _more_memory(program, ours, theirs)):
        return found
    if _draws_alike(program):
        ends = [next((e for e in outcome.events if e[0] == "generators"), ()) for outcome in (ours, theirs)]
        if ends[0] != ends[1]:
            return Finding("generators are elsewhere at the end", f"ours {ends[0]}\ntheirs {ends[1]}")
    return None


def _without_met_again(event: Any) -> Any:
    """An event without what met_again() found, which is the only list in it."""
    return tuple(part for part in event if not isinstance(part, list))


def _first_difference(mine: list[Any], its: list[Any]) -> Finding | None:
    for k, (one, other) in enumerate(zip(mine, its, strict=False)):
        if one != other:
            detail = (
                f"event {k}: ours {_short(one)}\nexpected {_short(other)}\nours: {_list(mine)}\nexpected: {_list(its)}"
            )
            return Finding(_kind_of(mine, its, k), detail)
    if len(mine) != len(its):
        longer, name = (mine, "ours goes on") if len(mine) > len(its) else (its, "ours ends early")
        k = min(len(mine), len(its))
        return Finding(f"{name} with {_word(longer[k])}", f"ours: {_list(mine)}\nexpected: {_list(its)}")
    return None


def _more_memory(program: Program, ours: Outcome, theirs: Outcome) -> Finding | None:
    """A batch whose tensors take more memory than torch's.  Views that do not overlap take less."""
    if program.get("chunk_size") or program.collate in BY_PICKLE or program.may_lack_memory:
        return None
    mine, its = ([event[1] for event in outcome.events if event[0] == "memory"] for outcome in (ours, theirs))
    for k, (one, other) in enumerate(zip(mine, its, strict=False)):
        if one > other and len(mine) == len(its):
            return Finding("a batch takes more memory", f"batch {k}: ours {one} bytes\nexpected {other}")
    return None


def _kind_of(mine: list[Any], its: list[Any], k: int) -> str:
    one, other = mine[k], its[k]
    if one[0] == other[0] == "batch":
        if one in its[k:] and other not in mine[k:]:
            return "a batch is lost"
        if one in mine[:k] and one not in its[k:]:
            return "a batch is repeated"
        return "another batch"
    return f"{_word(one)} instead of {_word(other)}"


def _word(event: Any) -> str:
    return f"{event[2]} by {event[1]}: {_neutral(event[3])[:60]}" if event[0] == "raised" else f"{event[0]}"


def _seen(event: Any) -> Any:
    """Of an exception, only what torch promises."""
    if event[0] != "raised":
        return event
    first = event[3].splitlines()[0] if event[3] else ""
    return (*event[:3], re.sub(r"worker process \d+", "worker process N", first))


def _bare(event: Any) -> Any:
    """Of an exception that is a sample's, only where it came."""
    return (*event[:2], "", "") if event[0] == "raised" and event[2] != "MemoryError" else event


def _more(mine: list[Any], its: list[Any]) -> list[Any]:
    """The events that only the first of two lists has, epoch by epoch."""
    found = []
    for one, other in itertools.zip_longest(_epochs(mine), _epochs(its), fillvalue=()):
        left = [repr(event) for event in other]
        for event in one:
            if repr(event) in left:
                left.remove(repr(event))
            else:
                found.append(event)
    return found


def _without_replaced(mine: list[Any], its: list[Any]) -> list[Any]:
    """The batches of mine, and what was expected where an error of the sampler took a batch's place."""
    expected = [event for event in its if event[0] == "batch"]
    found: list[Any] = []
    for event in mine:
        if event[0] == "raised" and len(found) < len(expected):
            found.append(expected[len(found)])
        elif event[0] == "batch":
            found.append(event)
    return found


def _forgiven(mine: list[Any], its: list[Any]) -> list[Any]:
    """With the batches that were refused for their size, or without an error that came beside a batch."""
    found: list[Any] = []
    for number, event in enumerate(mine):
        k = len(found)
        if event[0] == "raised" and event[2] == "MemoryError" and k < len(its):
            after = mine[number + 1 :][:1]
            if after and after[0] == its[k]:
                continue
            event = its[k]
        found.append(event)
    return found


def forgiven_in_any_order(mine: list[Any], its: list[Any]) -> list[Any]:
    """The same for batches that come in no order: a refused one is any that is missing from its epoch."""
    found: list[Any] = []
    for ours, theirs in itertools.zip_longest(_epochs(mine), _epochs(its), fillvalue=[]):
        missing = [event for event in theirs if event[0] == "batch" and event not in ours]
        refused = [event for event in ours if event[0] == "raised" and event[2] == "MemoryError"]
        others = [event for event in ours if event not in refused]
        found += [*missing[: len(refused)], *others]
    return found


def sorted_by_epoch(events: list[Any]) -> list[Any]:
    """The batches of each epoch in one order."""
    found: list[Any] = []
    for epoch in _epochs(events):
        found += sorted(epoch, key=lambda event: (event[0] == "end", repr(event)))
    return found


def _epochs(events: list[Any]) -> list[list[Any]]:
    """The events of each epoch, with its end; the last one may have none."""
    found: list[list[Any]] = [[]]
    for event in events:
        found[-1].append(event)
        if event[0] == "end":
            found.append([])
    return found


def _draws_alike(program: Program) -> bool:
    """Whether the trainer draws what torch's does by the end of the program."""
    if any(program.get(name) for name in ("schedule", "chunk_size", "on_bad_sample", "sample_seeds")):
        return False
    if any(map(program.resumes, ("workers", "generator", "ranks"))):
        return False
    if program.get("persistent_workers") and is_followed(program):
        return False  # workers that persist keep one base seed, and without workers each epoch draws one
    if program.order.kind in KEEPS and _ends_midway(program):
        return False  # it may have drawn ahead
    if "generator" in program.order.kind and _ends_resumed(program):
        return False  # a state that is loaded takes effect at the next iter()
    return program.order.kind != "raising" and not (program.workers == 0 and program.data.noise)


def _ends_resumed(program: Program) -> bool:
    """Whether nothing was asked for behind the last resume."""
    verbs = [action.verb for action in program.actions]
    return "resume" in verbs and "begin" not in verbs[-verbs[::-1].index("resume") - 1 :]


def _ends_midway(program: Program) -> bool:
    """Whether the last epoch is not read to its end, or is one that was resumed and not begun."""
    verbs = [action.verb for action in program.actions if action.verb in ("begin", "rest", "resume")]
    return verbs[-1:] != ["rest"]


def _neutral(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+|\d+", "N", text)


def _short(event: Any) -> str:
    return repr(event)[:300]


def _list(events: list[Any]) -> str:
    return "; ".join(repr(event)[:60] for event in events)[:1500]
