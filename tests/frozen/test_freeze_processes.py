"""Workers and ranks read one copy of a frozen dataset, and nothing of it is left when they end."""

from __future__ import annotations

import os
import re
import signal
from typing import Any

import numpy
import pytest
import torch
from scripts import run_script

import shmloader
from shmloader.core.frozen_rows import FrozenList
from shmloader.system.sealed_memory import SealedMemory, memory_of


class Mapped(torch.utils.data.Dataset[Any]):
    """Each sample says which file its attributes lie in."""

    def __init__(self, length: int = 300) -> None:
        self.samples = [(f"{k}.jpg", k % 10) for k in range(length)]
        self.features = numpy.arange(length * 16.0).reshape(length, 16)
        self.table = torch.arange(length * 16).reshape(length, 16)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[int, int, int, Any, Any]:
        path, label = self.samples[index]
        self.features[index, 0] = os.getpid()  # a write of this process alone
        files = {
            inode_of(self.samples.pages.memory),
            *(inode_of(sealed_memory_of(part)) for part in (self.features, self.table)),
        }
        (inode,) = files
        return inode, label, int(path.removesuffix(".jpg")), self.features[index, 1], self.table[index]


def sealed_memory_of(part: Any) -> SealedMemory:
    found = memory_of(part)
    assert found is not None
    return found[0]


def inode_of(memory: SealedMemory) -> int:
    return os.fstat(memory.fd).st_ino


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_map_the_trainers_copy(method: str) -> None:
    dataset = shmloader.freeze(Mapped())
    loader = shmloader.DataLoader(dataset, batch_size=50, num_workers=2, multiprocessing_context=method)
    found = list(loader)
    assert [int(inode) for batch in found for inode in batch[0]] == [inode_of(dataset.samples.pages.memory)] * 300
    assert torch.cat([batch[2] for batch in found]).tolist() == list(range(300))
    assert torch.cat([batch[4] for batch in found]).equal(torch.arange(300 * 16).reshape(300, 16))
    assert dataset.features[:, 0].tolist() == [k * 16.0 for k in range(300)]  # no worker's write


def test_a_copy_ends_with_what_holds_it() -> None:
    def mapped() -> int:
        with open("/proc/self/maps") as maps:
            return len(re.findall("shmloader_frozen", maps.read()))

    before = mapped()
    dataset = shmloader.freeze(Mapped())
    samples, features = dataset.samples, dataset.features
    del dataset
    assert mapped() == before + 1
    del samples
    assert features[3, 1] == 49.0 and mapped() == before + 1
    del features
    assert mapped() == before


def test_nothing_is_kept_of_what_the_originals_took() -> None:
    ran = run_script(
        """
        import gc, torch, shmloader

        def own_bytes():
            with open("/proc/self/smaps_rollup") as file:
                return sum(int(line.split()[1]) << 10 for line in file if line.startswith("Pss_Anon:"))

        class Boxes(torch.utils.data.Dataset):
            def __init__(self, length):
                self.paths = [f"{k:0100d}.jpg" for k in range(length)]
                self.boxes = [(float(k), k + 1.0, k / 3, k / 7) for k in range(length)]

        shmloader.freeze(Boxes(1000))  # all is imported by now
        before = own_bytes()
        dataset = Boxes(100_000)
        took = own_bytes() - before
        shmloader.freeze(dataset)
        print(took, own_bytes() - before)
        """,
        fresh=True,
    )
    assert ran.status == 0, ran.err
    took, remaining = map(int, ran.out.split())
    assert took > 30 << 20 and remaining < took // 6, (took, remaining)


def test_a_killed_trainer_leaves_nothing() -> None:
    ran = run_script(
        """
        import os, signal
        from tests.frozen.test_freeze_processes import Mapped
        import shmloader
        loader = shmloader.DataLoader(shmloader.freeze(Mapped()), num_workers=1, batch_size=9)
        next(iter(loader))
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    assert ran.status == -signal.SIGKILL  # conftest looks for what is left


RANKS = """
    import os, sys, torch, torch.distributed as dist
    from tests.frozen.test_freeze_processes import Mapped, inode_of
    import shmloader

    def rank(number, meet, results):
        dist.init_process_group("gloo", init_method=f"file://{meet}", rank=number, world_size=3)
        dataset = Mapped(300 if number < 2 else 301)
        shmloader.freeze(dataset, share_with_ranks=True)
        unshared = shmloader.freeze(Mapped(), share_with_ranks=False)
        found = [None] * 3
        dist.all_gather_object(found, (inode_of(dataset.samples.pages.memory), inode_of(unshared.samples.pages.memory)))
        results.put((number, found, dataset.samples[299]))
        dist.barrier()
        dist.destroy_process_group()

    if __name__ == "__main__":
        context = torch.multiprocessing.get_context("fork")
        meet = os.path.join(os.environ["SHMLOADER_TEST_DIR"], "meet")
        results = context.SimpleQueue()
        ranks = [context.Process(target=rank, args=(k, meet, results)) for k in range(3)]
        [each.start() for each in ranks]
        of_ranks = sorted(results.get() for _ in ranks)
        [each.join() for each in ranks]
        assert all(found == of_ranks[0][1] for _, found, _ in of_ranks), of_ranks
        assert all(last == ("299.jpg", 9) for *_, last in of_ranks), of_ranks
        (first, *_), (second, *_), (third, *_) = of_ranks[0][1]
        print(first == second, first == third, len({unshared for _, unshared in of_ranks[0][1]}))
"""


def test_ranks_of_the_same_bytes_have_one_copy() -> None:
    ran = run_script(RANKS)
    assert (ran.status, ran.out) == (0, "True False 3\n"), ran.err


def test_who_comes_first_may_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    store = torch.distributed.HashStore()
    monkeypatch.setattr("shmloader.frozen.one_copy._store", lambda: store)
    first = shmloader.freeze(Mapped())
    second = shmloader.freeze(Mapped())
    assert inode_of(second.samples.pages.memory) == inode_of(first.samples.pages.memory)
    del first, second  # the descriptor in the store is another's now, or nobody's
    third = shmloader.freeze(Mapped())
    fourth = shmloader.freeze(Mapped())
    assert type(third.samples) is FrozenList and third.samples == Mapped().samples
    assert inode_of(fourth.samples.pages.memory) == inode_of(third.samples.pages.memory)
