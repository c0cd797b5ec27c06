"""Bad arguments and bad inputs are refused with torch's own words, or with the value, the limit and the remedy."""

from __future__ import annotations

import time
import warnings
from typing import Any

import pytest
from conftest import BOTH, WARNS_OF_PICKLING, Augmented, Raised, assert_same, iterate
from torch.utils.data import IterableDataset

import shmloader


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(range(3))


@pytest.mark.parametrize("spare", [-1, 1.0, True, None, "2"])
def test_spare_slots(spare: Any) -> None:
    with pytest.raises(
        ValueError, match=f"spare_slots should be a non-negative integer, but got spare_slots={spare!r}"
    ):
        shmloader.DataLoader(Augmented(), spare_slots=spare)


@pytest.mark.parametrize("memory", ["", "shm", "memfd "])
def test_ring_memory(monkeypatch: pytest.MonkeyPatch, memory: str) -> None:
    monkeypatch.setenv("SHMLOADER_RING_MEMORY", memory)
    text = f"should be auto, posix or memfd, but got SHMLOADER_RING_MEMORY={memory!r}. Unset it"
    with pytest.raises(ValueError, match=text):
        iter(shmloader.DataLoader(Augmented(), num_workers=1))


ROWS: dict[str, tuple[Any, dict[str, Any]]] = {
    "1": (Augmented, {"num_workers": -1}),
    "2": (Augmented, {"timeout": -1}),
    "3": (Augmented, {"prefetch_factor": 2}),
    "4": (Augmented, {"prefetch_factor": -1, "num_workers": 1}),
    "4, zero": (Augmented, {"prefetch_factor": 0, "num_workers": 1}),
    "5": (Augmented, {"persistent_workers": True}),
    "6": (Augmented, {"multiprocessing_context": "fork"}),
    "7": (Augmented, {"multiprocessing_context": "x", "num_workers": 1}),
    "7, object": (Augmented, {"multiprocessing_context": 3, "num_workers": 1}),
    "8, shuffle": (Stream, {"shuffle": True}),
    "8, sampler": (Stream, {"sampler": [1]}),
    "8, batch_sampler": (Stream, {"batch_sampler": [[1]]}),
    "9": (Augmented, {"sampler": [1], "shuffle": True}),
    "10, batch_size": (Augmented, {"batch_sampler": [[1]], "batch_size": 2}),
    "10, shuffle": (Augmented, {"batch_sampler": [[1]], "shuffle": True}),
    "10, sampler": (Augmented, {"batch_sampler": [[1]], "sampler": [1]}),
    "10, drop_last": (Augmented, {"batch_sampler": [[1]], "drop_last": True}),
    "11": (Augmented, {"batch_size": None, "drop_last": True}),
    "12": (lambda: Augmented(0), {"shuffle": True}),
    "12, in order": (lambda: Augmented(0), {"num_workers": 1}),
    "13": (Augmented, {"batch_size": 0}),
    "13, float": (Augmented, {"batch_size": 2.0}),
    "13, bool": (Augmented, {"batch_size": True}),
    "14": (Augmented, {"drop_last": 1}),
    "15, str": (Augmented, {"num_workers": "2"}),
    "15, float": (Augmented, {"num_workers": 1.5}),
    "prefetch_factor float": (Augmented, {"num_workers": 1, "prefetch_factor": 1.5}),
    "timeout without workers": (Augmented, {"timeout": 1}),
    "unknown": (Augmented, {"unknown": 1}),
    "order of checks": (Augmented, {"num_workers": -1, "timeout": -1, "batch_size": 0}),
    "positional": (Augmented, {"batch_size": 3, "shuffle": None, "sampler": None}),
    "collate": (Augmented, {"collate_fn": 3, "num_workers": 1}),
    "init": (Augmented, {"worker_init_fn": 3, "num_workers": 1}),
    "no dataset": (lambda: 3, {"num_workers": 1}),
}


