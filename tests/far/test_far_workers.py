"""Far workers make the batches that local ones would make: NOTE [ Far workers ] in far/stand_in.py."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pathlib
import pickle
import random
import signal
import time
import uuid
import warnings
from collections.abc import Iterator
from typing import Any

import numpy
import psutil
import pytest
import torch
from conftest import HANGS, assert_same, iterate, seed_all
from drawn import Drawn
from engine import Here, kept_template
from torch.utils.data import Dataset, IterableDataset

import shmloader
from shmloader.far_workers import WorkerCount
from shmloader.options import Options
from shmloader.readers.server import serve
from shmloader.trainer.far_crew import FarCrew
from shmloader.trainer.templates import context_of
from shmloader.trainer.watch import runs

DRAWN = Drawn()  # one for most tests, so that they share a template process


@pytest.fixture(scope="module", autouse=True)
def _template() -> Iterator[None]:
    yield from kept_template(DRAWN)


def ragged(samples: list[Any]) -> list[Any]:
    """A collate function whose batches are no tensors of one shape, and hold an object that only pickle carries."""
    return [{"rows": torch.arange(len(each["name"])), "name": each["name"], "when": {1, 2}} for each in samples]


def until_an_error(loader: Any) -> RuntimeError:
    """The first error of an epoch.  A loader with a dead worker raises it again and again."""
    with pytest.raises(RuntimeError) as error:
        list(loader)
    return error.value


def batches(local: int, far: int, *, dataset: Any = None, epochs: int = 1, **options: Any) -> list[Any]:
    seed_all()
    if far:
        options["far_workers"] = Here(far)
    got: list[Any] = []
    data = DRAWN if dataset is None else dataset
    with shmloader.DataLoader(data, batch_size=4, shuffle=True, num_workers=local, **options) as loader:
        for _ in range(epochs):
            got += [copy.deepcopy(batch) for batch in iterate(loader)]
    return got


SPLITS = pytest.mark.parametrize(("local", "far"), [(1, 2), pytest.param(0, 3, marks=pytest.mark.long)])


@SPLITS
@pytest.mark.parametrize(
    "options",
    [{}, {"schedule": "steal"}, {"sample_seeds": True}, {"on_worker_death": "respawn"}],
    ids=["round robin", "steal", "sample seeds", "respawn"],
)
def test_batches_are_those_of_local_workers(local: int, far: int, options: dict[str, Any]) -> None:
    same_worker = "schedule" not in options  # with stealing, a sample cannot know who makes it
    here, there = batches(3, 0, **options), batches(local, far, **options)
    if not same_worker:
        for each in (*here, *there):
            del each["worker"]
    assert_same(there, here)


def test_a_collate_function_gives_what_it_gives_here() -> None:
    assert_same(batches(1, 1, collate_fn=ragged), batches(2, 0, collate_fn=ragged))


@pytest.mark.parametrize("options", [{}, {"prefetch_epochs": True}, {"on_worker_death": "respawn"}], ids=str)
def test_epochs_follow_each_other_with_workers_that_persist(options: dict[str, Any]) -> None:
    options = {"persistent_workers": True, **options}
    assert_same(batches(1, 1, epochs=3, **options), batches(2, 0, epochs=3, **options))


@pytest.mark.long
def test_each_epoch_with_workers_of_its_own() -> None:
    assert_same(batches(1, 1, epochs=2), batches(2, 0, epochs=2))


class Bad(Drawn):
    """Some samples raise."""

    def __getitem__(self, index: int) -> Any:
        if index % 7 == 3:
            raise ValueError(f"sample {index} is bad")
        return super().__getitem__(index)


def test_an_exception_comes_in_place_of_the_batch() -> None:
    there, here = batches(1, 1, dataset=Bad()), batches(2, 0, dataset=Bad())
    assert_same(there, here)
    assert any(getattr(each, "kind", None) is ValueError for each in there)


@pytest.mark.filterwarnings("ignore:.*bad")
def test_bad_samples_are_replaced_by_the_same_ones() -> None:
    options = {"on_bad_sample": "skip", "max_bad_samples": 1.0}
    assert_same(batches(1, 1, dataset=Bad(), **options), batches(2, 0, dataset=Bad(), **options))


class Unloadable(Drawn):
    """Cannot be unpickled."""

    def __setstate__(self, state: Any) -> None:
        raise RuntimeError("it does not unpickle")


def test_a_dataset_that_cannot_be_unpickled_there_is_an_error_in_place_of_each_batch() -> None:
    errors = batches(0, 1, dataset=Unloadable())
    assert {each.kind for each in errors} == {RuntimeError}
    assert all("it does not unpickle" in each.text for each in errors)


class Growing(Dataset[Any]):
    """Each sample is larger than the one before, so slots grow."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1 << (10 + index),), index)


