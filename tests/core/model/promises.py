"""What the slot ring promises, and the faults that would break it: NOTE [ Slot ring model ] in ring_model.py."""

from __future__ import annotations

ONCE = "a sequence is delivered once, and each worker's in their order"
IN_ORDER = "sequences are delivered in order"
WHOLE = "what is delivered is what was written for its sequences"
READ = "a payload is not written while the trainer or a lease reads it"
ONE_WRITER = "a row of a payload has one writer at most"
KEPT_ALONE = "a payload that a living worker keeps is left alone"
BOOKS = "no payload is lost or used twice, and all sequences that name it are of one batch"
OWN = "a sequence is filled by the worker it was opened for"
DUTY = "a dismissed worker does what is open for it before it leaves"
DRAWN = "a batch draws on from the last batch that its worker, or a process before it, has published"
VOUCHED = "remembered states are whole if a word vouches for them"
TASKS = "a task is read only while it is open for its reader alone"
ENTRY = "an entry has one sequence at a time"
FREE_PAYLOAD = "open() finds a free payload"
NO_IDLER = "no worker sleeps while a sequence is open to all and the others are busy"
NO_DEADLOCK = "every sleeper is woken"
TERMINATION = "the end can be reached from every state"
PROPERTIES = (
    ONCE, IN_ORDER, WHOLE, READ, ONE_WRITER, KEPT_ALONE, BOOKS, OWN, DUTY, DRAWN, VOUCHED, TASKS, ENTRY, FREE_PAYLOAD,
    NO_IDLER, NO_DEADLOCK, TERMINATION,
)  # fmt: skip


class Violated(Exception):
    """A property does not hold; its first argument is which."""


# Faults that somebody could build in; each must break a property.
MUTANTS = (
    "lowest() in a single pass",
    "lowest() looks at what is taken too",
    "walk passes what is not open yet",
    "walk stops at what is not its own",
    "claim ignores the owner",
    "look ahead reads what is open to all",
    "claim by store",
    "claim does not record who",
    "who has claimed is recorded when that is taken up",
    "what was put aside last is taken up first",
    "a worker sleeps over what it has put aside",
    "a dismissed worker leaves what it has put aside",
    "recover by timeout",
    "recover by timeout, publish by store",
    "check, then announce",
    "futex does not compare",
    "a worker that rises leaves its bit",
    "a worker that rises clears its bit after its claim",
    "toll trusts the sleeper bit",
    "wake before the bit is cleared",
    "alarm does not toll",
    "alarm is cleared after the look",
    "alarm before the death is noted",
    "alarm is not looked at again",
    "death is forgotten after the successor's start",
    "respawn before revoke",
    "no revoke",
    "one claim of a dead worker is revoked",
    "revoke opens to the successor alone",
    "revocations are not counted",
    "revocations are counted too early",
    "revocations are not looked at again",
    "revocations do not toll",
    "revocations wake one",
    "rewind by one",
    "rewind wraps around",
    "new incarnation starts at next_open",
    "new incarnation starts behind its first claim",
    "open names the incarnation",
    "remember overwrites what is older",
    "there is one memory",
    "remember behind publish",
    "remember vouches first",
    "remember does not forget first",
    "recall takes what is latest",
    "nothing is recalled",
    "open before the task is written",
    "open rings one bell",
    "a payload a chunk",
    "a batch is opened where one chunk has room",
    "a batch is ready when its first chunk is",
    "a batch is ready when its last chunk is",
    "chunks seen are remembered for the next batch",
    "entries of a batch are freed one by one",
    "a window is opened where its first entry is free",
    "the chunks of a batch follow its first",
    "the batches of a window are taken by their first sequences",
    "a successor walks from what is taken next",
    "every chunk fills the first row",
    "chunks are described in one place",
    "take frees the payload before the copy is complete",
    "lend without limit",
    "a payload too few",
    "a payload in flight gives its pages back",
    "a lent payload gives its pages back",
    "a kept payload gives its pages back",
    "the last chunk says whether a batch is kept",
    "kept payload is used again",
    "kept payload is used again once the reserve is empty",
    "kept payload is freed with its first keeper",
    "kept payload of a living worker is freed",
    "what the dead one kept is retired for the new one",
    "retired payloads stay retired",
    "pass_over stops at busy entries",
    "pass_over skips the entries of a window",
    "publish does not ring",
    "publish rings before the word",
    "publish before the payload is whole",
    "open does not ring",
    "dismissed is looked at after the tasks",
    "dismiss does not ring",
    "the death of a dismissed worker is no death",
    "stop does not toll",
    "close does not alarm",
    "closing is looked at before the alarm is cleared",
    "stop is not looked at again",
    "stop is looked at before sleeping only",
    "take what is ready though the order matters",
)
