"""`shmloader serve`: a process that hosts a loader for others, which attach to it by its name.
It refuses a loader that cannot be served: with far workers or pinned memory, or if workers do not persist.

It conducts and reads nothing.  With no reader it pauses, and what is ready stays for the next one.
"""

from __future__ import annotations

import errno
import uuid
from collections.abc import Callable
from typing import Any

from shmloader.core.readers import MOST_READERS
from shmloader.options import Options
from shmloader.readers.attach import address_of
from shmloader.readers.conducting import ConductingIterator
from shmloader.readers.host import Host
from shmloader.readers.wire import listen_at
from shmloader.resume.place import place_of


def serve(
    loader: Any,
    name: str,
    *,
    patience: float | None = None,
    epochs: int | None = None,
    on_start: Callable[[], object] | None = None,
) -> None:
    """Host a loader, epoch after epoch, until this process ends.

    Args:
        loader: A `shmloader.DataLoader` with workers that persist.
        name: What others attach to.
        patience: A reader that holds up another for so many seconds is dropped; None: all wait for it.
        epochs: How many epochs (default None: for ever).
        on_start: Called once, when others can attach.

    Raises:
        ValueError: The loader cannot be served, with the reason.
        OSError: EADDRINUSE: another process serves under this name.
    """
    options = Options.of(loader)
    _check(loader, options)
    try:
        listener = listen_at(address_of(name))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise OSError(
            errno.EADDRINUSE, f"Another process serves under the name {name!r}. End it, or choose another name."
        ) from None
    try:
        length = len(loader)
    except TypeError:
        length = None
    greeting = {"spare": options.spare_slots, "server": uuid.uuid4().hex, "length": length}
    host = Host(listener, options.spare_slots * MOST_READERS, None, False, patience, greeting)
    iterator = None
    try:
        if on_start is not None:
            on_start()
        while epochs is None or epochs > 0:
            loader.set_epoch(place_of(loader).next_number)
            if iterator is None:
                iterator = ConductingIterator(loader, options, host)
            else:
                iterator._reset(loader)
            if not sum(1 for _ in iterator):
                raise ValueError(
                    "A loader that is served must give batches, but this one gave none in an epoch. Look at its "
                    "dataset, sampler, batch_size and drop_last."
                )
            epochs = None if epochs is None else epochs - 1
        host.wait_for_the_last()
    finally:
        try:
            if iterator is not None:
                iterator.close()
        finally:
            host.close()


def _check(loader: Any, options: Options) -> None:
    if not loader.num_workers or not loader.persistent_workers:
        raise ValueError(
            f"A loader that is served needs num_workers above 0 and persistent_workers=True, but has num_workers="
            f"{loader.num_workers} and persistent_workers={loader.persistent_workers}. Give it both."
        )
    if not loader.in_order:
        raise ValueError(
            "A loader that is served gives all readers the same batches in order, but has in_order=False. Leave it out."
        )
    if options.device is not None or loader.pin_memory:
        raise ValueError(
            f"A loader that is served hands out batches in ordinary memory, but has device={options.device!r}, "
            f"pin_memory={loader.pin_memory}. Leave both out, and copy with batch.to(device) in each reader."
        )
    if options.far_workers is not None:
        raise ValueError(
            "A loader that is served has workers on this machine, but this one has far_workers. Leave far_workers= out."
        )
    if options.group_by is not None:
        raise ValueError(
            f"A loader that is served opens one batch after the other, but group_by={options.group_by!r} mixes the "
            "tasks of several batches. Leave it out."
        )
    if options.readers is not None:
        raise ValueError("A loader that is served has readers that attach, but this one has readers=. Leave it out.")