def test_slots_grow() -> None:
    with shmloader.DataLoader(Growing(), batch_size=1, far_workers=Here(1)) as loader:
        for k, batch in enumerate(loader):
            assert torch.equal(batch, torch.full((1, 1 << (10 + k)), k))


def test_a_batch_for_which_there_is_no_memory_is_the_error_of_local_workers() -> None:
    options: dict[str, Any] = {"batch_size": 1, "max_ring_bytes": 1 << 20}
    with shmloader.DataLoader(Growing(), num_workers=1, **options) as loader:
        here = iterate(loader)
    with shmloader.DataLoader(Growing(), far_workers=Here(1), **options) as loader:
        there = iterate(loader)
    assert [type(each) for each in there] == [type(each) for each in here]
    refused = [each for each in there if not isinstance(each, torch.Tensor)]
    assert refused and all(each.kind is MemoryError for each in refused)
    assert_same([each for each in there if isinstance(each, torch.Tensor)],
                [each for each in here if isinstance(each, torch.Tensor)])  # fmt: skip


class Names(Dataset[Any]):
    """Its columns are frozen."""

    def __init__(self) -> None:
        self.names = [f"name {index}" for index in range(2000)]
        self.numbers = numpy.arange(2000)

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> Any:
        return self.names[index], self.numbers[index]


def test_a_frozen_dataset_travels() -> None:
    frozen = shmloader.freeze(Names())
    assert_same(batches(1, 1, dataset=frozen), batches(2, 0, dataset=Names()))


@pytest.mark.parametrize(
    "options", [{"schedule": "steal"}, pytest.param({}, marks=pytest.mark.long)], ids=["steal", "round robin"]
)
def test_it_resumes_in_mid_epoch(options: dict[str, Any]) -> None:
    seed_all()
    make = {"batch_size": 4, "shuffle": True, **options}
    with shmloader.DataLoader(DRAWN, num_workers=1, far_workers=Here(1), **make) as loader:
        iterator = iter(loader)
        first = [copy.deepcopy(next(iterator)) for _ in range(3)]
        state = loader.state_dict()
        rest = [copy.deepcopy(batch) for batch in iterator]
    seed_all(8)
    with shmloader.DataLoader(DRAWN, num_workers=1, far_workers=Here(2), **make) as loader:
        loader.load_state_dict(state)
        again = [copy.deepcopy(batch) for batch in loader]
    assert len(first) == 3
    keys = ["picture", "target", "drawn", "name"] if options else ["name"]
    assert_same(
        [{key: each[key] for key in keys} for each in again], [{key: each[key] for key in keys} for each in rest]
    )


# ----------------------------------------------------------------------------------------------------------- deaths


class Deadly(Drawn):
    """Far workers end when they make a certain sample, as long as a file is there."""

    def __init__(self, token: pathlib.Path, how: str, times: int = 1) -> None:
        super().__init__()
        self.token, self.how = token, how
        for k in range(times):
            (token / str(k)).touch()

    def __getitem__(self, index: int) -> Any:
        if index == 13:
            for each in sorted(self.token.iterdir()):
                try:
                    each.unlink()
                except FileNotFoundError:
                    continue
                if self.how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                elif self.how == "hang":
                    time.sleep(HANGS)
                else:
                    os.kill(os.getpid(), signal.SIGSTOP)
        return super().__getitem__(index)


