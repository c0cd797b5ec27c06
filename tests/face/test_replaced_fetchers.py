"""A fetcher that other code has put in place of torch's makes the batches in our workers: NOTE [ Replaced ], (a)."""

from __future__ import annotations

import contextlib
import functools
import pathlib
from typing import Any

import pytest
import torch
from conftest import BOTH, assert_same
from others_code import ALL_WORKERS, WORKERS, Proxy, assert_as_torch, epochs, negate_result, torch_is_whole
from torch.utils.data import IterableDataset, _utils, default_collate, get_worker_info
from torch.utils.data import dataloader as torchs

import shmloader

__all__ = ["torch_is_whole"]


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index)])


class Packs(torch.utils.data.Sampler):
    """Gives lists of lists, as a sampler that packs sequences does."""

    def __iter__(self) -> Any:
        for first in range(0, 12, 4):
            yield [[first, first + 1], [first + 2, first + 3]]

    def __len__(self) -> int:
        return 3


class Packing(_utils.fetch._BaseDatasetFetcher):
    """As axolotl's: each list of indices becomes one sample."""

    def fetch(self, possibly_batched_index: Any) -> Any:
        packed = [torch.cat([self.dataset[index] for index in pack]) for pack in possibly_batched_index]
        return self.collate_fn(packed)


class Negating(_utils.fetch._MapDatasetFetcher):
    def fetch(self, possibly_batched_index: Any) -> Any:
        return -super().fetch(possibly_batched_index)


def negating(fetch: Any) -> Any:
    @functools.wraps(fetch)
    def negated(self: Any, possibly_batched_index: Any) -> Any:
        return -fetch(self, possibly_batched_index)

    return negated


def inverted(self: Any, dataset: Any, auto_collation: Any, collate_fn: Any, drop_last: Any) -> None:
    INIT(self, dataset, auto_collation, lambda samples: -collate_fn(samples), drop_last)


INIT = _utils.fetch._BaseDatasetFetcher.__init__
CREATE = torchs._DatasetKind.create_fetcher
FETCH = _utils.fetch._MapDatasetFetcher.fetch


def created(kind: int, *arguments: Any) -> Any:
    fetcher = CREATE(kind, *arguments)
    fetch = fetcher.fetch
    fetcher.fetch = lambda index: -fetch(index)
    return fetcher


def partially(method: Any, self: Any, index: Any) -> Any:
    return -method(self, index)


FETCHERS: dict[str, tuple[Any, str, Any]] = {
    "class": (_utils.fetch, "_MapDatasetFetcher", Negating),
    "fetch": (_utils.fetch._MapDatasetFetcher, "fetch", negating(FETCH)),
    "proxy": (_utils.fetch._MapDatasetFetcher, "fetch", Proxy(FETCH, negate_result)),
    "partial": (
        _utils.fetch._MapDatasetFetcher,
        "fetch",
        property(lambda self: functools.partial(partially, FETCH, self)),
    ),
    "init": (_utils.fetch._BaseDatasetFetcher, "__init__", inverted),
    "init of the map's": (_utils.fetch._MapDatasetFetcher, "__init__", inverted),
    "create": (torchs._DatasetKind, "create_fetcher", staticmethod(created)),
    "factory": (_utils.fetch, "_MapDatasetFetcher", lambda *arguments: Negating(*arguments)),
}


def is_negative(batches: list[Any]) -> bool:
    return all(torch.all(batch <= 0) for epoch in batches for batch in epoch)


