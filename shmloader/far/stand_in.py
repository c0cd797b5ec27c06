"""A stand-in: a process on the trainer's machine that is a worker of the ring, and has a far worker do the work.
It asks for `in_flight` batches at once, and ends if its far worker is lost.

NOTE [ Far workers ]

    1. A far worker is a process on another machine that has the dataset and makes batches.  Its stand-in claims
       sequences as any worker does, sends the indices, the seed and the epoch of each sequence, receives the batch
       straight into the slot, and publishes.  To the ring, a stand-in is a worker, so order, revocation, replacement
       and shutdown need no code of their own.
    2. The far end runs the same code as a local worker (worker/loop.py), over a ring of its own with one worker
       (far/maker.py).  So it collates, seeds and fails in the same way.  An offset in its slot is the same offset in
       our slot.  So the description of a batch travels unchanged, and nothing is pickled that a local worker would not
       pickle.  The system that starts far workers (Ray) sends them the dataset, the collate function and worker_init_fn
       before the work begins: `Workers._put` in ray/workers.py.
    3. The far worker connects to the stand-in's door (a listening socket, door.py), and not the other way round.  The
       port stays the same when a stand-in or a far worker is replaced, so neither has to learn a new address.
    4. If the connection ends, the stand-in ends too.  The reasons are: the far worker died, its machine is gone, it was
       silent for `heartbeat` seconds, or it sent bytes that no far worker sends.  Then the kernel reports the death of
       a worker, and `on_worker_death` decides as for a local worker.  With "respawn", the sequences that the stand-in
       held are opened again, and another stand-in waits at the door.  A stand-in without a far worker claims nothing,
       so with work stealing nobody waits for this stand-in.  Ray restarts the actor (`max_restarts` in ray/workers.py).
    5. Without stealing and without sample_seeds, a worker is seeded once, and each of its batches continues its random
       numbers.  So if dead workers are replaced, a far worker sends its random states with each batch, and the stand-in
       writes them into the ring, as a local worker does.  The next stand-in reads them there, and sends them with its
       first request.
    6. A stand-in asks its far worker for `in_flight` batches at once.  So the far worker need not wait for the next
       request while a batch travels.  The stand-in claims sequences one by one, as long as the ring has open ones, and
       publishes them in the order of the claims.  It sleeps on the ring only when it expects no batch from the far
       worker.  The far worker reads no request while it makes a batch, nor while it waits until the previous batch has
       been sent.  So all requests that it has not read must fit into what the kernel holds for a connection.  If a
       request does not fit, the stand-in first receives the batches of all earlier requests, and then sends it.
       Otherwise both ends might wait for the other one to read.
    7. Each beat of a far worker (see 8) names the batch that it makes.  A death counts against the batch in the last
       beat, or against none if the far worker had begun none.  It does not count against batches that the stand-in has
       only claimed.  Otherwise, if a node is gone, several of its stand-ins might claim the same batch, one after
       another, and this batch would seem to have killed several workers.
    8. The kernel of this machine cannot tell whether a silent far worker is dead or slow.  So the far worker sends a
       beat each second while it makes a batch, from a thread.  C code that keeps the GIL for `heartbeat` seconds counts
       as silence.
    9. Both ends prove that they know the secret before either parses a byte (link.py), and a batch's head is checked
       against the slot before its bytes are received (frames.py).  The trainer unpickles the plan of the batch (the
       pickled description of its structure) and its pickled objects, when it reads the batch.  We trust both as much as
       Ray's own messages, which are pickled too.
"""

from __future__ import annotations

import contextlib
import gc
import pickle
import struct
from collections import deque
from itertools import islice
from typing import Any

from shmloader.batch import objects
from shmloader.batch.chunk_walk import walk_chunk
from shmloader.core.batch_tree import Kept
from shmloader.core.batch_writer import Writer
from shmloader.core.process import outlive_signals
from shmloader.core.ring import FILLED
from shmloader.core.worker import Claims, WorkerSide
from shmloader.far.door import Door
from shmloader.far.frames import (
    ANSWER,
    ASK,
    BEAT,
    LONGEST_WORDS,
    MOST_KEPT,
    NO_EPOCH,
    READY,
    Answer,
    Ask,
    Garbage,
    check,
)
from shmloader.far.link import Gone, Leave, Link
from shmloader.private import of_torch
from shmloader.ring.segment import MOST_RESERVED, Segment
from shmloader.system.call_stacks import StackMemory
from shmloader.system.parents_death import begin
from shmloader.worker.loop import write_instead

MOST_UNREAD = 1 << 16  # bytes of requests that the kernel holds, on either machine, until the far worker reads them
LOST = 79  # the exit code of a stand-in whose far worker is lost


def stand_in(
    segment: Segment,
    spin: bool,
    worker_id: int,
    first: int,
    stacks: StackMemory | None,
    outlives: bool,
    door: Door,
) -> None:
    """Be worker number `worker_id`, whose work a far worker does.

    Args:
        segment, spin, worker_id, first, stacks, outlives: As in worker/loop.py.
        door: Where the far worker knocks.
    """
    begin(segment.trainer, outlives)
    of_torch.set_worker_signal_handlers()
    if outlives:
        outlive_signals(segment.trainer)  # again, because torch has set a handler for SIGTERM
    gc.freeze()
    of_torch.set_thread_name("pt_data_worker")
    if stacks is not None:
        stacks.tell()
    ring = WorkerSide(segment, spin, worker_id, first)
    with contextlib.suppress(KeyboardInterrupt, Leave):  # the trainer raises the first, and asks for the second
        _StandIn(segment, ring, door).run()


