"""A signal's handler raises in iter() of a rank that reads: neither this rank nor another loses or repeats a batch."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from ranks import in_ranks

LINES = """
import random
from at_line import AtLine

signal.signal(signal.SIGINT, signal.default_int_handler)

class Few(Tens):
    def __len__(self):
        return 8

def press():
    signal.raise_signal(signal.SIGINT)

def whole(loader):
    return [k.tolist() for _, k in loader]

def broken_off(loader, line):
    # Begin an epoch, and have a handler raise at this line of iter(); how many lines there are.
    # A later call may have fewer lines, if it waits less.  Then the handler raises where AtLine ends.
    while True:
        batches = None
        try:
            with AtLine(line, press) as reached:
                batches = iter(loader)
        except KeyboardInterrupt:
            pass
        if batches is not None:
            return reached.lines, [k.tolist() for _, k in batches]
        line = 0

def lines_of(count):
    return sorted(random.Random(3).sample(range(1, count), min(count - 1, MOST)))  # the last line is AtLine's
"""


def same_in_ranks(text: str) -> Any:
    """What main() of a script returns in both ranks, which must be the same."""
    first, second = in_ranks(text)
    assert first == second, [x if isinstance(x, str) else len(x[0]) for x in (first, second)]
    return first


@pytest.mark.timeout(110)
@pytest.mark.parametrize("most", [25, pytest.param(400, marks=pytest.mark.long)])
@pytest.mark.parametrize("persistent", [False, True])
def test_at_any_line_of_a_later_epoch(persistent: bool, most: int) -> None:
    text = f"""
MOST, PERSISTENT = {most}, {persistent}
{LINES}
def main(rank):
    generator = torch.Generator().manual_seed(3)
    loader = loader_of(Few(), persistent_workers=PERSISTENT, generator=generator, num_workers=1)
    got = [whole(loader)]
    counts = [None]
    lines, batches = broken_off(loader, 0)
    counts[0] = lines if rank else None
    dist.broadcast_object_list(counts, 1)
    got.append(batches)
    for line in lines_of(counts[0]):
        got.append(broken_off(loader, line if rank else 0)[1])
    got.append(whole(loader))
    epoch = loader.state_dict()["epoch"]
    loader.close()
    return got, epoch, torch.get_rng_state().tolist()
"""
    first = same_in_ranks(text)
    assert first[1] == len(first[0]) and all(sorted(itertools.chain(*epoch)) == list(range(8)) for epoch in first[0])


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
def test_iter_of_the_first_rank_draws_once_if_it_is_broken_off_before_the_others_know(
    persistent: bool, own: bool
) -> None:
    text = f"""
PERSISTENT, OWN = {persistent}, {own}
from shmloader.readers.conducting import ConductingIterator

def main(rank):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    reset = ConductingIterator._reset
    pressed = []

    def press(*given, **named):  # the base seed is drawn
        if not pressed:
            pressed.append(1)
            signal.raise_signal(signal.SIGINT)
        reset(*given, **named)

    found = []
    for readers in (dist.group.WORLD, None):
        torch.manual_seed(5)
        generator = torch.Generator().manual_seed(3) if OWN else None
        given = {{"batch_size": 4, "num_workers": 2, "shuffle": True, "multiprocessing_context": "fork"}}
        given |= {{"persistent_workers": PERSISTENT, "generator": generator, "readers": readers}}
        loader = shmloader.DataLoader(Tens(), **given)
        ConductingIterator._reset = press if rank == 0 else reset
        got, broken = [], 0
        for _ in range(2):
            try:
                batches = iter(loader)
            except KeyboardInterrupt:
                broken += 1
                batches = iter(loader)
            got.append([k.tolist() for _, k in batches])
        loader.close()
        found.append((got, torch.get_rng_state().tolist(), generator and generator.get_state().tolist()))
        found.append(broken)
    return found
"""
    (shared, broken, alone, _), (other, *_) = in_ranks(text)
    assert broken == 1
    assert shared == alone and other == alone


@pytest.mark.timeout(110)
@pytest.mark.parametrize("most", [10, pytest.param(200, marks=pytest.mark.long)])
@pytest.mark.parametrize("persistent", [False, True])
def test_at_any_line_of_the_first_ranks_iter_all_ranks_draw_the_same(persistent: bool, most: int) -> None:
    """If the others know of the epoch already, it ends in an error, and all ranks begin another one."""
    text = f"""
MOST, PERSISTENT = {most}, {persistent}
{LINES}
def rest(batches):
    try:
        return [k.tolist() for _, k in batches]
    except RuntimeError as error:
        assert " in mid-epoch" in str(error), error

def main(rank):
    sys.unraisablehook = lambda lost: None  # what is raised where iter() drops an iterator is lost
    loader = loader_of(persistent_workers=PERSISTENT, num_workers=1)
    got = [whole(loader)]
    counts = [broken_off(loader, 0)[0]]
    dist.broadcast_object_list(counts, 0)
    for line in lines_of(counts[0]):
        if rank:
            batches = rest(loader)
            got.append(whole(loader) if batches is None else batches)
        else:
            got.append(broken_off(loader, line)[1])
    got.append(whole(loader))
    loader.close()
    return got, torch.get_rng_state().tolist()
"""
    same_in_ranks(text)


@pytest.mark.timeout(110)
@pytest.mark.parametrize("most", [10, pytest.param(200, marks=pytest.mark.long)])
def test_at_any_line_of_the_first_epoch(most: int) -> None:
    text = f"""
MOST = {most}
{LINES}
def main(rank):
    got = []
    counts = [0]
    lines = [0]
    for number in range(MOST + 1):
        loader = loader_of(Few(), num_workers=1)
        count, batches = broken_off(loader, lines[number] if rank else 0)
        got += [batches, whole(loader)]
        loader.close()
        if not number:
            counts = [count]
            dist.broadcast_object_list(counts, 1)
            lines += lines_of(counts[0])
        if number + 1 == len(lines):
            break
    return got, torch.get_rng_state().tolist()
"""
    first = same_in_ranks(text)
    assert all(sorted(itertools.chain(*epoch)) == list(range(8)) for epoch in first[0])


@pytest.mark.timeout(110)
@pytest.mark.parametrize("most", [10, pytest.param(200, marks=pytest.mark.long)])
@pytest.mark.parametrize("persistent", [False, True])
def test_at_any_line_of_an_epoch_that_resumes(persistent: bool, most: int) -> None:
    text = f"""
MOST, PERSISTENT = {most}, {persistent}
{LINES}
def main(rank):
    sys.unraisablehook = lambda lost: None  # iter() may drop the iterator before, and what is raised there is lost
    loader = loader_of(Few(), persistent_workers=PERSISTENT, num_workers=1)
    batches = iter(loader)
    got = [next(batches)[1].tolist()]
    state = loader.state_dict()
    del batches  # iter() would close it, and the lines of that are in no later iter()
    loader.load_state_dict(state)
    counts = [broken_off(loader, 0)[0]]
    dist.broadcast_object_list(counts, 1)
    for line in lines_of(counts[0]):
        loader.load_state_dict(state)
        got += broken_off(loader, line if rank else 0)[1]
    got.append(whole(loader))
    loader.close()
    return got, torch.get_rng_state().tolist()
"""
    first = same_in_ranks(text)
    assert all(batch == first[0][1] for batch in first[0][1:-1])
