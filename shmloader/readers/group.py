"""The ranks of one node that read one loader's batches: `DataLoader(..., readers=process_group)`.
It checks that they can share memory and are not too many, and keeps their generators in the same states.

The group's first rank conducts, and reads too.  The others attach.  They find each other through the store of
torch.distributed, when each of them first iterates over its loader; nothing is sent there afterwards.  All ranks make
and iterate over the loaders that they share in the same order, as for a collective.
"""

from __future__ import annotations

import collections
import json
import os
import socket
import threading
import uuid
import weakref
from typing import Any

import torch.distributed

from shmloader import _torch
from shmloader.core.handlers import is_handlers
from shmloader.core.readers import MOST_READERS
from shmloader.options import Options
from shmloader.readers.attachment import Attachment
from shmloader.readers.epoch_message import epoch_from
from shmloader.readers.host import Host
from shmloader.readers.iterator import ReaderIterator
from shmloader.readers.wire import connect_to, end_listening, listen_at
from shmloader.resume.epoch import Epoch
from shmloader.resume.epochs import length_of
from shmloader.resume.loader_generators import own_generators, set_states
from shmloader.resume.place import place_of
from shmloader.resume.seek import draw_as_if, sampler_of
from shmloader.resume.state import State
from shmloader.statistics.account import account_of
from shmloader.system.by_identity import ByIdentity
from shmloader.system.cores import may_spin
from shmloader.system.signals import held, held_in_del
from shmloader.trainer.audience import Drawn
from shmloader.trainer.seeds import draw_base_seed

ONE_NODE = "the boot id, the pid namespace, the network namespace and the user"

_counts: collections.Counter[str] = collections.Counter()


class Seat:
    """The part that one rank has in the loader of its group.

    It may be freed with its loader while its iterators continue, because they keep what they need of it.

    Attributes:
        host: Of the first rank; None: this rank is another one, or nobody else is in the group.
        begun: An iterator whose iter() has not returned.  If a signal's handler has broken that off, nobody else has
            the iterator, and the next iter() gives it.  Otherwise this rank would lose the epoch that it has begun, and
            the others would not.
    """

    def __init__(self) -> None:
        self.host: Host | None = None
        self.begun: _GroupIterator | None = None
        self._last: weakref.ref[_GroupIterator] | None = None  # the iterator that was made last
        self._attachment: Attachment | None = None
        self._listener: socket.socket | None = None
        self._key = ""  # of this loader in the store
        self._name = f"shmloader/{uuid.uuid4().hex}"
        self._is_taken = False
        self._owner = os.getpid()

    def take(self, loader: Any, options: Options) -> None:
        """Wait for the other ranks, once.

        If a signal's handler breaks that off, the next call continues: the others know this rank by its key.

        Args:
            loader: The loader of this rank.
            options: Its options.

        Raises:
            RuntimeError: This process was forked from the rank.
        """
        if self._owner != os.getpid():
            raise RuntimeError(
                f"this process was forked from a rank of the group that readers= names (pid {self._owner}), and is no "
                "rank itself. Iterate over the loader in that rank, or make a DataLoader without readers= in this "
                "process."
            )
        if self._is_taken:
            return
        try:
            self._take(loader, options)
        except BaseException as error:
            if isinstance(error, Exception) and not is_handlers(error):
                _seats.pop(loader, None)
                self.close()
            raise

    def _take(self, loader: Any, options: Options) -> None:
        group = options.readers
        ranks = torch.distributed.get_process_group_ranks(group)
        check_size(len(ranks))
        if len(ranks) == 1:
            self._is_taken = True
            return
        me = torch.distributed.get_rank()
        first = me == ranks[0]
        with held():  # otherwise a signal's handler could raise when this rank has counted, and has no key yet
            if not self._key:
                key = f"shmloader/readers/{'-'.join(map(str, ranks))}"
                _counts[key] += 1
                self._key = f"{key}/{_counts[key]}"
            if first and self._listener is None:
                self._listener = listen_at(self._name)
        mine = about_this_process() | {"spare": options.spare_slots, "name": self._name if first else ""}
        store = _torch.default_store()
        store.set(f"{self._key}/{me}", json.dumps(mine))
        found = {rank: json.loads(store.get(f"{self._key}/{rank}")) for rank in ranks}
        check_one_node(found)
        others = [rank for rank in ranks if rank != ranks[0]]
        with held():  # the first rank takes a reader that has closed its connection for one that has left
            if self._listener is not None:
                pids = [found[rank]["pid"] for rank in others]
                self.host = Host(self._listener, sum(found[rank]["spare"] for rank in others), pids)
                self._listener = None
            else:
                self._attachment = _attachment_to(ranks[0], found[ranks[0]]["name"], me, loader, options)
            self._is_taken = True

    @property
    def reads_only(self) -> bool:
        """Whether another rank conducts."""
        return self._attachment is not None

    def iterator(self, loader: Any) -> ReaderIterator:
        """An iterator over the batches that the first rank conducts."""
        assert self._attachment is not None
        if self.begun is None or not self.begun.is_unreturned(loader):
            last = None if self._last is None else self._last()
            if last is not None:  # the user has it still; the first rank waits until its epoch is left
                last.close()
            self.begun = _GroupIterator(self, loader, self._attachment, account_of(loader))
            self._last = weakref.ref(self.begun)
        self.begun._reset(loader)
        return self.begun

    def close(self) -> None:
        """Leave the group's loader.  Twice does no harm."""
        if self._listener is not None and self._owner == os.getpid():
            end_listening(self._listener)
        for end in (self.host, self._attachment):
            if end is not None:
                end.close()


