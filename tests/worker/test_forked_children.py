"""A process that a dataset forks, or that is forked beside a loader, leaves the ring alone."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from conftest import assert_same, iterate, label
from scripts import start_script
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, IterableDataset, default_collate

import shmloader
from shmloader.private import of_torch

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")

LENGTH, BATCH = 24, 4


def sample(index: int) -> dict[str, torch.Tensor]:
    return {"x": torch.full((300,), float(index)), "i": torch.tensor(index)}


def in_child(what: Callable[[], Any]) -> int:
    """Fork a child that does this, and wait for its end; in the child: whatever `what` returns or raises."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # another test reads what it says
    what()
    return -1


def raises() -> None:
    raise ValueError("in the child")


CHILDREN = {
    "raises": raises,
    "stops": lambda: next(iter(())),
    "exits": sys.exit,
    "returns": lambda: None,
}


class Forks(Dataset[Any]):
    """Its sample 5 forks a child, and so does sample 14."""

    def __init__(self, child: str) -> None:
        self.child = child

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        if index in (5, 14):
            in_child(CHILDREN[self.child])
        return sample(index)


class Stream(IterableDataset[Any]):
    """The same as a stream, which says where it is."""

    def __init__(self, child: str) -> None:
        self.child, self.at = child, 0

    def __iter__(self) -> Iterator[Any]:
        for at in range(self.at, LENGTH):
            if at in (5, 14):
                in_child(CHILDREN[self.child])
            self.at = at + 1
            yield sample(at)
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class InPlace(Forks):
    @property
    def row_spec(self) -> Any:
        return sample(0)

    def __getitem_into__(self, index: int, row: Any) -> Any:
        row["x"].fill_(float(index))
        if index in (5, 14):
            in_child(CHILDREN[self.child])
        return {"x": row["x"], "i": torch.tensor(index)}


def assert_undisturbed(dataset: Any, **options: Any) -> None:
    """The batches are what a dataset without a child gives."""
    options = {"batch_size": BATCH, "num_workers": 2, **options}
    plain = [sample(k) for k in range(LENGTH)]
    expected = iterate(TorchLoader(plain, batch_size=options["batch_size"]))  # type: ignore[arg-type]
    assert_same(iterate(shmloader.DataLoader(dataset, **options)), expected)


@pytest.mark.parametrize("child", CHILDREN)
@pytest.mark.parametrize("kind", [Forks, Stream, InPlace])
def test_that_comes_out_of_the_dataset(kind: Any, child: str) -> None:
    """It has gone on as a second worker, with the first one's number, and has published what it made."""
    assert_undisturbed(kind(child), num_workers=1)


class Late:
    """A collate function whose child collates once its parent has done so, at the same place of the slot."""

    def __call__(self, samples: list[Any]) -> Any:
        first = default_collate([part["x"] for part in samples])
        go_on, done = os.pipe(), os.pipe()
        if not (child := os.fork()):
            try:
                os.close(go_on[1])
                os.read(go_on[0], 1)
                default_collate([torch.tensor(-7)] * len(samples))
                default_collate([torch.full((1 << 18,), -1.0)] * len(samples))
                os.write(done[1], b".")
            finally:
                os._exit(0)
        second = default_collate([part["i"] for part in samples])
        os.close(go_on[1])
        os.read(done[0], 1)
        os.waitpid(child, 0)
        for fd in (go_on[0], *done):
            os.close(fd)
        return {"x": first, "i": second}


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_that_collates_beside_its_parent(start: str) -> None:
    assert_undisturbed([sample(k) for k in range(LENGTH)], collate_fn=Late(), multiprocessing_context=start)


SAYS = """
    import os, sys, torch, shmloader

    class Forks(torch.utils.data.Dataset):
        def __len__(self): return 4

        def __getitem__(self, index):
            if index == 2:
                if child := os.fork():
                    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
                elif sys.argv[1] == "raises":
                    raise ValueError("in the child")
            return index

    print([batch.tolist() for batch in shmloader.DataLoader(Forks(), batch_size=2, num_workers=1)])
"""


@pytest.mark.parametrize(
    ("child", "says", "does_not"),
    [
        ("returns", "RuntimeError: this process, which was forked in DataLoader worker 0, is no worker", "ValueError"),
        pytest.param("raises", "ValueError: in the child", "is no worker", marks=pytest.mark.long),
    ],
)
def test_its_message(child: str, says: str, does_not: str) -> None:
    process = start_script(SAYS, child)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and out == "[[0, 1], [2, 3]]\n", f"{out}\n{err}"
    assert says in err and does_not not in err and err.count("Traceback") == 1, err


# ------------------------------------------------------------------------------------------------- of the trainer


def _goes_on(loader: Any, iterator: Any) -> None:
    with pytest.raises(RuntimeError, match="forked from that"):
        next(iterator)


def _begins_again(loader: Any, iterator: Any) -> None:
    assert len(list(loader)) == LENGTH // BATCH


def _asks(loader: Any, iterator: Any) -> None:
    loader.state_dict()
    loader.report()
    len(loader)


def _drops(loader: Any, iterator: Any) -> None:
    loader.close()
    iterator.close()
    del loader, iterator
    gc.collect()


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}, {"device": "cpu"}], ids=label)
@pytest.mark.parametrize("does", [_goes_on, _begins_again, _asks, _drops])
def test_of_the_trainer(does: Callable[[Any, Any], None], options: dict[str, Any]) -> None:
    with shmloader.DataLoader([sample(k) for k in range(LENGTH)], BATCH, num_workers=1, **options) as loader:  # type: ignore[arg-type]
        iterator = iter(loader)
        got = [next(iterator)]
        assert in_child(lambda: _and_exit(does, loader, iterator)) == 0
        got += list(iterator)
        assert torch.equal(torch.cat([batch["i"] for batch in got]), torch.arange(LENGTH))
        assert len(list(loader)) == LENGTH // BATCH


def _and_exit(does: Callable[[Any, Any], None], *given: Any) -> None:
    status = 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            does(*given)
        status = 0
    finally:
        os._exit(status)


def test_a_forked_child_may_have_an_object_where_its_parent_had_another() -> None:
    """Workers are known to torch by the address of their worker set, and the child has its parent's list of them."""
    of_torch.watch_pids(1, ())
    try:
        of_torch.watch_pids(1, ())
    finally:
        of_torch.unwatch_pids(1)
