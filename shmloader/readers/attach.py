"""`shmloader.attach(name)`: the batches of a loader that `shmloader serve` hosts, in any process of the same user."""

from __future__ import annotations

import pickle
import sys
import threading
from typing import TYPE_CHECKING, Any

from shmloader.system.cleanup import ClosedByWith

if TYPE_CHECKING:
    from shmloader.readers.reading import Reading


class Attached(ClosedByWith):
    """An iterable of the batches of a served loader; `attach()` makes one.

    Each `iter()` is an epoch of the server's; the first one may begin in mid-epoch.
    """

    def __init__(self, name: str, join: str, copy: bool) -> None:
        self.name = name
        self._join = join
        self._copy = copy
        self._reading: Reading | None = None
        self._state: bytes | None = None  # of a connection that has ended
        self._beginning = threading.RLock()  # threads that share this attach once

    def __reduce__(self) -> tuple[Any, ...]:
        return Attached, (self.name, self._join, self._copy)

    def __iter__(self) -> Reading:
        from shmloader.readers.reading import Reading

        with self._beginning:
            reading = self._reading
            if reading is None or reading.closed:
                self._keep_state()
                reading = self._reading = Reading(self.name, self._join, self._copy)
            else:
                reading.begin()
            return reading

    def __len__(self) -> int:
        """The batches of a whole epoch.

        Raises:
            TypeError: It is not known before the first iter(), or the server's loader has no length.
        """
        length = None if self._reading is None else self._reading.length
        if length is None:
            raise TypeError("The length of an epoch is not known. Call iter() first, and serve a loader with a length.")
        return length

    def state_dict(self) -> dict[str, Any]:
        """The state of the server's loader after the batch that was received last: for `shmloader serve --state`.

        `load_state_dict` of a `DataLoader` over the same dataset takes it, too.

        Raises:
            RuntimeError: iter() was not called yet; or the server's loader has no state, with the reason.
        """
        self._keep_state()
        if self._state is None:
            raise RuntimeError("state_dict() is the server's, and nothing has come from it. Call iter() first.")
        state = pickle.loads(self._state)
        if isinstance(state, str):
            raise RuntimeError(state)
        return state  # type: ignore[no-any-return]

    def _keep_state(self) -> None:
        if self._reading is not None:
            self._state = self._reading.state

    def close(self) -> None:
        """Leave the server.  Delivered batches stay valid.  A second call does nothing.  `iter()` joins again."""
        if self._reading is not None:
            self._reading.close()


def attach(name: str, *, join: str = "batch", copy: bool = True) -> Attached:
    """Read the batches of a loader that `shmloader serve` hosts under this name.

    It starts nothing.  A process joins when it first iterates, and is due for each batch from then on.

    Args:
        name: What was given to `--name`.
        join: "batch" (default): the first `iter()` begins with the next batch that the server takes; if nobody else
            reads, with the first one that the last reader has not read.  If its epoch has none left, with the next
            epoch.  "epoch": with the next epoch that the server begins.
        copy: Whether batches are copied into memory of this process (default True), which is used again when they die.
            False: they lie in the server's memory, and all readers that have copy=False see what one of them writes.
            The server waits until they die, and of those that you keep beyond its loader's `spare_slots` you get
            copies.

    Returns:
        An iterable: one epoch for each `iter()`.

    Raises:
        ValueError: `join` is none of these, or `name` is too long.
        ConnectionError: No server of this user has this name.

    Example:
        >>> for images, labels in shmloader.attach("imagenet"): ...
    """
    if join not in ("batch", "epoch"):
        raise ValueError(f"join should be 'batch' or 'epoch', but got join={join!r}")
    if sys.platform != "linux":
        raise RuntimeError(f"attach() shares memory between processes, which needs Linux, and this is {sys.platform}.")
    from shmloader.readers.connection import connect_to

    connect_to(name).close()
    return Attached(name, join, bool(copy))
