"""A sampler over an array gives numpy.int64: they arrive as such, and without a pickle; all else arrives as it was."""

from __future__ import annotations

import pickle
from typing import Any

import numpy
import pytest
import torch
from conftest import BOTH
from hostile import BothSides
from torch.utils.data import SubsetRandomSampler

from shmloader.ring.tasks import read_task

EDGES = [0, -1, 7, (1 << 63) - 1, -(1 << 63)]
LISTS: dict[str, Any] = {
    "one": numpy.int64(5),
    "edges": list(numpy.array(EDGES)),
    "mixed": [numpy.int64(1), 2],
    "mixed, an int first": [1, numpy.int64(2)],
    "many, the last is another": [*numpy.arange(30), numpy.int32(3)],
    "narrow": [numpy.int32(1), numpy.int32(2)],
    "unsigned": [numpy.uint64((1 << 64) - 1)],
    "long long": [numpy.longlong(4)] * 3,
    "bools": [numpy.bool_(True)],
    "floats": [numpy.float64(1.5)],
    "one that is narrow": numpy.int16(3),
    "an array": numpy.arange(3),
    "a tuple": tuple(numpy.arange(3)),
    "in a list": [[numpy.int64(1)], [numpy.int64(2)]],
    "empty": [],
}


def named(task: Any) -> Any:
    if isinstance(task, (list, tuple)):
        return [type(task).__name__, *map(named, task)]
    return type(task), task.tolist() if isinstance(task, (numpy.generic, numpy.ndarray)) else task


def sent(task: Any) -> Any:
    """What torch's queue delivers: NumPy makes an int64 of a long long."""
    return named(pickle.loads(pickle.dumps(task)))


@pytest.mark.parametrize("batched", [True, False])
def test_tasks_arrive_as_they_were(batched: bool) -> None:
    class Named(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: Any) -> Any:
            return named(index)

        def __getitems__(self, indices: Any) -> Any:
            return named(indices)

    tasks = [task for task in LISTS.values() if isinstance(task, (list, tuple)) is batched] * 2
    options: dict[str, Any] = {"batch_sampler": tasks} if batched else {"batch_size": None, "sampler": tasks}
    theirs, ours = (list(kind(Named(), num_workers=2, collate_fn=as_it_is, **options)) for kind in BOTH)
    assert ours == theirs == list(map(sent, tasks))


def as_it_is(batch: Any) -> Any:
    return batch


PICKLED = set(LISTS) - {"one", "edges", "empty"}


@pytest.mark.parametrize("name", LISTS)
def test_only_other_ones_are_pickled(name: str) -> None:
    with BothSides() as ring:
        written = ring.claim(LISTS[name])
        assert (type(written) is bytes) == (name in PICKLED)
        assert named(read_task(written)) == sent(LISTS[name])


class Types(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: Any) -> Any:
        return f"{type(index).__name__} {index}"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"schedule": "steal"},
        {"chunk_size": 3},
        {"on_worker_death": "respawn"},
        {"in_order": False, "num_workers": 1},
        {"look_ahead": 2},
    ],
    ids=str,
)
def test_what_a_dataset_gets(options: dict[str, Any]) -> None:
    def epoch(kind: Any, **options: Any) -> list[Any]:
        torch.manual_seed(3)
        sampler = SubsetRandomSampler(numpy.arange(5, 40))
        return list(kind(Types(), 8, sampler=sampler, **{"num_workers": 2, **options}))

    theirs, ours = epoch(BOTH[0]), epoch(BOTH[1], **options)
    assert ours == theirs and all(text.startswith("int64 ") for batch in ours for text in batch)


def test_a_dead_workers_task_is_opened_again() -> None:
    with BothSides() as ring:
        for task in (numpy.int64(-3), list(numpy.array(EDGES))):
            ring.claim(task)
            assert named(ring.trainer.task(ring.worker.sequence)) == named(task)
            ring.die()
            assert named(ring.claim_again()) == named(task)
            ring.worker.allocate(1)
            ring.worker.describe([0], pickle.dumps((None,)))
            ring.worker.publish(0)
            with pytest.raises(Exception, match="not subscriptable"):  # of a batch without its object
                ring.take()
