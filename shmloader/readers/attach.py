"""`shmloader.attach(name)`: the batches of a loader that `shmloader serve` hosts, in any process of the same user.

Attachment (attachment.py) connects it to the ring.  Before it reads, Wire (wire.py) checks whether both processes
belong to one user, Host._welcome (host.py) whether it may join, and AttachedSide (attached.pyx) whether both run one
version.
"""

from __future__ import annotations

import os
import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shmloader.readers.iterator import ReaderIterator

MOST_BYTES = 107  # of an abstract name, which the kernel limits


def address_of(name: str) -> str:
    """The abstract name of the server that this user gave this name.

    Raises:
        ValueError: It is none, or too long.
    """
    before = f"shmloader/serve/{os.geteuid()}/"
    if not isinstance(name, str) or not name or len(os.fsencode(before + name)) > MOST_BYTES:
        raise ValueError(
            f"name should be a text of 1 to {MOST_BYTES - len(before)} bytes, but got name={name!r}. The kernel keeps "
            f"{MOST_BYTES} bytes of it, the user's number included. Choose another name."
        )
    return before + name


class Attached:
    """An iterable of the batches of a served loader; `attach()` makes one.

    Each `iter()` is an epoch of the server's; the first one may begin in mid-epoch.  Batches are tensors over the
    server's memory, which this process sees privately: what you write into one, no other process sees.
    """

    def __init__(self, name: str, join: str, spare_slots: int | None) -> None:
        self.name = name
        self._join = join
        self._spare = spare_slots
        self._state: dict[str, Any] | None = None
        self._iterator: ReaderIterator | None = None
        self._attachment: Any = None
        self._beginning = threading.RLock()  # threads that share this begin one epoch after the other

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_beginning"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _beginning=threading.RLock())

    def __iter__(self) -> ReaderIterator:
        with self._beginning:
            iterator = self._iter()
        iterator.unreturned = 0  # last, and no call: no signal's handler runs from here on
        return iterator

    def _iter(self) -> ReaderIterator:
        from shmloader.core.turns import Meter, Turns
        from shmloader.readers.iterator import ReaderIterator

        if self._attachment is None:
            meter = Meter(0)
            state = self._state or {}
            attachment = _connected(self.name, state, self._spare, meter)
            try:
                named = state.get("batch")
                waits = self._join == "epoch" and named is None
                self._iterator = ReaderIterator(self, attachment, Turns(meter), waits, named)
            except BaseException:  # a Ctrl-C while it waits: the next iter() joins again
                attachment.close()
                raise
            self._attachment = attachment
        else:
            assert self._iterator is not None
            if self._iterator.has_left:
                raise RuntimeError(
                    f"The iterator of {self.name!r} was closed in mid-epoch, so the server gives this job nothing "
                    "more. Attach again to get the batches that come now."
                )
            if self._iterator.unreturned != threading.get_ident():
                self._iterator._reset(self)
        return self._iterator

    def __len__(self) -> int:
        """The batches of a whole epoch.

        Raises:
            TypeError: It is not known before the first iter(), or the server's loader has no length.
        """
        length = None if self._attachment is None else self._attachment.greeting.get("length")
        if length is None:
            raise TypeError("The length of an epoch is not known. Call iter() first, and serve a loader with a length.")
        return int(length)

    def state_dict(self) -> dict[str, Any]:
        """The batch that comes next: for `load_state_dict`, also in another process, while the server lives."""
        if self._iterator is None:
            return dict(self._state or {"server": None, "epoch": 0, "batch": None})
        epoch, batch = self._iterator.next_batch
        return {"server": self._attachment.greeting["server"], "epoch": epoch, "batch": batch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Have the first `iter()` continue at the batch that `state_dict` names.

        The server keeps a batch only until its slot is needed for another one.  If the batch is gone, `iter()` raises a
        RuntimeError that names the next one.

        Raises:
            RuntimeError: It was iterated over already.
            ValueError: It is no state of an attached loader.
        """
        check_state(state_dict)
        if self._attachment is not None:
            raise RuntimeError("load_state_dict() was called after iter(). Call attach() again, and load first.")
        self._state = dict(state_dict)

    def close(self) -> None:
        """Leave the server.  Delivered batches stay valid.  A second call does nothing."""
        if self._attachment is not None:
            self._attachment.close()

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def attach(name: str, *, join: str = "batch", spare_slots: int | None = None) -> Attached:
    """Read the batches of a loader that `shmloader serve` hosts under this name.

    It starts nothing.  A process joins when it first iterates, and is due for each batch from then on.

    Args:
        name: What was given to `--name`.
        join: "batch" (default): the first `iter()` begins with the next batch that the server opens; if nobody else
            reads, with the first one that the last job did not take.  If its epoch has none left, `iter()` or the first
            `next()` waits for the next epoch.  "epoch": with the next epoch.  A state that names a batch overrides
            both.
        spare_slots: How many batches may lie in the ring at once, as in `DataLoader` (default None: as many as the
            served loader has).  It may not be more.

    Returns:
        An iterable: one epoch for each `iter()`.

    Raises:
        ValueError: `join` or `spare_slots` is none of these, or `name` is too long.
        ConnectionError: No server of this user has this name.

    Example:
        >>> for images, labels in shmloader.attach("imagenet"): ...
    """
    if join not in ("batch", "epoch"):
        raise ValueError(f"join should be 'batch' or 'epoch', but got join={join!r}")
    if spare_slots is not None and not (isinstance(spare_slots, int) and spare_slots >= 0):
        raise ValueError(f"spare_slots should be a non-negative integer, or None, but got spare_slots={spare_slots!r}")
    if sys.platform != "linux":
        raise RuntimeError(f"attach() shares memory between processes, which needs Linux, and this is {sys.platform}.")
    from shmloader.readers.wire import connect_to

    try:
        connect_to(address_of(name)).close()
    except ConnectionRefusedError:
        raise _nobody(name) from None
    return Attached(name, join, spare_slots)


def check_state(state: Any) -> None:
    """Raise a ValueError where this is no state of an attached loader."""
    given = state if isinstance(state, dict) else {}
    at = given.get("epoch", -1), given.get("batch", -1)
    numbers = all(type(number) is int and 0 <= number < 1 << 63 for number in at if number is not None)
    if "server" not in given or not numbers or at[0] is None:
        raise ValueError(
            f"this is no state of an attached loader, which has 'server', 'epoch' and 'batch': {str(state)[:100]}. "
            "Load what state_dict() of such a loader returned. A DataLoader's state is loaded into a DataLoader."
        )


def _connected(name: str, state: dict[str, Any], spare: int | None, meter: Any) -> Any:
    from shmloader.readers.attachment import Attachment
    from shmloader.readers.wire import connect_to
    from shmloader.system.cores import may_spin
    from shmloader.system.signals import held

    try:
        wire = connect_to(address_of(name))
    except ConnectionRefusedError:
        raise _nobody(name) from None
    with held():  # it ignores an OSError, and a handler's TimeoutError is one
        spin = may_spin(2)
    made = Attachment(wire, state, None, spin, meter)
    most = made.spare
    if spare is not None:
        if spare > most:
            made.close()
            raise ValueError(
                f"spare_slots={spare} is more than {most}, which each reader of {name!r} may have. Serve a loader with "
                "more spare_slots, or ask for fewer."
            )
        made.spare = spare
    return made


def _nobody(name: str) -> ConnectionError:
    return ConnectionError(
        f"No server named {name!r} runs for user {os.geteuid()} in this network namespace. Start one with "
        f"`shmloader serve MODULE:FUNCTION --name {name}`."
    )
