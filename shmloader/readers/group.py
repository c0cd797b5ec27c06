"""The ranks of one node that read one loader's batches: `DataLoader(..., readers=process_group)`.

The group's first rank conducts, and reads too.  The others attach.  They find each other through the store of
torch.distributed, when each of them first iterates over its loader; nothing is sent there afterwards.  All ranks make
and iterate over the loaders that they share in the same order, as for a collective.
"""

from __future__ import annotations

import collections
import json
import os
import uuid
import weakref
from typing import Any

import torch.distributed

from shmloader import _torch
from shmloader.core.readers import MOST_READERS
from shmloader.options import Options
from shmloader.readers.attachment import Attachment
from shmloader.readers.host import Host
from shmloader.readers.iterator import ReaderIterator
from shmloader.readers.wire import connect_to, listen_at
from shmloader.resume.place import place_of
from shmloader.resume.seek import draw_as_if, sampler_of
from shmloader.statistics.account import account_of
from shmloader.system.cores import may_spin
from shmloader.trainer.seeds import draw_base_seed

ONE_NODE = "the boot id, the pid namespace, the network namespace and the user"

_counts: collections.Counter[str] = collections.Counter()


class Seat:
    """The part that one rank has in the loader of its group.

    It may be freed with its loader while its iterators continue, because they keep what they need of it.

    Args:
        loader: The loader of this rank.
        options: Its options.

    Attributes:
        host: Of the first rank; None: this rank is another one, or nobody else is in the group.
    """

    def __init__(self, loader: Any, options: Options) -> None:
        self.host: Host | None = None
        self._attachment: Attachment | None = None
        group = options.readers
        ranks = torch.distributed.get_process_group_ranks(group)
        check_size(len(ranks))
        if len(ranks) == 1:
            return
        key = f"shmloader/readers/{'-'.join(map(str, ranks))}"
        _counts[key] += 1
        key = f"{key}/{_counts[key]}"
        me = torch.distributed.get_rank()
        name = f"shmloader/{uuid.uuid4().hex}"
        mine = about_this_process() | {"spare": options.spare_slots}
        first = me == ranks[0]
        listener = listen_at(name) if first else None
        try:
            store = _torch.default_store()
            store.set(f"{key}/{me}", json.dumps(mine | {"name": name if first else ""}))
            found = {rank: json.loads(store.get(f"{key}/{rank}")) for rank in ranks}
            check_one_node(found)
            others = [rank for rank in ranks if rank != ranks[0]]
            if listener is not None:
                pids = [found[rank]["pid"] for rank in others]
                self.host = Host(listener, sum(found[rank]["spare"] for rank in others), pids)
                return
        except BaseException:
            if listener is not None:
                listener.close()
            raise
        try:
            self._attachment = Attachment(
                connect_to(found[ranks[0]]["name"]),
                {"rank": me},
                options.spare_slots,
                may_spin(loader.num_workers + 1),
                account_of(loader).meter,
            )
        except ConnectionError:
            raise RuntimeError(
                f"rank {ranks[0]}, which makes the batches, has closed its loader or ended before rank {me} could read "
                "from it. Look at its output for the reason."
            ) from None

    @property
    def reads_only(self) -> bool:
        """Whether another rank conducts."""
        return self._attachment is not None

    def iterator(self, loader: Any) -> ReaderIterator:
        """An iterator over the batches that the first rank conducts."""
        assert self._attachment is not None
        return _GroupIterator(loader, self._attachment, account_of(loader))

    def close(self) -> None:
        """Leave the group's loader.  Twice does no harm."""
        for end in (self.host, self._attachment):
            if end is not None:
                end.close()


class _GroupIterator(ReaderIterator):
    """A rank's.  It leaves the generators where they would be if it had conducted."""

    def __init__(self, loader: Any, attachment: Attachment, account: Any) -> None:
        from shmloader.core.turns import Turns

        self._drew = False
        super().__init__(loader, attachment, Turns(account.meter))

    def _reset(self, loader: Any) -> None:
        place = place_of(loader)
        start = place.starting()
        if not self._drew and (start is None or start.base_seed is None):
            draw_base_seed(loader.generator)
        self._drew = True
        if start is None or not start.begun:
            draw_as_if(sampler_of(loader))
        super()._reset(loader)
        place.begin(self.epoch)


_seats: weakref.WeakKeyDictionary[Any, Seat] = weakref.WeakKeyDictionary()


def seat_of(loader: Any, options: Options) -> Seat:
    """What this rank is to its loader; asked for the first time, it waits for the other ranks of the group."""
    seat = _seats.get(loader)
    if seat is None:
        seat = _seats[loader] = Seat(loader, options)
    return seat


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
