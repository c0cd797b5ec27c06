"""The ring's protocol keeps its promises in every interleaving; each promise breaks under a fault it is there for."""

from __future__ import annotations

from typing import Any

from model.checks import ModelChecks
from model.promises import (
    BOOKS,
    DRAWN,
    DUTY,
    ENTRY,
    FREE_PAYLOAD,
    IN_ORDER,
    KEPT_ALONE,
    MUTANTS,
    NO_DEADLOCK,
    NO_IDLER,
    ONCE,
    ONE_WRITER,
    OWN,
    PROPERTIES,
    READ,
    TASKS,
    TERMINATION,
    VOUCHED,
    WHOLE,
)
from model.ring_model import Ring

PLAIN: dict[str, Any] = {"sequences": 3}
LENT: dict[str, Any] = {"sequences": 3, "spare": 1}
ANY_ORDER: dict[str, Any] = {"sequences": 3, "in_order": False}
DISMISSED: dict[str, Any] = {"sequences": 3, "owners": (0, 0, 1), "dismiss": (0, 0)}
KILLED: dict[str, Any] = {"sequences": 2, "kills": 1}
CLOSED: dict[str, Any] = {"workers": 1, "entries": 1, "sequences": 1, "kills": 1, "closes": True}
ALONE: dict[str, Any] = {"workers": 1, "sequences": 3}
KILLED_ALONE: dict[str, Any] = ALONE | {"kills": 1}
KILLED_TWICE: dict[str, Any] = ALONE | {"kills": 2}
KEEPING: dict[str, Any] = {"workers": 1, "entries": 1, "sequences": 4, "keeps": 2, "kills": 1}
REMEMBERED: dict[str, Any] = ALONE | {"kills": 3, "remember": True}
STOLEN: dict[str, Any] = {"sequences": 3, "steal": True}
STOLEN_KILLED: dict[str, Any] = {"sequences": 2, "kills": 1, "steal": True}
STOLEN_ONE: dict[str, Any] = {"entries": 1, "sequences": 1, "kills": 1, "steal": True}
AHEAD: dict[str, Any] = ALONE | {"looks_ahead": True}
SEVERAL: dict[str, Any] = ALONE | {"in_flight": 2}  # claimed at once, by a stand-in of a far worker
SEVERAL_STOLEN: dict[str, Any] = {"sequences": 2, "kills": 1, "steal": True, "in_flight": 2}
GIVING_BACK: dict[str, Any] = ALONE | {"spare": 1, "gives_back": True}
CHUNKS: dict[str, Any] = {"chunks": (2, 2)}
RAGGED: dict[str, Any] = {"chunks": (1, 2, 1)}
# The second batch lies between the chunks of the first, and begins before it; a window of one sequence follows.
WINDOWS: dict[str, Any] = {"entries": 3, "windows": ((1, 0, 0), (2,))}
WINDOW: dict[str, Any] = {"entries": 3, "windows": ((0, 1, 0),)}
CHUNKS_KEPT: dict[str, Any] = {"chunks": (2, 1), "keeps": 2, "kills": 1}

SOUND: dict[str, dict[str, Any]] = {
    "in order, ended at any time": PLAIN | {"quits": True},
    "lent": LENT,
    "any order": ANY_ORDER,
    "payloads give their pages back, a worker killed": GIVING_BACK | {"kills": 1},
    "payloads give their pages back, one kept": GIVING_BACK | {"keeps": 1, "kills": 1},
    "a worker dismissed": DISMISSED,
    "a worker dismissed and killed": DISMISSED | {"kills": 1, "respawn": False},
    "closed by another thread": CLOSED,
    "a worker killed": KILLED,
    "a worker killed, which is an error": KILLED | {"respawn": False},
    "a worker killed twice": KILLED_TWICE,
    "a worker killed, any order": KILLED_ALONE | {"in_order": False},
    "a worker killed that keeps batches": KEEPING,
    "a worker killed three times, which remembers": REMEMBERED,
    "a worker killed, any order, which remembers": REMEMBERED | {"kills": 2, "in_order": False},
    "a worker looks ahead, and is killed": AHEAD | {"kills": 1, "quits": True},
    "a worker looks ahead, any order": AHEAD | {"in_order": False},
    "stolen, workers look ahead": STOLEN | {"looks_ahead": True},
    "stolen, ended at any time": STOLEN | {"quits": True},
    "stolen, a worker killed": STOLEN_KILLED,
    "stolen, a worker killed, which is an error": STOLEN_KILLED | {"respawn": False},
    "stolen, two killed": STOLEN_ONE | {"kills": 2},
    "stolen, a worker killed that keeps a batch": STOLEN_ONE | {"keeps": 1},
    "several claimed, a worker killed, ended at any time": SEVERAL | {"kills": 1, "quits": True},
    "several claimed, a worker killed, any order": SEVERAL | {"kills": 1, "in_order": False},
    "several claimed, a worker killed three times, which remembers": SEVERAL | {"kills": 3, "remember": True},
    "several claimed, more than are in flight, a worker killed": SEVERAL | {"entries": 3, "sequences": 4, "kills": 1},
    "several claimed, a worker dismissed": DISMISSED | {"in_flight": 2},
    "several claimed, a worker dismissed and killed": DISMISSED | {"in_flight": 2, "kills": 1, "respawn": False},
    "several claimed, stolen": STOLEN | {"in_flight": 2},
    "several claimed, stolen, a worker killed": SEVERAL_STOLEN,
    "chunks, lent": CHUNKS | {"spare": 1},
    "chunks, a worker killed": {"chunks": (2,), "kills": 1},
    "chunks, a batch kept by two, one killed": CHUNKS_KEPT | {"chunks": (2,)},
    "chunks, stolen, a worker killed": {"chunks": (2,), "kills": 1, "steal": True},
    "ragged chunks, lent": RAGGED | {"spare": 1},
    "ragged chunks, stolen": RAGGED | {"steal": True},
    "windows": WINDOWS,
    "a window, a worker killed": {"entries": 2, "windows": ((1, 0),), "kills": 1},
}

