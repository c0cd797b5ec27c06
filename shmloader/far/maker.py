"""The far end: makes batches as a local worker does, over a ring of its own with one worker, and sends them.
It sends beats, and limits how long it tries to reach the trainer, or makes a batch that nobody awaits.

The ring is a private one: this process opens a sequence, makes it by the worker's own code, takes it, has a thread send
what it holds, and opens the next one meanwhile.  A batch is laid out as in the trainer's ring.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from shmloader.batch import objects
from shmloader.batch.exceptions import caught
from shmloader.core.batch_tree import Kept
from shmloader.core.ring import KEPT
from shmloader.core.trainer import EpochCounts, TrainerSide
from shmloader.core.worker import WorkerSide
from shmloader.far.frames import (
    ANSWER,
    ASK,
    BATCH,
    LONGEST_STATES,
    LONGEST_WORDS,
    MOST_KEPT,
    NO_EPOCH,
    READY,
    Answer,
    Ask,
    Garbage,
    beat,
)
from shmloader.far.link import GREETING, NONCE, PROOF, Gone, Link, far_proof, is_proof, near_proof, nonce
from shmloader.far_workers import Ticket
from shmloader.private import of_torch
from shmloader.private.of_torch import default_collate_fn_map
from shmloader.ring.segment import Segment
from shmloader.ring.tasks import read_task
from shmloader.worker import random_states
from shmloader.worker.loop import Worker

BEAT = 1.0  # seconds between two signs of life
GRACE = 2.0  # seconds that a sample may go on when nobody waits for it any more
UNREACHABLE = 60.0  # seconds for which the trainer's machine may not be reached
AGAIN = 0.1  # seconds until it knocks again
PROOF_TIME = 30.0  # seconds that a stand-in has for its proof, once it has greeted

Load = Callable[[], dict[str, Any]]


class Maker:
    """Makes batches with one dataset, as worker number `me` of `workers`.

    Args:
        load: Gives the worker's arguments (worker/loop.py).  What it raises comes in place of each batch.
        me: The worker's number.
        workers: How many there are.

    Attributes:
        is_kept: Whether the user's code keeps a part of the batch that was made last.  Then sent() must be called
            before another one is made.
    """

    def __init__(self, load: Load, me: int, workers: int) -> None:
        self._entries = dict(default_collate_fn_map)
        self._segment = Segment(workers, 2, 2, 1, "memfd", None, remember=False)
        self.ring = TrainerSide(self._segment, False, 1, True, objects.dump_whole)
        self._segment.format(self.ring, f"far worker {me} of {workers}".encode())  # for `shmloader top` on its machine
        self._side = WorkerSide(self._segment, False, me, 0)
        self._me = me
        self._epoch = -1
        self._sent = Kept(MOST_KEPT)  # numbers of plans that the stand-in keeps
        self._batched = True
        self.is_kept = False
        try:
            arguments = load()
            self._batched = arguments["auto_collation"]
        except Exception:
            error = caught(f"in DataLoader worker process {me}")
            self._worker = Worker.that_cannot_begin(self._segment, self._side, error)
        else:
            self._worker = Worker(self._segment, self._side, **arguments)

    def make(self, ask: Ask, task: Any, states: bytes) -> list[Any]:
        """Make a batch.

        Args:
            ask: What was asked for.
            task: Its indices, as WorkerSide.claim() gave them to the stand-in.
            states: Random states from which to go on; empty: go on as it is.

        Returns:
            What to send, in parts.  The last one holds the batch's slot, so one batch may be made before this one is
            dropped, and not two.
        """
        ring = self.ring
        if states:
            random_states.restore(states)
        if ask.epoch != self._epoch:
            self._begin(ask)
        ring.current.dataset_has(_number_in(ask))
        ring.open(self._me, read_task(task), ask.seed)
        self._worker.make(self._side.claim())
        lease = ring.lend()
        meta = lease.meta()
        number = int.from_bytes(meta[:8], "little", signed=True)
        plan = b"" if self._sent.get(number) else lease.plan()
        if plan:
            self._sent.keep(number, True, len(plan))
        objects_at, objects_size = lease.objects(0)
        report = lease.reports()[0] if lease.reported else b""
        after = random_states.states() if ask.wants_states else b""
        view = memoryview(lease)
        self.is_kept = lease.outcome == KEPT
        if not self.is_kept:
            ring.took()
        answer = Answer(
            BATCH,
            ask.sequence,
            len(view),
            len(meta),
            len(plan),
            objects_at if objects_size else 0,  # of a batch without objects it is whatever it was before
            objects_size,
            len(report),
            len(after),
        )
        return [ANSWER.pack(*answer), meta, plan, report, after, view]

    def sent(self) -> None:
        """A batch that is kept was sent."""
        self.ring.took()

    def _begin(self, ask: Ask) -> None:
        """Begin the epoch that a request is of."""
        self.ring.begin_epoch(EpochCounts(), self._batched, _number_in(ask), ask.epoch_seed)
        self._epoch = ask.epoch

    def close(self) -> None:
        """End, and leave this process as another maker can use it."""
        self._worker.end()
        self.ring.close()
        self._segment.close()
        of_torch.set_worker_info(None)
        default_collate_fn_map.clear()
        default_collate_fn_map.update(self._entries)


def _number_in(ask: Ask) -> int | None:
    """The number that the trainer's dataset had when the index was drawn; None: none."""
    return None if ask.dataset_epoch == NO_EPOCH else ask.dataset_epoch