class _StandIn:
    """What a stand-in does.

    Args:
        segment, ring: The memory, and this worker's side of it.
        door: Where the far worker knocks.
    """

    def __init__(self, segment: Segment, ring: WorkerSide, door: Door) -> None:
        self._ring = ring
        self._door = door
        self._remembers = segment.geometry.memory_stride > 0
        self._taking_over = self._remembers
        self._plans = Kept(MOST_KEPT)  # by number: those that the far worker has sent
        self._begun: int | None = None  # the sequence that the far worker began last
        self._where = f"in the stand-in of far worker {ring.me}"
        self._writer = Writer(ring, objects, walk_chunk)  # only for errors of this process

    def run(self) -> None:
        """Have all tasks done, until the ring is closed."""
        link = self._door.admit()
        if link is None:
            return
        with link:
            try:
                self._be_ready(link)
                self._make_batches(link)
            except (Gone, Garbage) as why:
                self._lose(why)

    def _lose(self, why: Exception) -> None:
        """End, because the far worker is lost.  The watching thread sees it, and it is a death like any other."""
        what = f"it sent what no far worker sends: {why}" if isinstance(why, Garbage) else str(why)
        self._door.write_note(f"Far worker {self._ring.me} is lost: {what}.", self._begun)
        raise SystemExit(LOST) from None

    def _make_batches(self, link: Link) -> None:
        ring = self._ring
        claims = Claims(ring)
        sizes: deque[int] = deque()  # bytes of each request
        late: list[bytes] = []  # the request for the last of them, if it is not sent yet
        while True:
            if late and len(claims) == 1:
                link.send(*late)
                late = []
            while not late and len(claims) < self._door.in_flight:
                written = claims.claim_at_once() if claims else ring.claim()
                if written is None:
                    break
                request = self._request(written)
                sizes.append(sum(map(len, request)))
                if claims and sum(islice(sizes, 1, None)) > MOST_UNREAD:  # it makes the first, so it has read that
                    late = request
                else:
                    link.send(*request)
                claims.put_aside()
            if not claims:
                return
            claims.take_up()
            sizes.popleft()
            self._receive(link)
            ring.publish(FILLED)

    def _be_ready(self, link: Link) -> None:
        """Wait until the far worker has its dataset."""
        answer = self._head(link)
        if answer.kind != READY or answer.plan > LONGEST_WORDS:
            raise Garbage(f"an answer of kind {answer.kind}, with {answer.plan} bytes, before it was ready")
        self._begun = None  # its signs of life until now were about its dataset
        self._door.write_node(bytes(link.receive(answer.plan)))

    def _head(self, link: Link) -> Answer:
        """The head of the next answer that is no mere sign of life."""
        while True:
            answer = Answer(*ANSWER.unpack(link.receive(ANSWER.size)))
            if answer.kind != BEAT:
                return answer
            self._begun = answer.sequence

    def _request(self, written: Any) -> list[bytes]:
        """What asks the far worker for what was claimed."""
        ring = self._ring
        task = pickle.dumps(written, pickle.HIGHEST_PROTOCOL)
        states = b""
        if self._taking_over:
            self._taking_over = False
            states = ring.recall() or b""
        dataset_epoch = ring.dataset_epoch
        epoch = NO_EPOCH if dataset_epoch is None else dataset_epoch
        ask = Ask(
            ring.sequence, ring.seed, ring.epoch, ring.epoch_seed, epoch, len(task), len(states), self._remembers,
        )  # fmt: skip
        return [ASK.pack(*ask), task, states]

    def _receive(self, link: Link) -> None:
        """Receive the batch that was taken up, into its slot."""
        ring = self._ring
        answer = self._head(link)
        check(answer, ring.sequence, MOST_RESERVED)  # a slot may have less room, which is an error of this batch alone
        ring.fetched()
        meta = bytes(link.receive(answer.words))
        beside = link.receive(answer.plan + answer.report + answer.states)
        plan, report = bytes(beside[: answer.plan]), bytes(beside[answer.plan : answer.plan + answer.report])
        words = struct.unpack(f"{len(meta) // 8}q", meta)
        plan = self._plan(words[0], plan)
        try:
            ring.allocate(answer.used)
            ring.describe(list(words), plan)
            if answer.objects_size:
                ring.point_to_objects(answer.objects_at, answer.objects_size)
            if report:
                ring.report(report)
        except MemoryError:  # as if it had been made here: an error in its place
            self._skip(link, answer.used)
            ring.rewind()
            self._writer.begin(0)
            write_instead(self._writer, ring, None, self._where)
        else:
            ring.map_written(0, answer.used)
            with memoryview(ring.buffer()) as whole, whole[: answer.used] as view:
                link.receive_into(view)
        if self._remembers:
            ring.remember(bytes(beside[answer.plan + answer.report :]))

    def _plan(self, number: int, sent: bytes) -> bytes:
        """The plan with this number: the one that came with the batch, or else one that came before."""
        plan: bytes | None = sent or self._plans.get(number)
        if plan is None:
            raise Garbage(f"a batch with plan {number}, which it has not sent")
        if sent:  # as the far end does
            self._plans.keep(number, sent, len(sent))
        return plan

    def _skip(self, link: Link, count: int) -> None:
        """Receive bytes for which there is no memory."""
        while count:
            count -= len(link.receive(min(count, 1 << 20)))
