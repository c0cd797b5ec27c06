"""How the loops of the patterns drive a loader.  Each gets `make`, which makes the loader, or another one like it.
A loop returns what it keeps, so that its memory is seen at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.multiprocessing as processes
from torch.utils.data import Subset

from bench.core._probe import touch_pages

Loop = Callable[[Any], Any]
Keep = Callable[[list[Any], Any], Any]  # what is kept so far, and a batch


def take(batches: Iterable[Any], keep: Keep | None = None, stop: int = 0) -> list[Any]:
    """Take batches, or the first ones; touch each page of the tensors at their top, and keep something of each."""
    kept: list[Any] = []
    for number, batch in enumerate(batches, 1):
        for part in batch if isinstance(batch, (list, tuple)) else (batch,):
            if type(part) is torch.Tensor and part.layout is torch.strided:
                touch_pages(part.data_ptr(), part.nbytes)
        if keep:
            keep(kept, batch)
        if number == stop:
            break
    return kept


def each(keep: Keep | None = None, epochs: int = 1, stop: int = 0) -> Loop:
    def loop(make: Any) -> Any:
        loader = make()
        return [take(loader, keep, stop) for _ in range(epochs)]

    return loop


def in_turns(loaders: int, order: list[int]) -> Loop:
    """An epoch of one of several loaders after the other."""

    def loop(make: Any) -> Any:
        made = [make() for _ in range(loaders)]
        return made, [take(made[which]) and None for which in order]

    return loop


def fold(make: Any, part: int) -> Any:
    """A loader of a fifth of the dataset."""
    whole = make().dataset
    return make(dataset=Subset(whole, range(part, len(whole), 5)))


def sent(make: Any, receive: Callable[[], Any], send: Callable[[Any], None]) -> None:
    """Send each batch to another process."""
    taker = processes.Process(target=lambda: take(iter(receive, None)))
    taker.start()
    take(make(), lambda _, batch: send(batch))
    send(None)
    taker.join()


def by_queue(make: Any) -> None:
    queue: Any = processes.Queue(4)
    sent(make, queue.get, queue.put)


def by_pipe(make: Any) -> None:
    here, there = processes.Pipe()
    sent(make, there.recv, here.send)
