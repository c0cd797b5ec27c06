"""Ranks that do not go the same way: one leaves earlier, iter() raises, several threads take from one iterator."""

from __future__ import annotations

import pytest

from tests.readers.ranks import in_ranks


def test_a_rank_that_leaves_first_does_not_hold_up_the_others() -> None:
    text = """
def main(rank):
    loader = loader_of(persistent_workers=True)
    counts = []
    for epoch in range(3):
        count = 0
        for _ in loader:
            count += 1
            if epoch == 0 and rank == 1 and count == 3:
                break
        counts.append(count)
    loader.close()
    return counts
"""
    assert in_ranks(text) == [[16, 16, 16], [3, 16, 16]]


@pytest.mark.parametrize("leaves", ["break", "KeyboardInterrupt"])
def test_if_the_first_rank_leaves_and_begins_again_the_others_do_not_take_it_for_the_end(leaves: str) -> None:
    text = (
        f"LEAVES = {leaves!r}"
        + """
class Sampler(data.Sampler):
    interrupt = LEAVES != "break"

    def __len__(self):
        return 64

    def __iter__(self):
        yield from range(40)
        if self.interrupt:
            raise KeyboardInterrupt
        yield from range(40, 64)

def main(rank):
    loader = loader_of(shuffle=None, sampler=Sampler(), persistent_workers=True)
    found = []
    for epoch in range(2):
        count = 0
        try:
            for _ in loader:
                count += 1
                if LEAVES == "break" and epoch == 0 and rank == 0 and count == 3:
                    break
        except (RuntimeError, KeyboardInterrupt) as error:
            found.append(str(error).partition(" has ")[2])
        loader.sampler.interrupt = False
    found.append(count)
    loader.close()
    return found
"""
    )
    first, second = in_ranks(text)
    assert first[-1] == second[-1] == 16
    assert second[0].startswith("begun another epoch in mid-epoch, so batch ")


def test_a_rank_may_go_to_the_end_where_the_first_one_stops_at_the_last_batch() -> None:
    text = """
def main(rank):
    loader = loader_of(persistent_workers=True)
    counts = []
    for _ in range(3):
        batches = iter(loader)
        counts.append(sum(1 for _ in (zip(range(16), batches) if rank == 0 else batches)))
    loader.close()
    return counts
"""
    assert in_ranks(text) == [[16, 16, 16]] * 2


@pytest.mark.parametrize("text", ["'short'", "'long ' * 200_000"])
def test_an_error_of_iter_is_every_ranks_and_only_that_epochs(text: str) -> None:
    script = (
        f"TEXT = {text}"
        + """
class Sampler(data.Sampler):
    fails = True

    def __len__(self):
        return 64

    def __iter__(self):
        if self.fails:
            raise ValueError(TEXT)
        return iter(range(64))

def main(rank):
    found = []
    for options in ({"persistent_workers": True}, {}):
        loader = loader_of(shuffle=None, sampler=Sampler(), **options)
        for loader.sampler.fails in (False, True, False, True, False):
            try:
                found.append(len(list(loader)))
            except Exception as error:
                found.append(str(error).endswith(TEXT))
        loader.close()
    return found
"""
    )
    assert in_ranks(script) == [[16, True, 16, True, 16] * 2] * 2


HANDLER = """
class Sampler(data.Sampler):
    at = None  # the draw in which a signal comes, in this rank

    def __len__(self):
        return 64

    def __iter__(self):
        return Indices(self)

class Indices:
    # No generator, so it can continue.
    def __init__(self, sampler):
        self.sampler, self.left = sampler, iter(range(64))

    def __iter__(self):
        return self

    def __next__(self):
        left = self.left.__length_hint__()
        if left == self.sampler.at:
            self.sampler.at = None
            signal.raise_signal(signal.SIGUSR1)
        return next(self.left)

def raises(*_):
    raise RuntimeError("the handler's")

def heard(call):
    # The handler's error, if it comes out of this call; and what another call gives then.
    try:
        return call(), 0
    except RuntimeError as error:
        assert str(error) == "the handler's", error
        return call(), 1
"""


@pytest.mark.parametrize("left", [60, 20, 0])
@pytest.mark.parametrize("persistent", [False, True])
def test_an_error_of_a_signals_handler_is_only_the_first_ranks(persistent: bool, left: int) -> None:
    script = f"""
LEFT, PERSISTENT = {left}, {persistent}
{HANDLER}
def main(rank):
    signal.signal(signal.SIGUSR1, raises)
    loader = loader_of(shuffle=None, sampler=Sampler(), batch_size=None, persistent_workers=PERSISTENT)
    found = []
    for epoch in range(3):
        loader.sampler.at = LEFT if rank == 0 and epoch == 1 else None
        batches, count = heard(lambda: iter(loader))
        got = []
        while True:
            batch, more = heard(lambda: next(batches, None))
            count += more
            if batch is None:
                break
            got.append(batch[1])
        found.append((got == list(range(64)), count))
    loader.close()
    return found
"""
    first, second = in_ranks(script)
    assert first == [(True, 0), (True, 1), (True, 0)]
    assert second == [(True, 0)] * 3


@pytest.mark.parametrize("left", [60, 20])
def test_the_death_of_a_worker_is_every_ranks_although_torchs_handler_tells_of_it(left: int) -> None:
    script = f"""
{HANDLER}
def tells(*_):
    raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")

def main(rank):
    signal.signal(signal.SIGUSR1, tells)
    loader = loader_of(shuffle=None, sampler=Sampler(), batch_size=None)
    loader.sampler.at = {left} if rank == 0 else None
    try:
        return sum(1 for _ in loader)
    except RuntimeError as error:
        return str(error).partition("DataLoader worker (pid 7) ")[2]
"""
    assert in_ranks(script) == ["is killed by signal: Killed."] * 2


def test_threads_of_a_rank_share_its_iterator() -> None:
    text = """
import threading

def main(rank):
    loader = loader_of(shuffle=False, persistent_workers=True)
    found = []
    for _ in range(3):
        batches, got = iter(loader), []
        threads = [threading.Thread(target=lambda: got.extend(k.tolist() for _, k in batches)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        found.append(sorted(got) == [list(range(k, k + 4)) for k in range(0, 64, 4)])
    loader.close()
    return found
"""
    assert in_ranks(text) == [[True] * 3] * 2


def test_the_first_ranks_state_of_a_sampler_of_ones_own_is_loaded_in_all_ranks() -> None:
    text = """
class Sampler(data.Sampler):
    def __init__(self):
        self.at = 0
        self.order = list(range(100_000))  # a state that no socket takes at once

    def __len__(self):
        return 64

    def __iter__(self):
        while self.at < 64:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self):
        return {"at": self.at, "order": self.order}

    def load_state_dict(self, state):
        self.at = state["at"]

def main(rank):
    found = []
    for ranks in ([0, 1], [2, 3]):
        group = dist.new_group(ranks)
        if rank in ranks:
            mine, first = group, ranks[0]
    options = {"batch_size": 4, "num_workers": 2, "multiprocessing_context": "fork", "readers": mine}
    loader = shmloader.DataLoader(Tens(), sampler=Sampler(), **options)
    batches = iter(loader)
    next(batches), next(batches)
    states = [loader.state_dict() if rank == first else None]
    dist.broadcast_object_list(states, first, mine)
    loader.close()
    loader = shmloader.DataLoader(Tens(), sampler=Sampler(), **options)
    loader.load_state_dict(states[0])
    left = [k[0].item() for _, k in loader]
    loader.close()
    return left
"""
    assert in_ranks(text, 4) == [list(range(8, 64, 4))] * 4
