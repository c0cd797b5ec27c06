"""Structures and sizes that never come again leave nothing behind, and the others are kept: NOTE [ Kept plans ]."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from conftest import assert_same
from hostile import BothSides

import shmloader
from shmloader.batch import objects
from shmloader.batch.chunk_walk import ChunkWalks
from shmloader.core.batch_tree import Account, Kept
from shmloader.core.batch_writer import Writer

KEPT = 8 << 20  # bytes, of one process
VALUES = torch.arange(100_000.0)  # conftest makes torch.full() slow


def keys_of_its_own(k: int) -> Any:
    return [{f"key {k} {j}": VALUES[k + 3 * j :][:2], "id": j} for j in range(40)]


def sizes_of_its_own(k: int) -> Any:
    return [VALUES[1000 * j :][: (k % 97 + 1) * (j + 1)].view(-1, j + 1) for j in range(20)] + [VALUES[50_000:][:k]]


def annotations(k: int) -> Any:
    return {
        "image": VALUES[k : k + 3],
        "objects": [{f"key {k} {j}": [[j] * 3] * (k % 5), "n": {"x": {}}} for j in range(40)],
    }


FORMS: dict[str, Callable[[int], Any]] = {
    "keys": keys_of_its_own,
    "sizes": sizes_of_its_own,
    "annotations": annotations,
}


@pytest.fixture
def ring() -> Iterator[BothSides]:
    with BothSides() as ring:
        yield ring


def pass_on(ring: BothSides, batch: Any) -> Any:
    ring.fill(batch)
    return ring.take()


def grown_by(work: Callable[[], Any]) -> int:
    """How many bytes of Python's memory are left after some work."""
    tracemalloc.start()
    try:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        work()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", FORMS)
def test_what_comes_once_leaves_nothing(ring: BothSides, name: str) -> None:
    make = FORMS[name]
    for k in range(3):
        pass_on(ring, make(k))

    def once() -> None:
        for k in range(3, 150):
            batch = make(k)
            got = pass_on(ring, batch)
            if k % 20 == 0:
                assert_same(got, batch)

    assert grown_by(once) < 300_000  # hashes are noted; one plan of "keys" and its pickle take 20,000


@pytest.mark.parametrize("name", ["keys", "sizes"])
def test_what_comes_again_takes_a_limited_memory(name: str) -> None:
    """Of all loaders of a process together."""
    make = FORMS[name]
    with BothSides() as one, BothSides() as other:

        def twice() -> None:
            for k in range(500 if name == "sizes" else 150):
                for ring in (one, other):
                    for _ in range(2):
                        pass_on(ring, make(k))

        assert grown_by(twice) < KEPT * 1.1


def test_what_comes_again_is_kept(ring: BothSides, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer pickles a plan twice, and the reader reads it twice."""
    pickled: list[Any] = []

    class Objects:
        dump_whole = objects.dump_whole

        @staticmethod
        def dump(value: Any) -> Any:
            pickled.append(value)
            return objects.dump(value)

    ring.writer = Writer(ring.worker, Objects, ChunkWalks())
    for k in range(6):
        ring.fill([torch.ones(2), torch.ones(3)])
        if k > 0:
            ring.header("plan_size", 3)  # nobody reads it now
        assert_same(ring.take(), [torch.ones(2), torch.ones(3)])
        ring.fill([torch.ones(k + 1), torch.ones(3)])  # another recipe of the same plan
        if k > 0:
            ring.header("plan_size", 3)
        assert len(ring.take()[0]) == k + 1
    assert len(pickled) == 2


def test_a_replaced_worker_gives_a_plan_the_same_number(ring: BothSides) -> None:
    batch = {"x": torch.ones(2), "s": ["a", torch.zeros(3)]}
    for _ in range(3):
        assert_same(pass_on(ring, batch), batch)
    ring.trainer.open(0, 0)
    ring.die()
    ring.writer = Writer(ring.worker, objects, ChunkWalks())
    ring.claim_again()
    ring.writer.write(batch)
    ring.worker.publish(0)
    ring.header("plan_size", 3)  # the trainer knows it by its number
    assert_same(ring.take(), batch)


def test_chunks_whose_plan_was_not_met(ring: BothSides) -> None:
    for k in range(4):
        ring.fill_chunks([{f"x{k % 3}": torch.ones(2, 3), "n": {"s": ["a", "b"]}} for _ in range(2)], 2)
        assert_same(ring.take(), {f"x{k % 3}": torch.ones(4, 3), "n": {"s": ["a", "b", "a", "b"]}})


def test_two_threads_with_loaders_of_their_own() -> None:
    """What one drops, the other makes again."""
    errors: list[BaseException] = []

    def run(start: int) -> None:
        try:
            with BothSides() as ring:
                for k in range(start, start + 150):
                    for _ in range(3):
                        assert_same(pass_on(ring, keys_of_its_own(k)), keys_of_its_own(k))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(start,)) for start in (0, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


class Records(torch.utils.data.Dataset):
    """Each record has a key of its own."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, k: int) -> Any:
        return {f"key {k}": torch.full((k % 5,), k), "meta": [{"id": k}] * (k % 3)}


@pytest.mark.parametrize("options", [{}, {"schedule": "steal"}, {"persistent_workers": True}], ids=str)
def test_several_workers_and_epochs(options: dict[str, Any]) -> None:
    loader = shmloader.DataLoader(Records(), 4, num_workers=3, collate_fn=list, **options)
    for _ in range(4):
        assert_same([record for batch in loader for record in batch], [Records()[k] for k in range(96)])


# ------------------------------------------------------------------------------------------------------------- Kept


def test_all_is_dropped_where_it_would_be_more() -> None:
    account = Account(100)
    one, other, apart = Kept(account), Kept(account), Kept(Account(100))
    one.keep("a", 1, 40)
    other.keep("b", 2, 60)
    apart.keep("c", 3, 100)
    assert (one.get("a"), other.get("b"), one.get("b")) == (1, 2, None)
    one.keep("large", 3, 101)
    assert (one.get("large"), other.get("b")) == (None, 2)
    one.keep("d", 4, 1)
    assert (one.get("a"), one.get("d"), other.get("b"), apart.get("c")) == (None, 4, None, 3)
    other.keep("e", 5, 99)
    del one  # what it kept counts no more
    other.keep("f", 6, 1)
    assert (other.get("e"), other.get("f")) == (5, 6)
    other.drop()
    other.keep("g", 7, 100)
    assert (other.get("e"), other.get("g")) == (None, 7)
