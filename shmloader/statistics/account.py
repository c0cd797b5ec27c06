"""Adds up what all iterators of a loader measure, since the start, the epoch or the last call of stats().
It also names loaders for metrics and `shmloader top`, and refuses a second trace while one is recorded.

NOTE [ Accounts ]

    1. An account belongs to a loader, but is not an attribute of it, because frameworks copy a loader's __dict__ and
       may make another loader of it.  It outlives the loader's iterators, and adds up what all of them measure.
    2. Its figures only grow.  "Since the epoch" and "since the last call" are differences of two readings, histograms
       included.  So no reader resets the figures of another.
    3. Time inside next() and time between calls are measured where the user calls next(): in Steps for an iterator over
       a ring, in Prefetcher if there is a prefetch thread, and around `_next_data` for torch's own iterators.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from shmloader.protocols.user_objects import ByIdentity
from shmloader.statistics.stats import Hot

if TYPE_CHECKING or sys.platform == "linux":  # other platforms have no extensions, so nothing is measured
    from shmloader.core.figures import SOURCE_WAIT, Figures
    from shmloader.core.ring import Meter, Turns
    from shmloader.system.stack_samples import Counts, SampleSheet

if TYPE_CHECKING:
    from shmloader.statistics.trace import Trace

Since = Literal["start", "epoch", "last"]
SINCE = ("start", "epoch", "last")
HOT = 10  # functions in stats().hot

_numbers = itertools.count(1)


class Account:
    """The account of one loader.

    Args:
        workers: How many workers the loader has.

    Attributes:
        meter: The counters that its iterators add to.
        nodes: The machine of each far worker, by its number, as far as it is known.
        note_nodes: What looks for them again, while an iterator has far workers.
        number: The loader's number among the measured loaders of this process, from 1.
    """

    def __init__(self, workers: int) -> None:
        self.meter = Meter(workers)
        self.nodes: dict[int, str] = {}
        self.note_nodes: Callable[[], Callable[[], None] | None] = lambda: None
        self.trace: Trace | None = None  # the latest
        self.iterator: weakref.ref[Any] | None = None  # the one whose epoch began last
        self.number = next(_numbers)
        self._since: dict[str, tuple[int, Figures]] = {}
        self._sheets: list[SampleSheet] = []  # of open rings
        self._counts, self._samples = Counts(), 0  # of closed rings
        for since in SINCE:
            self.mark(since)

    def mark(self, since: str) -> None:
        """Take a reading.  From now on figures(since) counts from it."""
        self._since[since] = time.monotonic_ns(), self.meter.now()

    def figures(self, since: Since) -> tuple[float, Figures]:
        """The seconds since a reading, and the growth of the figures since then."""
        if since not in SINCE:
            raise ValueError(f"since should be 'start', 'epoch' or 'last', but got since={since!r}")
        began, earlier = self._since[since]
        ended, now = time.monotonic_ns(), self.meter.now()
        if since == "last":  # not a second reading, because neither call would count a batch that comes between the two
            self._since[since] = ended, now
        figures = now.copy()
        figures.less(earlier)
        return (ended - began) / 1e9, figures

    def add_sheet(self, sheet: SampleSheet | None) -> None:
        """Add a sheet on which the workers of a ring count the functions that they are in."""
        if sheet is not None:
            self._sheets.append(sheet)

    def end_sheet(self, sheet: SampleSheet | None) -> None:
        """Keep the counts of a sheet that is about to be closed."""
        if sheet in self._sheets and sheet is not None:
            self._sheets.remove(sheet)
            if not sheet.closed:
                counts, samples = sheet.total()
                self._counts, self._samples = self._counts + counts, self._samples + samples

    def nodes_now(self) -> dict[int, str]:
        """The machine of each far worker, by its number; empty without far workers."""
        if (note := self.note_nodes()) is not None:
            note()
        return self.nodes

    def hot(self) -> tuple[Hot, ...] | None:
        """The functions in which workers spend their time; None without SHMLOADER_DETAIL=1."""
        counts, samples = self._counts.copy(), self._samples
        for sheet in list(self._sheets):
            with contextlib.suppress(OSError):  # another thread, such as that of metrics, may have closed it
                more, its_samples = sheet.total()
                counts, samples = counts + more, samples + its_samples
        if not self._sheets and not samples:
            return None
        return tuple(Hot(*place, count / samples) for place, count in counts.most_common(HOT))


_accounts: ByIdentity[Account] = ByIdentity()


def account_of(loader: Any) -> Account:
    """The account of this loader."""
    account = _accounts.get(loader)
    if account is None:
        account = _accounts.setdefault(loader, Account(getattr(loader, "num_workers", 0)))
    return account


def measured_loaders() -> list[tuple[str, Any]]:
    """All living loaders that have an account, each with a name."""
    return [(f"{label_of(loader).decode()}-{account.number}", loader) for loader, account in _accounts.items()]


def begun(loader: Any, make: Callable[[], Any]) -> Any:
    """Begin an epoch, and measure it.

    Args:
        loader: The loader.
        make: Makes the iterator, or begins its next epoch.
    """
    account = account_of(loader)
    account.mark("epoch")
    began = time.monotonic_ns()
    iterator = make()
    turns = turns_of(iterator)
    if turns is None:
        turns = around_next_data(iterator, Turns(account.meter))
    if turns is not None:
        turns.begin(time.monotonic_ns() - began)
    with contextlib.suppress(TypeError):  # an iterator of a user's class may be of any type
        account.iterator = weakref.ref(iterator)
    if account.trace is not None:
        account.trace.attach(iterator)
    return iterator


def traced(loader: Any, path: str | os.PathLike[str], batches: int) -> Trace:
    """Trace a loader from now on, with its present iterator.

    Raises:
        RuntimeError: An earlier trace of it is not written yet.
    """
    from shmloader.statistics.trace import Trace, sequences_of  # here, because few loaders are traced

    account = account_of(loader)
    if account.trace is not None and not account.trace.written:
        raise RuntimeError(
            f"a trace of this loader is being recorded, into {account.trace.path}. A loader records one at a time. "
            f"close() that one first, or take its {account.trace.batches} batches."
        )
    account.trace = Trace(path, batches, account.meter.log, label_of(loader).decode(), sequences_of(loader, batches))
    account.trace.nodes = account.nodes_now
    iterator = None if account.iterator is None else account.iterator()
    if iterator is not None:
        account.trace.attach(iterator)
    return account.trace


def close_trace(loader: Any) -> None:
    """Write the batches that the loader's trace has so far, if one is being recorded."""
    account = _accounts.get(loader)
    if account is not None and account.trace is not None:
        account.trace.close_or_warn()