def _attachment_to(first: int, name: str, me: int, loader: Any, options: Options) -> Attachment:
    """Connect to the first rank of the group."""
    try:
        spin, meter = may_spin(loader.num_workers + 1), account_of(loader).meter
        return Attachment(connect_to(name), {"rank": me}, options.spare_slots, spin, meter)
    except ConnectionError:
        raise RuntimeError(
            f"rank {first}, which makes the batches, has closed its loader or ended before rank {me} could read "
            "from it. Look at its output for the reason."
        ) from None


class _GroupIterator(ReaderIterator):
    """A rank's.  It leaves the generators where they would be if it had conducted."""

    def __init__(self, seat: Seat, loader: Any, attachment: Attachment, account: Any) -> None:
        from shmloader.core.turns import Turns

        self._seat = weakref.ref(seat)  # weakly, because a seat may keep its iterator
        self._place = place_of(loader)
        self._drew = False
        self._loads = -1  # how often a state had been loaded when the epoch began
        self._sampler = sampler_of(loader)
        self._generators: list[torch.Generator] = []
        self._coming: Epoch | None = None  # the next epoch, if it is drawn already
        super().__init__(loader, attachment, Turns(account.meter), begins=False)

    def is_unreturned(self, loader: Any) -> bool:
        """Whether this thread's iter() has begun the epoch, and was broken off, so that the next one gives it."""
        is_mine = self.unreturned == threading.get_ident() and not self._shutdown
        return is_mine and self._loads == place_of(loader).loads

    def _reset(self, loader: Any) -> None:
        place, seat = self._place, self._seat()
        if seat is not None:
            seat.begun = self
        if not self.is_unreturned(loader):
            self.unreturned = 0
            start = place.starting()
            try:
                began = self._await_next()
            except RuntimeError as error:
                if not is_handlers(error):  # the first rank has drawn
                    self._draw(loader, start, (start is not None and start.begun) or self._coming is not None)
                    self._coming = None
                raise
            drawn = began["drawn"]
            with held():  # otherwise a signal's handler could raise between the draws and the beginning
                self._sampler, self._generators = sampler_of(loader), own_generators(loader)
                self._draw_early(drawn)
                self._draw(loader, start, began["of"]["start"] is not None or drawn.is_early)
                self._loads = place.loads
                super()._reset(loader)
                self._coming = None
                set_states(self._generators, drawn.states)
        if place.current is not self.epoch:
            place.begin(self.epoch)
        self._show_next(self._began["drawn"])

    def _draw(self, loader: Any, start: State | None, is_drawn: bool) -> None:
        """Draw what the first rank has drawn for an epoch; if its sampler `is_drawn`, only the base seed."""
        if not self._drew and (start is None or start.base_seed is None):
            draw_base_seed(loader.generator)
        self._drew = True
        if not is_drawn:
            draw_as_if(sampler_of(loader))

    def _draw_early(self, drawn: Drawn) -> None:
        """Draw for the epochs that the first rank has drawn early, also for those that it has dropped since."""
        while self._place.drawn_early < drawn.early:
            self._place.drawn_early += 1
            draw_as_if(self._sampler)

    def _show_next(self, drawn: Drawn) -> None:
        """Have state_dict() include the next epoch, if it is drawn already."""
        place, loader = self._place, self.loader()
        if drawn.next is not None and self._coming is None and loader is not None and place.current is self.epoch:
            coming = epoch_from(drawn.next)
            coming.loads, coming.length = place.loads, length_of(loader.dataset)
            self._coming = place.next = coming

    def _come_to_end(self) -> None:
        over = None if self.ended else self._await_last_draw()
        if over is None:
            return
        with held():
            set_states(self._generators, over["drawn"].states)
            self._draw_early(over["drawn"])
            self._show_next(over["drawn"])

    def _await_last_draw(self) -> dict[str, Any] | None:
        """What the first rank has sent of the epoch's end, once it draws nothing more in this epoch.

        With prefetch_epochs, it draws for the next epoch until it takes the last batch of this one.
        """
        ring, side = self._ring, self._ring.side
        while True:
            side.clear_alarm()  # first: a message that comes after this raises it again
            waits = not (self._shutdown or ring.closed or self._attachment.has_next)  # first: what was sent has come
            over = ring.overs.get(self._serial)
            if over is None or over["final"] or not waits:
                return over
            side.await_alarm()