@pytest.mark.parametrize("row", ROWS)
def test_torchs_own_errors(row: str) -> None:
    dataset, options = ROWS[row]

    def error_of(kind: type) -> Any:
        try:
            loader = kind(dataset(), **options)
        except Exception as error:
            return "constructor", type(error), str(error).replace(f"{kind.__module__}.", "")
        got = iterate(loader, 50)
        return [(batch.kind, batch.first_line) if isinstance(batch, Raised) else "batch" for batch in got]

    theirs, ours = (error_of(kind) for kind in BOTH)
    assert ours == theirs


@pytest.mark.parametrize(
    "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_what_cannot_be_set_afterwards(name: str) -> None:
    texts = []
    for kind in BOTH:
        with pytest.raises(ValueError) as caught:
            setattr(kind(Augmented()), name, None)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_a_dataset_that_cannot_be_pickled() -> None:
    messages = []
    bad = lambda: 1  # noqa: E731
    for kind in BOTH:
        dataset = Augmented()
        dataset.bad = bad
        with warnings.catch_warnings(record=True) as caught, pytest.raises(Exception) as raised:
            warnings.simplefilter("always")
            iter(kind(dataset, num_workers=2, multiprocessing_context="spawn"))
        messages.append((type(raised.value), str(raised.value), [str(w.message) for w in caught]))
    theirs, ours = messages
    assert ours[:2] == theirs[:2] and "Got pickle error" in ours[2][0]
    assert theirs[2] == (ours[2] if WARNS_OF_PICKLING else [])


def test_an_index_that_cannot_be_pickled() -> None:
    """torch waits for ever here."""
    got = iterate(shmloader.DataLoader(Augmented(4), sampler=[0, 1, lambda: 1, 2, 3], num_workers=1, batch_size=None))
    assert sum(isinstance(batch, Raised) for batch in got) == 1


class Slow(Augmented):
    def __getitem__(self, index: int) -> Any:
        if index == 3:
            time.sleep(0.8)
        return index


def test_a_timeout_and_then_its_batch() -> None:
    for kind in BOTH:
        iterator = iter(kind(Slow(6), num_workers=1, timeout=0.3, prefetch_factor=1))
        got: list[Any] = []
        texts = set()
        while True:
            try:
                got.append(next(iterator).item())
            except StopIteration:
                break
            except RuntimeError as error:
                texts.add(str(error).splitlines()[0])  # ours says more, see test_respawn.py
        assert got == [0, 1, 2, 3, 4, 5] and texts == {"DataLoader timed out after 0.3 seconds"}


def test_a_sampler_that_gives_none() -> None:
    class Anything(Augmented):
        def __getitem__(self, index: Any) -> Any:
            return repr(index)

    got = iterate(shmloader.DataLoader(Anything(), batch_size=None, sampler=[None, 1, None], num_workers=2))
    assert got == ["None", "1", "None"]


@pytest.mark.parametrize("ranks", ["0", "", "all", "-1", "4"])
def test_any_declared_number_of_ranks(monkeypatch: pytest.MonkeyPatch, ranks: str) -> None:
    """It decides about spinning alone, and another launcher than torchrun may say anything."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert [batch.item() for batch in shmloader.DataLoader(range(3), num_workers=1)] == [0, 1, 2]


@pytest.mark.parametrize("options", [{"sample_seeds": True}, {"schedule": "steal"}])
def test_what_is_no_batch_where_samples_are_seeded(options: dict[str, Any]) -> None:
    theirs, ours = (
        iterate(
            kind(range(4), batch_sampler=[[0, 1], 2, [3]], num_workers=1, **(options if kind is not BOTH[0] else {}))
        )
        for kind in BOTH
    )
    assert_same(ours[::2], theirs[::2])
    assert (ours[1].kind, ours[1].first_line) == (theirs[1].kind, theirs[1].first_line)