@pytest.mark.parametrize("options", [{}, {"schedule": "steal"}], ids=["round robin", "steal"])
def test_a_batch_is_made_again_when_a_far_worker_was_killed(tmp_path: pathlib.Path, options: dict[str, Any]) -> None:
    options = {"on_worker_death": "respawn", **options}
    there = batches(0, 2, dataset=Deadly(tmp_path, "kill"), **options)
    assert not list(tmp_path.iterdir())
    here = batches(2, 0, **options)
    for each in (*here, *there) if options.get("schedule") else ():
        del each["worker"]
    assert_same(there, here)


def test_batches_that_wait_there_are_no_work() -> None:
    """Otherwise a stand-in would be busy for longer than there was time."""
    far = Here(1, in_flight=4)
    options: dict[str, Any] = {"batch_size": 4, "prefetch_factor": 4, "persistent_workers": True, "far_workers": far}
    with shmloader.DataLoader(DRAWN, sampler=[index % 26 for index in range(800)], **options) as loader:
        for _ in range(2):
            assert len(list(loader)) == 200
        stats = loader.stats("epoch")
    assert stats.workers is not None and stats.workers[0].published == 200
    assert 0 < stats.workers[0].busy_s <= stats.elapsed_s


class Until:
    """A sampler that ends where it is told to, while it is used."""

    end: int | None = None

    def __iter__(self) -> Iterator[int]:
        at = 0
        while self.end is None or at < self.end:
            yield at % 26
            at += 1


def test_a_batch_is_not_blamed_for_far_workers_that_were_gone_before_it() -> None:
    """A node dies, with three far workers that have nothing to do.  Their stand-ins claim the last batch in turn."""
    far, sampler = Here(3), Until()
    options: dict[str, Any] = {"schedule": "steal", "on_worker_death": "respawn", "far_workers": far}
    with shmloader.DataLoader(DRAWN, sampler=sampler, batch_size=4, **options) as loader:
        iterator = iter(loader)
        got = [*next(iterator)["name"]]
        sequences = iterator._crew._ring.sequences
        while any(map(sequences.owes, range(3))) or sequences.awaited():
            time.sleep(0.01)
        assert far.session is not None
        for k in range(3):
            far.session.kill(k)
        sampler.end = 4 * (sequences.next_open + 1)
        for batch in iterator:
            got += batch["name"]
    assert got == [f"sample {at % 26}" for at in range(sampler.end)]


def test_a_death_raises_and_names_the_far_worker(tmp_path: pathlib.Path) -> None:
    with shmloader.DataLoader(Deadly(tmp_path, "kill"), batch_size=4, far_workers=Here(1)) as loader:
        text = str(until_an_error(loader))
    assert "exited unexpectedly" in text
    assert "Far worker 0 is lost: it closed the connection. It is process" in text
    assert "It held batch 3 of this epoch (indices [12, 13, 14, 15])" in text


def test_the_third_death_over_one_batch_raises(tmp_path: pathlib.Path) -> None:
    deadly, options = Deadly(tmp_path, "kill", 3), {"on_worker_death": "respawn"}
    with shmloader.DataLoader(deadly, batch_size=4, far_workers=Here(1), **options) as loader:  # type: ignore[arg-type]
        text = str(until_an_error(loader))
    assert "3rd to die over batch 3 of this epoch" in text and "Far worker 0 is lost" in text


@pytest.mark.long
def test_one_that_hangs_is_replaced_after_the_timeout(tmp_path: pathlib.Path) -> None:
    options = {"on_worker_death": "respawn"}
    there = batches(0, 1, dataset=Deadly(tmp_path, "hang"), timeout=6, **options)
    assert_same(there, batches(1, 0, **options))