_seats: ByIdentity[Seat] = ByIdentity()


def seat_of(loader: Any, options: Options) -> Seat:
    """What this rank is to its loader; asked for the first time, it waits for the other ranks of the group."""
    seat = _seats.get(loader)
    if seat is None:
        seat = _seats[loader] = Seat()
    seat.take(loader, options)
    return seat


def seat_with_iterator(loader: Any) -> Any:
    """This rank's seat, if it has an iterator whose iter() has not returned; otherwise None."""
    seat = _seats.get(loader)
    return None if seat is None or seat.begun is None else seat


def is_unreturned(loader: Any) -> bool:
    """Whether this thread's last iter() was broken off when it had begun an epoch."""
    seat = seat_with_iterator(loader)
    return seat is not None and seat.begun.is_unreturned(loader)


def leave_in_del(loader: Any) -> None:
    """In a loader's __del__(): this rank's seat ends with it.  A callback of weak references is too late for that,
    because exceptions of signals' handlers are dropped there, and one may keep the seat from ending."""
    if loader in _seats:
        with held_in_del(loader):
            _seats.pop(loader, None)


def leave(loader: Any) -> None:
    """The loader was closed.  A rank that iterates again waits for the other ranks again."""
    seat = _seats.pop(loader, None)
    if seat is not None:
        seat.close()


def about_this_process() -> dict[str, Any]:
    """What processes must have in common that share memory, and this one's number."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net")]
    return {"node": [boot, *spaces, os.geteuid()], "pid": os.getpid(), "host": os.uname().nodename}


def check_one_node(found: dict[int, dict[str, Any]]) -> None:
    """Raise a ValueError where not all of these processes can share memory.

    Args:
        found: What about_this_process() says in each rank.
    """
    first, *others = found
    apart = [rank for rank in others if found[rank]["node"] != found[first]["node"]]
    if apart:
        where = {rank: found[rank]["host"] for rank in (first, apart[0])}
        raise ValueError(
            f"readers is a group whose ranks {first} and {apart[0]} cannot share memory. They run on {where[first]} "
            f"and {where[apart[0]]}, and {ONE_NODE} must be the same. Give each node a group of its own, made with "
            "torch.distributed.new_group, and give all of them the same seed. Then each node has one conductor, and "
            "all ranks get the same batches."
        )


def check_size(ranks: int) -> None:
    """Raise a ValueError where a group is too large."""
    if ranks > MOST_READERS:
        raise ValueError(
            f"readers is a group of {ranks} ranks, and at most {MOST_READERS} processes read one loader. Make smaller "
            "groups with torch.distributed.new_group, and give each loader the same seed."
        )
