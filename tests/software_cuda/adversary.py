"""Copies batches from a loader in every allowed way, drawn for each batch, and keeps the copies.

A batch is copied on any stream, by this thread or another one, once or twice, and dropped at once, on the stream, on
another stream, some batches later, by the other thread when it comes to it, or by the collector.
"""

from __future__ import annotations

import contextlib
import queue
import random
import threading
from collections.abc import Callable
from typing import Any

import torch
from software_cuda import runtime
from software_cuda.loops import STREAMS, captured, copied, external, external_again

ON = [external_again if stream is external else stream for stream in STREAMS]
SPIN = 4_000_000  # cycles that a stream is busy with before a batch on the device is read, at most: 2 ms
Job = Callable[[], None]


class Helper:
    """Another thread, on a stream of its own, which copies and drops."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._live, name="helper")
        self._thread.start()

    def _live(self) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            while (job := self._jobs.get()) is not None:
                try:
                    job()
                except BaseException as error:
                    self._errors.append(error)
                del job  # with the batch that it has

    def do(self, job: Job) -> None:
        """Have it do this some time."""
        self._jobs.put(job)

    def settle(self) -> None:
        """Wait until it has done all that it was given."""
        done = threading.Event()
        self._jobs.put(done.set)
        done.wait()

    def end(self) -> None:
        self._jobs.put(None)
        self._thread.join()
        for error in self._errors:
            raise error


class Adversary:
    """Consumes batches, and looks at every byte of its copies in the end.

    Args:
        drawn: Where all that it does is drawn from.
        rows: Of a batch; 0 where a batch is one sample.
    """

    def __init__(self, drawn: random.Random, rows: int) -> None:
        self._drawn = drawn
        self._rows = rows
        self._helper = Helper()
        self._copies: list[tuple[int, Any]] = []  # the number of each one's batch
        self._kept: list[tuple[int, Any]] = []  # until when
        self.batches = 0

    def next(self, iterator: Any, number: int) -> None:
        """Ask for a batch, on a stream or not, and do something with it; StopIteration as the iterator raises it."""
        around = self._drawn.choice(ON) if self._drawn.random() < 0.3 else contextlib.nullcontext
        with around():
            batch = next(iterator)
            self.batches += 1
            tensors = batch.values() if isinstance(batch, dict) else [batch]
            if next(iter(tensors)).is_cuda:
                self._use(tensors, number)
            else:
                self._copy(tensors, number)
        self._drop(batch, number)

    # ------------------------------------------------------------------------------------------------------- copies

    def _use(self, tensors: Any, number: int) -> None:
        """Read a batch on the device, late, on the stream that it was asked for on, and write over it."""
        for each in tensors:
            torch.cuda._sleep(self._drawn.randrange(1, SPIN))
            here = torch.empty(each.shape, dtype=each.dtype, pin_memory=True).copy_(each, non_blocking=True)
            self._copies.append((number, here))
            each.fill_(-1)

    def _copy(self, tensors: Any, number: int) -> None:
        for tensor in tensors:
            assert tensor.is_pinned()
            for _ in range(self._drawn.choice((1, 1, 2))):
                stream = self._drawn.choice(ON)
                if self._drawn.random() < 0.25:
                    self._helper.do(lambda tensor=tensor, stream=stream: self._copy_on(stream, tensor, number))
                else:
                    self._copy_on(stream, tensor, number)

    def _copy_on(self, stream: Any, tensor: torch.Tensor, number: int) -> None:
        with stream():
            self._copies.append((number, copied(tensor)))
            if number % 5 == 0:
                torch.cuda.default_stream().wait_stream(torch.cuda.current_stream())

    # -------------------------------------------------------------------------------------------------------- drops

    def _drop(self, batch: Any, number: int) -> None:
        how = self._drawn.randrange(8)
        if how == 0:
            with self._drawn.choice(ON)():
                del batch
        elif how == 1:
            self._helper.do(lambda: id(batch))
        elif how == 2:
            self._kept.append((number + self._drawn.randrange(1, 30), batch))
        elif how == 3:  # as enumerate() does
            self._kept.append((number + 1, batch))
        elif how == 4:
            cycle = [batch]
            cycle.append(cycle)
        self._kept = [(until, held) for until, held in self._kept if until > number]

    # -------------------------------------------------------------------------------------------------------- others

    def capture(self, iterator: Any) -> int:
        """Capture a graph, in the mode that forgives least, and ask for a batch meanwhile; how many were given."""
        self._helper.settle()  # torch itself, where it copies in another thread, may break a capture
        # On a stream that nobody copies on: where a tensor of torch's own page-locked memory dies while a stream that
        # it was copied on is captured, torch has an event in the capture, and asks it.
        stream = captured()
        static = torch.ones(64, dtype=torch.int64, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="global"):
            given = len([next(iterator, None)])
            out = static * 2 + 1
        graph.replay()
        assert int(out.sum()) == 3 * 64
        return given

    def changed(self) -> int:
        """How many copies are not what they should be.  It lets go of all batches."""
        self._helper.end()
        self._kept.clear()
        torch.cuda.synchronize()
        return sum(not self._is_right(number, copy) for number, copy in self._copies)

    def _is_right(self, number: int, copy: torch.Tensor) -> bool:
        here = copy.cpu()
        if not self._rows:
            return bool((here == number).all())
        first = number * self._rows
        return bool((here.flatten(1) == torch.arange(first, first + len(here)).unsqueeze(1)).all())


def left() -> dict[str, int]:
    """What is registered, or under way, or was forbidden; nothing of a real device is known."""
    return {
        "registered": runtime.registered(),
        "copies under way": runtime.under_way(),
        **{name: runtime.count(name) for name in ("violations", "unknown", "missing")},
    }