def turns_of(iterator: Any) -> Turns | None:
    """The object that times the user's calls of next() on this iterator; None if there is none yet."""
    turns: Turns | None = vars(iterator).get("_turns") if hasattr(iterator, "__dict__") else None
    return turns


def turns_of_prefetcher(loader: Any, source: Any) -> Turns | None:
    """The object that times the user's calls, if a prefetch thread calls the source.  The source's times the thread."""
    if sys.platform != "linux":
        return None
    ring = turns_of(source)
    turns = Turns(account_of(loader).meter)
    if ring is not None:
        ring.kind = SOURCE_WAIT
        turns.pass_on_to(ring)
    return turns


def figures_of(loader: Any) -> Figures | None:
    """The figures of a loader, to which its iterators add; None if nothing is measured."""
    return account_of(loader).meter.figures if sys.platform == "linux" else None


def around_next_data(iterator: Any, turns: Turns) -> Turns | None:
    """Time the calls of one of torch's own iterators, whose __next__ calls `_next_data`; None if it has no such method.

    The method is looked up in the iterator's class, because a bound method would keep the iterator and its workers
    alive.
    """
    method = getattr(type(iterator), "_next_data", None)
    if method is None:
        return None
    weakly = weakref.ref(iterator)

    def next_data() -> Any:
        turns.asked()
        batch = method(weakly())
        turns.handed_out()
        return batch

    iterator._next_data = next_data
    iterator._turns = turns
    return turns


def label_of(loader: Any) -> bytes:
    """The name of a loader's ring for onlookers: its dataset's class, and the loader's class unless it is ours."""
    kind = type(loader).__name__
    name = type(loader.dataset).__name__
    return (name if kind == "DataLoader" else f"{kind}({name})").encode()


def wants_detail() -> bool:
    """Whether workers sample their stacks, by the environment."""
    return os.environ.get("SHMLOADER_DETAIL", "") not in ("", "0")