def test_one_that_gives_no_sign_of_life_is_lost_without_a_timeout(tmp_path: pathlib.Path) -> None:
    far = Here(1, heartbeat=3.0)
    with shmloader.DataLoader(Deadly(tmp_path, "stop"), batch_size=4, far_workers=far) as loader:
        assert "gave no sign of life for 3 seconds" in str(until_an_error(loader))
        assert far.session is not None
        far.session.closed = True  # it is not to be started again
        far.session.kill(0)


class Slow(Drawn):
    """One sample takes longer than a far worker may be silent."""

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            time.sleep(4.5)
        return super().__getitem__(index)


@pytest.mark.long
def test_one_that_is_slow_gives_signs_of_life() -> None:
    with shmloader.DataLoader(Slow(6), batch_size=2, far_workers=Here(1, heartbeat=3.0)) as loader:
        assert len(list(loader)) == 3


def test_who_steals_does_not_wait_for_a_far_worker_that_never_comes() -> None:
    class Late(Here):
        def begin(self, tickets: list[Any], arguments: dict[str, Any]) -> Any:
            session = super().begin([], arguments)
            self.tickets = tickets
            return session

    options: dict[str, Any] = {"schedule": "steal", "num_workers": 1, "far_workers": Late(2)}
    with shmloader.DataLoader(DRAWN, batch_size=4, **options) as loader:
        assert len(list(loader)) == 7


@pytest.mark.long
def test_far_workers_and_stand_ins_are_killed_at_random() -> None:
    options: dict[str, Any] = {"schedule": "steal", "on_worker_death": "respawn"}
    expected = batches(2, 0, dataset=Drawn(600), **options)
    far = Here(2)
    chance = random.Random(5)
    seed_all()
    got = []
    with shmloader.DataLoader(Drawn(600), batch_size=4, shuffle=True, far_workers=far, **options) as loader:
        for k, batch in enumerate(iter(loader)):
            got.append(copy.deepcopy(batch))
            if k % 15 == 7:
                assert far.session is not None
                far.session.kill(chance.randrange(2))
        assert far.session is not None and far.session.deaths >= 5
    for each in (*got, *expected):
        del each["worker"]
    assert_same(got, expected)


def test_no_worker_is_forked_from_this_process() -> None:
    """The engine may run threads here."""
    with shmloader.DataLoader(DRAWN, batch_size=4, num_workers=1, far_workers=Here(1)) as loader:
        iterator = iter(loader)
        parents = {psutil.Process(worker.pid).ppid() for worker in iterator._workers}
        assert len(iterator._workers) == 2 and len(parents) == 1 and os.getpid() not in parents
        plain = context_of(loader, Options.of(loader))._plain  # if the template cannot fork them
        assert plain.get_start_method() == "spawn"


def test_a_stand_in_that_waits_leaves_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:

    class Late(Here):
        """Its far workers never come."""

        def begin(self, tickets: list[Any], arguments: dict[str, Any]) -> Any:
            return super().begin([], arguments)

    left: list[bool] = []
    monkeypatch.setattr(FarCrew, "_terminate", lambda crew: left.extend(map(runs, crew.workers)))
    with shmloader.DataLoader(DRAWN, batch_size=4, far_workers=Late(1)) as loader:
        iter(loader).close()
    assert left == [False]


# ------------------------------------------------------------------------------------------------- the face


def test_torch_does_not_compare_far_workers_with_the_cores_here() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = shmloader.DataLoader(range(8), far_workers=Here(1000))
        assert pickle.loads(pickle.dumps(loader.check_worker_number_rationality))() is None
        loader.check_worker_number_rationality()
    with pytest.warns(UserWarning, match="will create 1000 worker processes"):
        shmloader.DataLoader(range(8), num_workers=1000)