@pytest.mark.parametrize("what", FETCHERS)
@WORKERS
def test_a_replaced_fetcher_makes_the_batches(
    what: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, by = FETCHERS[what]
    monkeypatch.setattr(owner, name, by)
    assert_as_torch(lambda kind: kind(Numbers(), batch_size=5, shuffle=True, **options), is_negative)


@pytest.mark.parametrize(
    ("options", "collate"), [*zip(ALL_WORKERS, [default_collate, torch.stack, default_collate], strict=True)]
)
def test_packed_batches(options: dict[str, Any], collate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_utils.fetch, "_MapDatasetFetcher", Packing)
    assert_as_torch(
        lambda kind: kind(Numbers(), batch_sampler=Packs(), collate_fn=collate, **options),
        lambda batches: [batch.shape for batch in batches[0]] == [(2, 2)] * 3,
    )


def twos(workers: int, kind: Any) -> Any:
    return kind(Numbers(), batch_size=4, num_workers=workers)


def test_a_fetcher_may_collate_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def halves(self: Any, indices: Any) -> Any:
        samples = [self.dataset[index] for index in indices]
        assert self.collate_fn is default_collate
        return [self.collate_fn(samples[:2]), self.collate_fn(samples[2:])]

    monkeypatch.setattr(_utils.fetch._MapDatasetFetcher, "fetch", halves)
    for workers in (0, 1):
        assert_as_torch(
            functools.partial(twos, workers), lambda batches: [len(batch) for batch in batches[0]] == [2, 2, 2]
        )


def memory_of(tensor: torch.Tensor) -> str:
    """The name of the memory in which a tensor lies in this process."""
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(each, 16) for each in line.split()[0].split("-"))
        if first <= tensor.data_ptr() < last:
            return line.split(maxsplit=5)[-1]
    raise AssertionError


def test_its_batch_is_collated_into_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(self: Any, packs: Any) -> Any:
        batch = self.collate_fn([self.dataset[index] for pack in packs for index in pack])
        return batch, memory_of(batch)

    monkeypatch.setattr(Packing, "fetch", fetch)
    monkeypatch.setattr(_utils.fetch, "_MapDatasetFetcher", Packing)
    loader = shmloader.DataLoader(Numbers(), batch_sampler=[[[0, 1], [2]]] * 2, num_workers=1)
    first, (batch, where) = loader  # small leaves of the first one are collated elsewhere: Part in ring/parts.pxi
    assert first[0].tolist() == batch.tolist() == [[0], [1], [2]] and where == memory_of(batch)


def test_replaced_in_the_worker_alone() -> None:
    def init(worker: int) -> None:
        _utils.fetch._MapDatasetFetcher = Negating

    assert_as_torch(
        lambda kind: kind(Numbers(), batch_size=4, num_workers=2, worker_init_fn=init),
        is_negative,
    )


def by_import(worker: int) -> None:
    """As the import of other code's module in a spawned worker."""
    _utils.fetch._MapDatasetFetcher = Negating


