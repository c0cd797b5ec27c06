"""A loader's state in checkpoints: torch.distributed.checkpoint, and a key for each rank, as torchtitan has."""

from __future__ import annotations

import inspect
import pathlib
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch.utils.data
from conftest import Augmented, assert_same, iterate, seed_all

import shmloader


class Counting(torch.utils.data.IterableDataset):
    """Says where it is with a tensor and a dict, and more the further it is."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 20:
            self.at += 1
            yield self.at

    def state_dict(self) -> dict[str, Any]:
        return {"at": torch.tensor([self.at]), "seen": {str(k): k for k in range(self.at)}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = int(state["at"])
        assert len(state["seen"]) == self.at


class Keeping(torch.utils.data.Sampler):
    """A sampler with a state, whose shape changes."""

    def __init__(self) -> None:
        self.given: list[int] = []

    def __len__(self) -> int:
        return 22

    def __iter__(self) -> Iterator[int]:
        while len(self.given) < 22:
            self.given.append(21 - len(self.given))
            yield self.given[-1]
        self.given = []

    def state_dict(self) -> dict[str, Any]:
        return {"given": torch.tensor(self.given), "each": [{"of": k} for k in self.given]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given = [int(k) for k in state["given"]]


def shuffled() -> Any:
    return shmloader.DataLoader(Augmented(), 4, shuffle=True, num_workers=1, sample_seeds=True)


def lasting() -> Any:
    return shmloader.DataLoader(Augmented(), 4, shuffle=True, num_workers=1, sample_seeds=True, persistent_workers=True)


def streaming() -> Any:
    return shmloader.DataLoader(Counting(), 2, num_workers=2)


def keeping() -> Any:
    return shmloader.DataLoader(Augmented(), 4, sampler=Keeping(), num_workers=1, sample_seeds=True)


LOADERS = (shuffled, lasting, streaming, keeping)


def rest_of(loader: Any, batches: Any) -> list[Any]:
    seed_all(3)  # the next epoch's seed is drawn from there
    rest = [*batches]
    rest += iterate(loader) if loader.persistent_workers else []
    loader.close()
    return rest


@pytest.mark.filterwarnings("ignore:torch.distributed is")
@pytest.mark.parametrize("taken", [0, 2, 5])
@pytest.mark.parametrize("made", LOADERS)
def test_torch_distributed_checkpoint(made: Any, taken: int, tmp_path: pathlib.Path) -> None:
    """It asks a fresh loader which keys there are, and takes dicts in the state apart."""
    import torch.distributed.checkpoint as dcp  # not above: 700 modules, which every process that collects would have

    # Older torch sees for itself that there is no process group.
    single: dict[str, Any] = {"no_dist": True} if "no_dist" in inspect.signature(dcp.save).parameters else {}
    seed_all()
    first = made()
    batches = iter(first)
    for _ in range(taken):
        next(batches)
    dcp.save({"loader": first}, checkpoint_id=tmp_path, **single)
    state, second = first.state_dict(), made()
    dcp.load({"loader": second}, checkpoint_id=tmp_path, **single)
    assert list(second.state_dict()) == list(state) == list(made().state_dict())
    if made is not streaming or taken:
        assert_same(second.state_dict(), state)
    assert_same(rest_of(second, second), rest_of(first, batches))


@pytest.mark.parametrize("name", ["streams", "sampler_state"])
def test_a_state_that_was_taken_apart(name: str) -> None:
    loader = shuffled()
    state = {**loader.state_dict(), name: {"at": 1}}
    with pytest.raises(ValueError, match=f"the state was changed since it was saved: {name} is"):
        loader.load_state_dict(state)


class Titans(shmloader.DataLoader):
    """What torchtitan makes of StatefulDataLoader: the ranks' states beside each other, pickled."""

    def __init__(self, rank: int, ranks: int, *arguments: Any, **options: Any) -> None:
        self.key, self.ranks = f"dp_rank_{rank}", ranks
        super().__init__(*arguments, **options)

    def state_dict(self) -> dict[str, Any]:
        return {self.key: pickle.dumps(super().state_dict()), "world_size": self.ranks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["world_size"] == self.ranks
        super().load_state_dict(pickle.loads(state[self.key]))


@pytest.mark.parametrize("stream", [False, True])
def test_a_key_for_each_rank(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(rank: int) -> Any:
        monkeypatch.setenv("RANK", str(rank))
        dataset: Any = Counting() if stream else Augmented()
        sampler = None if stream else shmloader.DistributedSampler(dataset, 2, rank)
        return Titans(rank, 2, dataset, 2, sampler=sampler, num_workers=1, sample_seeds=not stream)

    saved: dict[str, Any] = {}
    rests = []
    for rank in range(2):
        seed_all(rank)
        batches = iter(loader := made(rank))
        for _ in range(2 + rank):
            next(batches)
        saved |= loader.state_dict()
        rests.append([*batches])
    assert len(saved) == 3
    for rank in range(2):
        loader = made(rank)
        loader.load_state_dict(saved)
        assert_same([*loader], rests[rank])
    if stream:
        saved["dp_rank_1"] = saved["dp_rank_0"]
        with pytest.raises(ValueError, match="Save a state on each rank, and load it there"):
            made(1).load_state_dict(saved)