class _Voice:
    """Sends batches in a thread, and signs of life in another one while a batch is made.

    The second thread also ends the process if nobody waits for that batch any more.

    Args:
        link: The connection.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._sending = threading.Lock()
        self._making: int | None = 0  # the sequence that is being made; at first the dataset is loaded
        self._said: int | None = None  # the one that the last sign of life was about
        self._parts: list[Any] = []
        self._given = threading.Semaphore(0)
        self._free = threading.Semaphore(1)
        self._gone: Gone | None = None
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._beat, name="shmloader beats", daemon=True),
            threading.Thread(target=self._send_batches, name="shmloader sends", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def is_ready(self, node: bytes) -> None:
        """The dataset is loaded.  `node` is the name of this machine."""
        with self._sending:
            self._making = None
            self._link.send(ANSWER.pack(*Answer(READY, 0, 0, 0, len(node), 0, 0, 0, 0)), node)

    def begins(self, sequence: int) -> None:
        """A batch is being made from now on."""
        self._making = sequence
        self._say()

    def send(self, parts: list[Any]) -> None:
        """Have a batch sent, when the one before it was sent.

        Raises:
            Gone: The other end is gone.
        """
        self._making = None
        self.wait()
        self._free.acquire()
        self._parts = parts
        self._given.release()

    def wait(self) -> None:
        """Wait until all that was given to send() is sent.  Raises: see send()."""
        with self._free:
            pass
        if self._gone is not None:
            raise self._gone

    def _send_batches(self) -> None:
        while True:
            self._given.acquire()
            if self._over.is_set():
                return
            parts, self._parts = self._parts, []
            try:
                with self._sending:
                    self._link.send_without_end(*parts)
            except Exception as error:  # without its traceback, whose frames hold the slot
                self._gone = Gone(str(error))
            parts.clear()  # the slot is free before another batch is made
            self._free.release()
            self._say()  # what begins() could not say meanwhile

    def _say(self) -> None:
        """Give a sign of life about a batch that was begun, unless another thread sends something now."""
        while self._said != self._making and self._sending.acquire(blocking=False):
            try:
                self._said = making = self._making
                if making is not None:
                    with contextlib.suppress(Gone):  # the next look sees that it is hung up
                        self._link.send(beat(making))
            finally:
                self._sending.release()

    def _beat(self) -> None:
        hung_up_for = 0.0
        while not self._over.wait(BEAT):
            if self._making is None:
                hung_up_for = 0.0
                continue
            hung_up_for = hung_up_for + BEAT if self._link.is_hung_up() else 0.0
            if hung_up_for >= GRACE:
                _end_process()
            if not hung_up_for:
                self._said = None
                self._say()

    def end(self) -> None:
        """No more.  A batch that is being sent is given up."""
        self._over.set()
        self._link.hang_up()
        self._given.release()
        for thread in self._threads:
            thread.join()


def serve(ticket: Ticket, load: Load, node: str) -> None:
    """Make batches for one stand-in after another, until the trainer listens no more.

    Args:
        ticket: Whose far worker this is, and where to knock.
        load: Gives the arguments of the worker, as they were when the iterator was made.
        node: What the engine calls this machine.
    """
    while (link := _knock(ticket)) is not None:
        with link:
            voice = _Voice(link)
            try:
                _serve_one(link, voice, ticket, load, node)
            except Gone:
                pass  # another stand-in takes its place, or the loader is closed
            except SystemExit:  # the dataset's; a local worker would end by it, and the engine may not start this again
                _end_process()
            except Exception:  # a fault of ours: the engine's log has it, and the third one over a batch is an error
                traceback.print_exc()
            finally:
                voice.end()


def _serve_one(link: Link, voice: _Voice, ticket: Ticket, load: Load, node: str) -> None:
    me = os.getpid()
    maker = Maker(load, ticket.number, ticket.workers)
    try:
        voice.is_ready(node.encode())
        while True:
            ask = Ask(*ASK.unpack(link.receive(ASK.size)))
            if ask.task > LONGEST_WORDS or ask.states > LONGEST_STATES:
                raise Garbage(f"a request with a task of {ask.task} bytes and states of {ask.states}")
            voice.begins(ask.sequence)
            task = pickle.loads(link.receive(ask.task))
            voice.send(maker.make(ask, task, bytes(link.receive(ask.states))))
            if maker.is_kept:
                voice.wait()
                maker.sent()
    except BaseException as error:
        if os.getpid() != me:
            _end_child(error)
        raise
    finally:
        voice.end()
        maker.close()


def _end_child(error: BaseException) -> NoReturn:
    """End a process that the dataset forked, by its error, as a local worker's child ends.

    If it went on here, it would write into its parent's ring, knock at the door, and take the parent's place.
    """
    if not isinstance(error, SystemExit):
        traceback.print_exception(error)
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1)


def _knock(ticket: Ticket) -> Link | None:
    """A connection to the stand-in, in which both ends have proved who they are; None if the loader is closed."""
    until = time.monotonic() + UNREACHABLE
    while time.monotonic() < until:
        try:
            sock = socket.create_connection((ticket.host, ticket.port), timeout=UNREACHABLE)
        except ConnectionRefusedError:
            return None
        except OSError:
            time.sleep(AGAIN)
            continue
        link = Link(sock, None)
        if _is_greeted(link):
            until = time.monotonic() + UNREACHABLE
            if _is_stand_in(link, ticket):
                return link
        link.close()
        time.sleep(AGAIN)
    return None


def _is_greeted(link: Link) -> bool:
    """Wait, for as long as it takes, until a stand-in greets; false if the connection is closed instead."""
    try:
        return link.receive(len(GREETING)) == GREETING
    except Gone:
        return False


def _is_stand_in(link: Link, ticket: Ticket) -> bool:
    """Prove that this end knows the secret, and whether the other one does."""
    link.patience = PROOF_TIME
    try:
        near, far = bytes(link.receive(NONCE)), nonce()
        link.send(far, far_proof(ticket.secret, ticket.number, near, far))
        return is_proof(bytes(link.receive(PROOF)), near_proof(ticket.secret, ticket.number, near, far))
    except Gone:
        return False
    finally:
        link.patience = None


def _end_process() -> NoReturn:
    """End this process at once; the engine starts another one."""
    os._exit(1)