def test_the_count_survives_who_rebuilds_a_loader() -> None:
    far = Here(3)
    loader = shmloader.DataLoader(range(8), num_workers=2, far_workers=far)
    assert loader.num_workers == 5 and loader.rides_ring
    for count in (
        loader.num_workers,
        pickle.loads(pickle.dumps(loader.num_workers)),
        copy.deepcopy(loader.num_workers),
    ):
        again: Any = shmloader.DataLoader(range(8), num_workers=count, far_workers=far)
        assert again.num_workers == 5 and isinstance(again.num_workers, WorkerCount) and again.num_workers.local == 2


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(4))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"chunk_size": 2}, "far_workers and chunk_size cannot go together"),
        ({"group_by": int}, "far_workers and group_by cannot go together"),
        ({"look_ahead": 1}, "far_workers and look_ahead cannot go together"),
        ({"in_order": False}, "far_workers and in_order=False cannot go together"),
        ({"readers": torch.distributed.ProcessGroup(0, 1)}, "far_workers and readers cannot go together"),
        ({"multiprocessing_context": "fork"}, "multiprocessing_context='fork'"),
        ({"dataset": Stream()}, "far_workers needs a map-style dataset, but got Stream"),
        ({"far_workers": 4}, "far_workers should be a shmloader.ray.Workers or None, but got far_workers=4"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_far_workers_cannot_do_is_refused(options: dict[str, Any], text: str) -> None:
    asked: dict[str, Any] = {"dataset": range(8), "batch_size": 4, "num_workers": 1, "far_workers": Here(1), **options}
    with pytest.raises(ValueError) as error:
        shmloader.DataLoader(**asked)
    assert text in str(error.value)


def test_a_crew_is_refused() -> None:
    with shmloader.Crew(1) as crew, pytest.raises(ValueError, match="far_workers and crew cannot go together"):
        shmloader.DataLoader(range(8), crew=crew, far_workers=Here(1))


def test_they_cannot_be_set_later() -> None:
    loader = shmloader.DataLoader(range(8), num_workers=1)
    loader.far_workers = Here(1)
    with pytest.raises(ValueError, match="Give it when the loader is made"):
        iter(loader)


def test_a_fork_context_that_is_an_object_is_refused() -> None:
    fork = multiprocessing.get_context("fork")
    with pytest.raises(ValueError, match="multiprocessing_context='fork', because Ray runs threads"):
        shmloader.DataLoader(range(8), far_workers=Here(1), multiprocessing_context=fork)


def test_a_loader_with_them_is_not_served() -> None:
    loader: Any = shmloader.DataLoader(range(8), num_workers=1, persistent_workers=True, far_workers=Here(1))
    with pytest.raises(ValueError, match="Leave far_workers= out"):
        serve(loader, uuid.uuid4().hex)


def test_a_loader_that_has_them_already_is_not_tuned() -> None:
    with pytest.raises(ValueError, match="does not measure far ones"):
        shmloader.tune(shmloader.DataLoader(range(8), far_workers=Here(1)))


def test_a_loader_of_a_framework_that_cannot_have_them_goes_without() -> None:
    with shmloader.patch_torch(far_workers=Here(1)), pytest.warns(RuntimeWarning, match="was not given far_workers="):
        loader: Any = torch.utils.data.DataLoader(Stream(), batch_size=2)
    assert loader.far_workers is None and len(list(loader)) == 2


def test_a_loader_with_them_is_not_tuned() -> None:
    with pytest.raises(ValueError, match="does not measure far ones"):
        shmloader.tune(range(8), far_workers=Here(1))


def test_a_loader_off_the_ring_is_refused() -> None:
    class Own(torch.utils.data.DataLoader):  # type: ignore[type-arg]
        def _get_iterator(self) -> Any:
            raise NotImplementedError

    with pytest.warns(RuntimeWarning, match="will not ride"):

        class Mixed(shmloader.DataLoader[Any], Own):
            pass

    with pytest.raises(RuntimeError, match="only the ring can honour far_workers="):
        Mixed(range(8), num_workers=1, far_workers=Here(1))
