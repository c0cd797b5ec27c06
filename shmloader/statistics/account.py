"""What is measured of each loader: by its iterators, since it was made.

NOTE [ Accounts ]

    1. An account is of a loader, but not in it: frameworks copy a loader's __dict__, and may make another one of it.
       It outlives the loader's iterators, and adds up what all of them measure.
    2. Its figures only grow.  "Since the epoch" and "since the last call" are two of them at different times, the
       earlier one taken from the later one, histograms included.  So whoever looks resets nothing for anybody else.
    3. Whose turn it is (the user's, or ours in next()) is counted where the user calls next(): in Steps for an iterator
       over a ring, in Ahead where a thread is ahead of the user, around `_next_data` for iterators of torch's own.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING or sys.platform == "linux":  # elsewhere there are no extensions, and nothing is measured
    from shmloader._figures import SOURCE_WAIT, Figures
    from shmloader._turns import Meter, Turns

Since = Literal["start", "epoch", "last"]


class Account:
    """One loader's.

    Args:
        workers: How many it has.

    Attributes:
        meter: What its iterators add to.
    """

    def __init__(self, workers: int) -> None:
        self.meter = Meter(workers)
        self._since: dict[str, tuple[int, Figures]] = {}
        for since in ("start", "epoch", "last"):
            self.mark(since)

    def mark(self, since: str) -> None:
        """From now on, "since then" is since now."""
        self._since[since] = time.monotonic_ns(), self.meter.now()

    def figures(self, since: Since) -> tuple[float, Figures]:
        """How many seconds ago that was, and what came since then."""
        if since not in self._since:
            raise ValueError(f"since should be 'start', 'epoch' or 'last', but got since={since!r}")
        began, earlier = self._since[since]
        ended, figures = time.monotonic_ns(), self.meter.now()
        figures.less(earlier)
        if since == "last":
            self.mark(since)
        return (ended - began) / 1e9, figures


_accounts: weakref.WeakKeyDictionary[Any, Account] = weakref.WeakKeyDictionary()


def account_of(loader: Any) -> Account:
    """The account of this loader."""
    account = _accounts.get(loader)
    if account is None:
        account = _accounts.setdefault(loader, Account(loader.num_workers))
    return account


def begun(loader: Any, make: Callable[[], Any]) -> Any:
    """An iterator whose epoch begins, measured.

    Args:
        loader: Whose it is.
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
    return iterator


def turns_of(iterator: Any) -> Turns | None:
    """What counts the turns of the user with this iterator; None if nothing does yet."""
    turns: Turns | None = vars(iterator).get("_turns") if hasattr(iterator, "__dict__") else None
    return turns


def turns_ahead(loader: Any, source: Any) -> Turns | None:
    """What counts the user's turns where a thread is ahead; what counts at the source is then that thread's."""
    if sys.platform != "linux":
        return None
    ring = turns_of(source)
    turns = Turns(account_of(loader).meter)
    if ring is not None:
        ring.kind = SOURCE_WAIT
        turns.tell(ring)
    return turns


def around_next_data(iterator: Any, turns: Turns) -> Turns | None:
    """Count the turns with an iterator of torch's own, whose __next__ calls `_next_data`; None if it has none.

    The iterator's own method is found by its class, for a bound one would keep it alive, and its workers with it.
    """
    method = getattr(type(iterator), "_next_data", None)
    if method is None:
        return None
    mine = weakref.ref(iterator)

    def next_data() -> Any:
        turns.asked()
        batch = method(mine())
        turns.handed_out()
        return batch

    iterator._next_data = next_data
    iterator._turns = turns
    return turns


def label_of(loader: Any) -> bytes:
    """What a loader's ring is called to who looks on: its dataset's class, and the loader's unless that is ours."""
    kind = type(loader).__name__
    of = type(loader.dataset).__name__
    return (of if kind == "DataLoader" else f"{kind}({of})").encode()
