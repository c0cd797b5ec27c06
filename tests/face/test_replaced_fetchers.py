"""A fetcher that other code has put in place of torch's makes the batches in our workers: NOTE [ Replaced ], (a)."""

from __future__ import annotations

import contextlib
import functools
import itertools
import pathlib
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import assert_same
from others_code import ALL_WORKERS, WORKERS, Proxy, assert_as_torch, negate_result, torch_is_whole
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


class Stateful(IterableDataset):
    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Any:
        self.next, first = 0, self.next
        for k in range(first, 12):
            self.next = k + 1
            yield float(k)
        self.next = 0

    def state_dict(self) -> Any:
        return {"next": self.next}

    def load_state_dict(self, state: Any) -> None:
        self.next = state["next"]


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


@pytest.mark.parametrize("options", ALL_WORKERS, ids=str)
@pytest.mark.parametrize("by", [Pairs, OfItsOwn])
def test_a_stream(by: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_utils.fetch, "_IterableDatasetFetcher", by)
    assert_as_torch(
        lambda kind: kind(Count(), batch_size=3, **options),
        lambda batches: float(batches[0][0][0]) == (100 if by is OfItsOwn else 2 if options else 1),
    )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("by", [Pairs, OfItsOwn])
@pytest.mark.filterwarnings("ignore:the dataset Count has no state_dict")
def test_a_stream_resumes_by_batches(by: Any, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_utils.fetch, "_IterableDatasetFetcher", by)

    def make() -> Any:
        return shmloader.DataLoader(Count(), batch_size=3, num_workers=workers)

    whole = list(make())
    for given in sorted({0, 1, 2, len(whole) // 2, len(whole) - 1, len(whole)}):
        loader = make()
        batches = iter(loader)
        for _ in range(given):
            next(batches)
        resumed = make()
        resumed.load_state_dict(loader.state_dict())
        assert resumed.num_workers == workers and resumed.rides_ring is (workers > 0)
        assert_same(list(resumed), whole[given:])
        second = list(resumed)
        assert_same(second, whole)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_with_a_state_resumes_by_that(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_utils.fetch, "_IterableDatasetFetcher", Pairs)
    loader = shmloader.DataLoader(Stateful(), batch_size=2, num_workers=workers)
    batches = iter(loader)
    whole = [next(batches)]
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    whole += list(batches)
    assert [batch.tolist() for batch in whole] == [[1.0, 5.0], [9.0, 13.0], [17.0, 21.0]]
    resumed = shmloader.DataLoader(Stateful(), batch_size=2, num_workers=workers)
    resumed.load_state_dict(state)
    assert_same(list(resumed), whole[1:])
    assert_same(list(resumed), whole)


class Negative(_utils.fetch._IterableDatasetFetcher):
    def fetch(self, possibly_batched_index: Any) -> Any:
        return -super().fetch(possibly_batched_index)


class Flaky(IterableDataset):
    """Sample 2 raises when it is first read.  It comes at the next call, if it is not left out."""

    def __init__(self, raises: bool, leaves_out: bool = False) -> None:
        self.raises, self.leaves_out = raises, leaves_out

    def __iter__(self) -> Any:
        self.next, self.raises_now = 0, self.raises
        return self

    def __next__(self) -> float:
        if self.next == 10:
            raise StopIteration
        if self.next == 2 and self.raises_now:
            self.raises_now = False
            self.next += self.leaves_out
            raise ValueError("sample 2 is bad")
        self.next += 1
        return float(self.next - 1)


def taken(batches: Iterator[Any], count: int) -> list[float]:
    """So many samples, or as many as there are; errors do not count."""
    got: list[float] = []
    while len(got) < count:
        with contextlib.suppress(ValueError):
            batch = next(batches, None)
            if batch is None:
                break
            got += (-batch).reshape(-1).tolist()
    return got


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("size", [None, 2])
@pytest.mark.parametrize("leaves_out", [False, True])
@pytest.mark.parametrize("raises_again", [False, True])
@pytest.mark.filterwarnings("ignore:the dataset Flaky has no state_dict", "ignore:the stream Flaky")
def test_a_stream_that_raised_loses_no_sample(
    workers: int, size: int | None, leaves_out: bool, raises_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_utils.fetch, "_IterableDatasetFetcher", Negative)

    def make(raises: bool) -> Any:
        return shmloader.DataLoader(
            Flaky(raises, leaves_out), batch_size=size, num_workers=workers, collate_fn=torch.tensor
        )

    def loader_behind(count: int) -> tuple[Any, list[float]]:
        loader = make(True)
        return loader, taken(iter(loader), count)

    whole = taken(iter(make(True)), 20)
    assert whole == [float(k) for k in range(10) if not (k == 2 and leaves_out)]
    for count in (0, 2, 4, 8) if size else (0, 1, 2, 3, 5, 9):  # sample 2 raises
        loader, had = loader_behind(count)
        resumed = make(raises_again)
        resumed.load_state_dict(loader.state_dict())
        rest = taken(iter(resumed), 20)
        if raises_again or not leaves_out:
            assert had + rest == whole
        else:
            assert {*whole} <= {*had, *rest} and len(had + rest) <= 10 + (size or 1)


class Ten(IterableDataset):
    def __iter__(self) -> Any:
        return iter([float(k) for k in range(10)])


class Consuming(_utils.fetch._IterableDatasetFetcher):
    """Empties the list that it gets, and has another fetch() from its second batch on."""

    def fetch(self, possibly_batched_index: Any) -> Any:
        self.fetch = self.later
        return self.later(possibly_batched_index, 1)

    def later(self, possibly_batched_index: Any, sign: int = -1) -> Any:
        found: list[float] = []
        while possibly_batched_index:
            possibly_batched_index.pop()
            found.extend(itertools.islice(self.dataset_iter, 1))
        if not found:
            raise StopIteration
        return self.collate_fn([sign * each for each in found])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_fetcher_that_empties_its_task_and_replaces_itself(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_utils.fetch, "_IterableDatasetFetcher", Consuming)

    def is_replaced(got: list[Any]) -> bool:
        return bool((got[0][1] < 0).all())

    assert_as_torch(lambda kind: kind(Ten(), batch_size=3, num_workers=workers), is_replaced)


class Early(_utils.fetch._IterableDatasetFetcher):
    """Reads all at once, and notes the end then."""

    def fetch(self, possibly_batched_index: Any) -> Any:
        if not hasattr(self, "read"):
            self.read = [*self.dataset_iter]
            self.ended = True
            raise ValueError("a batch is bad")
        batch, self.read = self.read[: len(possibly_batched_index)], self.read[len(possibly_batched_index) :]
        if not batch:
            raise StopIteration
        return self.collate_fn(batch)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.filterwarnings("ignore:the dataset Ten has no state_dict")
def test_a_fetcher_that_notes_the_end_early_is_resumed(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_utils.fetch, "_IterableDatasetFetcher", Early)
    loader, resumed = (shmloader.DataLoader(Ten(), batch_size=2, num_workers=workers) for _ in range(2))
    assert taken(iter(loader), 4) == [-0.0, -1, -2, -3]
    resumed.load_state_dict(loader.state_dict())
    assert taken(iter(resumed), 20) == [-4, -5, -6, -7, -8, -9]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.filterwarnings("ignore:the dataset Flaky has no state_dict")
def test_a_state_of_a_resume_that_fails_is_that_of_its_beginning(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_utils.fetch, "_IterableDatasetFetcher", Negative)
    loader, failing, again = (
        shmloader.DataLoader(Flaky(raises), batch_size=2, num_workers=workers) for raises in (False, True, False)
    )
    assert taken(iter(loader), 6) == [0, 1, 2, 3, 4, 5]
    failing.load_state_dict(loader.state_dict())
    batches = iter(failing)
    for _ in range(3):
        with pytest.raises(ValueError, match="sample 2 is bad"):
            next(batches)
    again.load_state_dict(failing.state_dict())
    assert taken(iter(again), 20) == [6, 7, 8, 9]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.filterwarnings("ignore:the dataset Ten has no state_dict")
def test_batches_of_another_size_cannot_be_made_again(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_utils.fetch, "_IterableDatasetFetcher", Negative)
    loader = shmloader.DataLoader(Ten(), batch_size=2, num_workers=workers)
    assert taken(iter(loader), 6) == [0, 1, 2, 3, 4, 5]
    three, four = (shmloader.DataLoader(Ten(), batch_size=size, num_workers=workers) for size in (3, 4))
    three.load_state_dict(loader.state_dict())
    assert taken(iter(three), 20) == [6, 7, 8, 9]
    four.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="that of 6 samples in whole batches, and batches of 4 do not end there"):
        next(iter(four))


class StartsOver(IterableDataset[int]):
    """Behind its last sample, its state is that of the next epoch."""

    position, epoch = 0, 0

    def __iter__(self) -> Iterator[int]:
        while self.position < 5:
            self.position += 1
            yield 10 * self.epoch + self.position
        self.position, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position, self.epoch = state["position"], state["epoch"]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_that_starts_over_is_at_its_end_with_its_last_batch(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_utils.fetch, "_IterableDatasetFetcher", Negative)
    loader = shmloader.DataLoader(StartsOver(), batch_size=2, num_workers=workers)
    batches = iter(loader)
    assert [next(batches).tolist() for _ in range(3)] == [[-1, -2], [-3, -4], [-5]]
    resumed = shmloader.DataLoader(StartsOver(), batch_size=2, num_workers=workers)
    resumed.load_state_dict(loader.state_dict())
    assert list(resumed) == []
    assert len(list(resumed)) == 3