# Their parts are sound alone, or they are part of another one: those above that have no more than one of them.
LARGE = (
    "lent",
    "any order",
    "chunks, a worker killed",
    "a worker dismissed and killed",
    "several claimed, a worker dismissed and killed",
    "several claimed, a worker killed three times, which remembers",
    "several claimed, stolen",
    "several claimed, stolen, a worker killed",
    "chunks, stolen, a worker killed",
    "chunks, a batch kept by two, one killed",
    "stolen, two killed",
    "stolen, a worker killed",
    "stolen, a worker killed that keeps a batch",
    "stolen, a worker killed, which is an error",
    "stolen, ended at any time",
    "a worker killed, any order, which remembers",
    "ragged chunks, lent",
    "ragged chunks, stolen",
    "a window, a worker killed",
)

# mutant -> what it runs in, and what it violates
CAUGHT: dict[str, tuple[dict[str, Any], str]] = {
    "lowest() in a single pass": (ALONE | {"in_order": False}, ONCE),
    "lowest() looks at what is taken too": (ALONE | {"in_order": False}, ONCE),
    "walk passes what is not open yet": (PLAIN, NO_DEADLOCK),
    "walk stops at what is not its own": (PLAIN, NO_DEADLOCK),
    "claim ignores the owner": (PLAIN, OWN),
    "look ahead reads what is open to all": (STOLEN | {"looks_ahead": True}, TASKS),
    "claim by store": (STOLEN, ONE_WRITER),
    "claim does not record who": (STOLEN, NO_DEADLOCK),
    "who has claimed is recorded when that is taken up": (SEVERAL_STOLEN | {"workers": 1}, NO_DEADLOCK),
    "what was put aside last is taken up first": (SEVERAL | {"kills": 1, "remember": True}, DRAWN),
    "a worker sleeps over what it has put aside": (SEVERAL, NO_DEADLOCK),
    "a dismissed worker leaves what it has put aside": (DISMISSED | {"in_flight": 2}, DUTY),
    # publish names the worker and not the process, so its CAS is no help once the successor has claimed the same
    "recover by timeout": (KILLED_ALONE, ONE_WRITER),
    "recover by timeout, publish by store": (KILLED_ALONE, ONE_WRITER),
    "check, then announce": (PLAIN, NO_DEADLOCK),
    "futex does not compare": (PLAIN, NO_DEADLOCK),
    # open() would wake who does not sleep, and nobody else
    "a worker that rises leaves its bit": (STOLEN, NO_IDLER),
    "a worker that rises clears its bit after its claim": (STOLEN, NO_IDLER),
    "toll trusts the sleeper bit": (KILLED, NO_DEADLOCK),
    "wake before the bit is cleared": (PLAIN, NO_DEADLOCK),
    # the one ring that a recovery needs: the dead may not have rung, and the successor looks before it sleeps
    "alarm does not toll": (KILLED_ALONE, NO_DEADLOCK),
    "alarm is cleared after the look": (KILLED_TWICE, NO_DEADLOCK),
    "alarm before the death is noted": (KILLED_ALONE, NO_DEADLOCK),
    "alarm is not looked at again": (KILLED_ALONE, NO_DEADLOCK),
    "death is forgotten after the successor's start": (KILLED_TWICE, NO_DEADLOCK),
    "respawn before revoke": (KILLED_ALONE, NO_DEADLOCK),
    "no revoke": (KILLED_ALONE, NO_DEADLOCK),
    "one claim of a dead worker is revoked": (SEVERAL | {"kills": 1}, NO_DEADLOCK),
    "revoke opens to the successor alone": (STOLEN_ONE, NO_IDLER),
    "revocations are not counted": (STOLEN_ONE, NO_IDLER),
    "revocations are counted too early": (STOLEN_ONE, NO_IDLER),
    "revocations are not looked at again": (STOLEN_ONE, NO_IDLER),
    "revocations do not toll": (STOLEN_ONE, NO_IDLER),
    "revocations wake one": (STOLEN_ONE, NO_IDLER),
    "rewind by one": (STOLEN_KILLED, NO_IDLER),
    "rewind wraps around": (STOLEN_ONE, NO_IDLER),
    "new incarnation starts at next_open": (KILLED_ALONE, NO_DEADLOCK),
    "new incarnation starts behind its first claim": (KILLED_ALONE, NO_DEADLOCK),
    "open names the incarnation": (KILLED_ALONE, NO_DEADLOCK),
    "remember overwrites what is older": (REMEMBERED, DRAWN),
    "there is one memory": (REMEMBERED, DRAWN),
    "remember behind publish": (REMEMBERED, DRAWN),
    "remember vouches first": (REMEMBERED, VOUCHED),
    "remember does not forget first": (REMEMBERED, VOUCHED),
    "recall takes what is latest": (REMEMBERED, DRAWN),
    "nothing is recalled": (REMEMBERED, DRAWN),
    "open before the task is written": (PLAIN, BOOKS),
    "open rings one bell": (STOLEN, NO_IDLER),
    "a payload a chunk": (CHUNKS, FREE_PAYLOAD),
    "a batch is opened where one chunk has room": (RAGGED, ENTRY),
    "a batch is ready when its first chunk is": (CHUNKS, WHOLE),
    "a batch is ready when its last chunk is": (CHUNKS, WHOLE),
    "chunks seen are remembered for the next batch": (CHUNKS, WHOLE),
    "entries of a batch are freed one by one": ({"chunks": (2, 1)}, ENTRY),
    "a window is opened where its first entry is free": ({"entries": 2, "windows": ((0, 1), (3, 2))}, ENTRY),
    "the chunks of a batch follow its first": (WINDOW, WHOLE),
    "the batches of a window are taken by their first sequences": (WINDOWS, IN_ORDER),
    "a successor walks from what is taken next": ({"entries": 2, "windows": ((1, 0),), "kills": 1}, NO_DEADLOCK),
    "every chunk fills the first row": (CHUNKS, ONE_WRITER),
    "chunks are described in one place": (CHUNKS, WHOLE),
    "take frees the payload before the copy is complete": (PLAIN, READ),
    "lend without limit": (PLAIN, FREE_PAYLOAD),
    "a payload too few": (LENT, FREE_PAYLOAD),
    "a payload in flight gives its pages back": (GIVING_BACK, WHOLE),
    "a lent payload gives its pages back": (GIVING_BACK, READ),
    "a kept payload gives its pages back": (GIVING_BACK | {"keeps": 1}, KEPT_ALONE),
    "the last chunk says whether a batch is kept": (CHUNKS | {"keeps": 1}, KEPT_ALONE),
    "kept payload is used again": (ALONE | {"keeps": 1}, KEPT_ALONE),
    "kept payload is used again once the reserve is empty": (KEEPING, KEPT_ALONE),
    "kept payload is freed with its first keeper": (CHUNKS_KEPT, KEPT_ALONE),
    "kept payload of a living worker is freed": ({"entries": 1, "sequences": 3, "keeps": 1, "kills": 1}, KEPT_ALONE),
    "what the dead one kept is retired for the new one": (KEEPING, FREE_PAYLOAD),
    "retired payloads stay retired": (KEEPING, FREE_PAYLOAD),
    "pass_over stops at busy entries": (ANY_ORDER, ENTRY),
    "pass_over skips the entries of a window": (WINDOWS, NO_DEADLOCK),
    "publish does not ring": (PLAIN, NO_DEADLOCK),
    "publish rings before the word": (PLAIN, NO_DEADLOCK),
    "publish before the payload is whole": (PLAIN, WHOLE),
    "open does not ring": (PLAIN, NO_DEADLOCK),
    "dismissed is looked at after the tasks": (DISMISSED, DUTY),
    "dismiss does not ring": (DISMISSED, NO_DEADLOCK),
    "the death of a dismissed worker is no death": (DISMISSED | {"kills": 1, "respawn": False}, NO_DEADLOCK),
    "close does not alarm": (CLOSED, NO_DEADLOCK),
    "closing is looked at before the alarm is cleared": (CLOSED, NO_DEADLOCK),
    "stop does not toll": (PLAIN, NO_DEADLOCK),
    "stop is not looked at again": (PLAIN, NO_DEADLOCK),
    "stop is looked at before sleeping only": (PLAIN, TERMINATION),
    "take what is ready though the order matters": (PLAIN, IN_ORDER),
}


class TestRing(ModelChecks):
    model = Ring
    sound = SOUND
    large = LARGE
    mutants = MUTANTS
    caught = CAUGHT
    promises = PROPERTIES
