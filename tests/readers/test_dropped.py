"""A signal's handler raises while a rank drops its loader: the exception is seen, and nothing of the loader is left."""

from __future__ import annotations

import pytest
from ranks import in_ranks


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("persistent", [False, True])
def test_an_interrupt_while_a_rank_drops_its_loader_is_raised_and_leaves_no_thread(persistent: bool, rank: int) -> None:
    text = f"""
import gc, threading
from shmloader.readers.attachment import Attachment
from shmloader.readers.host import Host

PERSISTENT, PRESSES = {persistent}, {rank}

def main(rank):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    lost, pressed = [], []
    sys.unraisablehook = lambda each: lost.append(repr(each.exc_value))
    for kind in (Host, Attachment):
        def close(self, real=kind.close):
            if rank == PRESSES and not pressed:
                pressed.append(1)
                signal.raise_signal(signal.SIGINT)
            real(self)
        kind.close = close
    before = threading.active_count()
    loader = loader_of(persistent_workers=PERSISTENT)
    batches = iter(loader)
    next(batches)
    dist.barrier()
    heard = 0
    try:
        del batches
        del loader
        for _ in range(9):
            pass
    except KeyboardInterrupt:
        heard = 1
    gc.collect()
    return len(pressed), heard, lost, threading.active_count() - before
"""
    found = in_ranks(text)
    assert found[rank] == (1, 1, [], 0)
    assert found[1 - rank] == (0, 0, [], 0)
