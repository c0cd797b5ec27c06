"""A signal's handler raises while a rank drops its loader: the exception is seen, and nothing of the loader is left."""

from __future__ import annotations

import pytest
from ranks import in_ranks


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("ends", ["the loader", "the iterator"])
def test_an_interrupt_while_a_rank_drops_its_loader_is_raised_and_leaves_no_thread(
    ends: str, persistent: bool, rank: int
) -> None:
    """The iterator is dropped immediately before the loader, and no signal is handled between the two."""
    text = f"""
import gc, threading
from shmloader.readers.attachment import Attachment
from shmloader.readers.host import Host

PERSISTENT, PRESSES = {persistent}, {rank}
HOSTS, ATTACHMENTS = {("close", "close") if ends == "the loader" else ("closed", "leave")}

def main(rank):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    lost, pressed = [], []
    sys.unraisablehook = lambda each: lost.append(repr(each.exc_value))
    for kind, name in ((Host, HOSTS), (Attachment, ATTACHMENTS)):
        def ends(self, *given, real=getattr(kind, name)):
            if rank == PRESSES and not pressed:
                pressed.append(1)
                signal.raise_signal(signal.SIGINT)
            real(self, *given)
        setattr(kind, name, ends)
    before = threading.active_count()
    loader = loader_of(persistent_workers=PERSISTENT)
    batches = iter(loader)
    next(batches)
    dist.barrier()
    if rank != PRESSES:
        dist.barrier()  # the other one drops first
    heard = 0
    try:
        del batches
        del loader
        for _ in range(9):
            pass
    except KeyboardInterrupt:
        heard = 1
    if rank == PRESSES:
        dist.barrier()
    gc.collect()
    return len(pressed), heard, lost, threading.active_count() - before
"""
    found = in_ranks(text)
    assert found[rank] == (1, 1, [], 0)
    assert found[1 - rank] == (0, 0, [], 0)