@pytest.mark.long
@pytest.mark.parametrize(("method", "init"), [("spawn", None), ("forkserver", by_import)])
def test_in_a_spawned_worker_it_is_as_in_torch(method: str, init: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker imports torch again, so only what its own imports and `worker_init_fn` replace has an effect."""
    monkeypatch.setattr(_utils.fetch, "_MapDatasetFetcher", Negating)
    assert_as_torch(
        lambda kind: kind(Numbers(), batch_size=4, num_workers=1, multiprocessing_context=method, worker_init_fn=init),
        lambda batches: is_negative(batches) is (init is not None),
    )


ONE_BY_ONE: list[dict[str, Any]] = [
    {"on_bad_sample": "skip"},
    {"chunk_size": 2},
    {"sample_seeds": True},
    {"schedule": "steal"},
    {"group_by": len},
]


@pytest.mark.parametrize(("options", "workers"), [(each, k % 2) for k, each in enumerate(ONE_BY_ONE)])
def test_options_that_make_samples_one_by_one_are_errors(
    options: dict[str, Any], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = shmloader.DataLoader(Numbers(), batch_size=4, num_workers=workers, **options)
    monkeypatch.setattr(_utils.fetch, "_MapDatasetFetcher", Negating)
    says = r"needs torch's own fetcher.*_MapDatasetFetcher \(Negating\).fetch \(.*test_replaced_[a-z]+\.py:\d+\)"
    with pytest.raises(ValueError, match=f"^{next(iter(options))}.*{says}"):
        iter(loader)
    with pytest.raises(ValueError, match=says):
        shmloader.DataLoader(Numbers(), batch_size=4, num_workers=workers, **options)


def test_other_options_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_utils.fetch, "_MapDatasetFetcher", Negating)
    options = {"on_worker_death": "respawn", "persistent_workers": True, "spare_slots": 1}
    with shmloader.DataLoader(Numbers(), batch_size=4, num_workers=1, **options) as loader:
        assert is_negative(epochs(loader)) and loader.rides_ring


def test_such_an_option_and_a_fetcher_of_the_worker_alone() -> None:
    loader = shmloader.DataLoader(Numbers(), num_workers=1, sample_seeds=True, worker_init_fn=by_import)
    with pytest.raises(ValueError, match=r"sample_seeds.*needs torch's own fetcher"):
        next(iter(loader))


# -------------------------------------------------------------------------------------------------------------- streams


class Count(IterableDataset):
    """Numbers; each of two workers has every second."""

    def __iter__(self) -> Any:
        info = get_worker_info()
        yield from map(float, range(info.id if info else 0, 24, info.num_workers if info else 1))


class Pairs(_utils.fetch._IterableDatasetFetcher):
    """Adds two samples each, so it takes more than a batch has."""

    def fetch(self, possibly_batched_index: Any) -> Any:
        found = [
            (one, other)
            for _, one, other in zip(possibly_batched_index, self.dataset_iter, self.dataset_iter, strict=False)
        ]
        if not found:
            raise StopIteration
        return self.collate_fn([one + other for one, other in found])


class OfItsOwn:
    """Has nothing of torch's fetcher; it keeps back one sample for the next batch."""

    def __init__(self, dataset: Any, auto_collation: bool, collate_fn: Any, drop_last: bool) -> None:
        self.source, self.collate, self.kept = iter(dataset), collate_fn, 100.0

    def fetch(self, index: Any) -> Any:
        read = [self.kept, *(sample for _, sample in zip(index, self.source, strict=False))]
        if len(read) == 1:
            raise StopIteration
        self.kept = read.pop()
        return self.collate(read)


@pytest.mark.parametrize(
    "options", [{}, *(pytest.param(each, marks=pytest.mark.off_the_ring) for each in ALL_WORKERS[1:])], ids=str
)
@pytest.mark.parametrize("by", [Pairs, OfItsOwn])
def test_torchs_iterator_serves_a_stream(by: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A replaced fetcher may take any number of samples for a batch, so nothing can count them."""
    monkeypatch.setattr(_utils.fetch, "_IterableDatasetFetcher", by)
    theirs, ours = (kind(Count(), batch_size=3, **options) for kind in BOTH)
    says = rf"_IterableDatasetFetcher \({by.__name__}\).*, which may take any number of samples"
    with pytest.warns(RuntimeWarning, match=says) if options else contextlib.nullcontext():
        batches = epochs(ours)
    assert_same(batches, epochs(theirs))
    assert float(batches[0][0][0]) == (100 if by is OfItsOwn else 2 if options else 1)
    assert not ours.rides_ring
    with pytest.raises(RuntimeError, match=says):
        ours.state_dict()
    with pytest.raises(RuntimeError, match=says):
        ours.load_state_dict({})


def test_a_stream_and_a_fetcher_of_the_worker_alone() -> None:
    def init(worker: int) -> None:
        _utils.fetch._IterableDatasetFetcher = Pairs

    loader = shmloader.DataLoader(Count(), num_workers=1, worker_init_fn=init)
    with pytest.raises(ValueError, match=r"Pairs.*Have the trainer's process replace it, too"):
        next(iter(loader))
