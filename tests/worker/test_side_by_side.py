"""Samples made side by side, by coroutines or in threads: the same batches, errors and ends as one by one."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import queue
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from conftest import assert_same, iterate, rng_states, seed_all
from torch.utils.data import ConcatDataset, Subset, default_collate

import shmloader
from shmloader.worker import runners, side_by_side

COROUTINES: dict[str, Any] = {"look_ahead": 2}
THREADS: dict[str, Any] = {"worker_threads": 3}
WAYS = pytest.mark.parametrize("way", ["coroutines", "threads"])
FORMS: list[dict[str, Any]] = [
    {},
    {"num_workers": 1},
    {"prefetch_factor": 1, "look_ahead": 1},
    {"batch_size": None},
    {"chunk_size": 2},
    {"schedule": "steal"},
    {"schedule": "steal", "chunk_size": 3},
    {"prefetch_factor": 4, "look_ahead": 4},
    {"persistent_workers": True, "prefetch_epochs": True},
    {"on_worker_death": "respawn"},
    {"on_bad_sample": "skip"},
    {"device": "cpu"},
    {"num_workers": 0},
    {"num_workers": 0, "batch_size": None},
    {"collate_fn": list},
]


def wait(index: int) -> float:
    """Later samples are ready earlier."""
    return 0.002 * (3 - index % 4)


class Plain(torch.utils.data.Dataset[Any]):
    thread_safe = True

    def __init__(self, path: Path | None = None, length: int = 24) -> None:
        self.path, self.length = path, length

    def __len__(self) -> int:
        return self.length

    def sample(self, index: int) -> Any:
        numbers = [shmloader.sample_generator("numpy").random(), shmloader.sample_generator("random").random()]
        drawn = torch.rand(2, generator=shmloader.sample_generator())
        return {"index": index, "drawn": torch.cat([drawn, torch.tensor(numbers)]), "name": f"sample {index}"}

    def __getitem__(self, index: int) -> Any:
        return self.sample(index)


class Blocking(Plain):
    def __getitem__(self, index: int) -> Any:
        time.sleep(wait(index))
        return self.sample(index)


class Awaited(Plain):
    async def __getitem__(self, index: int) -> Any:
        await asyncio.sleep(wait(index))
        return self.sample(index)


def kind_of(way: str) -> tuple[type[Plain], dict[str, Any]]:
    return (Awaited, COROUTINES) if way == "coroutines" else (Blocking, THREADS)


def loader(dataset: Any, **options: Any) -> Any:
    given = {"batch_size": 4, "shuffle": True, "num_workers": 2, "sample_seeds": True, **options}
    if given["num_workers"]:
        given.setdefault("multiprocessing_context", "fork")
    return shmloader.DataLoader(dataset, **given)


@WAYS
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_same_batches(way: str, form: dict[str, Any]) -> None:
    kind, options = kind_of(way)
    with loader(kind(), **{**options, **form}) as ours:
        seed_all()
        found = [iterate(ours) for _ in range(2)]
        after = rng_states()
    with loader(Plain(), **{**form, "look_ahead": None}) as plain:
        seed_all()
        assert_same(found, [iterate(plain) for _ in range(2)])
        assert_same(after, rng_states())


@WAYS
@pytest.mark.parametrize("method", [pytest.param("spawn", marks=pytest.mark.long)])
def test_started_in_other_ways(way: str, method: str) -> None:
    kind, options = kind_of(way)
    with loader(kind(), multiprocessing_context=method, **options) as ours:
        seed_all()
        found = iterate(ours)
    seed_all()
    assert_same(found, iterate(loader(Plain(), num_workers=0)))


@WAYS
def test_inside_torchs_wrappers(way: str) -> None:
    kind, options = kind_of(way)
    found = []
    for each, given in ((kind, options), (Plain, {})):
        dataset = Subset(ConcatDataset([each(), Subset(each(), [5, 3, 1])]), list(range(26, 6, -1)))
        with loader(dataset, **given) as ours:
            seed_all()
            found.append(iterate(ours))
    assert_same(*found)


# ------------------------------------------------------------------------------------------------ they are side by side


class Together(Plain):
    """The first sample, which is made alone, waits until all that may be open is open.  Those of the second batch, and
    further ones, are ready when as many have begun as there may be."""

    needed = 0

    def is_early(self, index: int) -> bool:
        assert self.path is not None
        if index < 4:
            return not self.path.exists()
        folder = self.path.parent
        (folder / f"begun {index}").touch()
        return len([*folder.glob("begun *")]) < self.needed


class TogetherAwaited(Together):
    async def __getitem__(self, index: int) -> Any:
        while self.is_early(index):
            await asyncio.sleep(0.001)
        return index


class TogetherBlocking(Together):
    def __getitem__(self, index: int) -> Any:
        while self.is_early(index):
            time.sleep(0.001)
        return index


@pytest.mark.parametrize(
    ("kind", "options", "needed"),
    [
        (TogetherAwaited, {"look_ahead": 2, "prefetch_factor": 8}, 8),
        (TogetherAwaited, {"look_ahead": 4, "prefetch_factor": 8}, 16),
        (TogetherBlocking, {"worker_threads": 6, "prefetch_factor": 8}, 6),
        (TogetherAwaited, {"num_workers": 0, "look_ahead": 1}, 4),
    ],
)
def test_so_many_are_under_way(kind: Any, options: dict[str, Any], needed: int, tmp_path: Path) -> None:
    dataset = kind(tmp_path / "opened")
    dataset.needed = needed
    with loader(dataset, **{"num_workers": 1, "shuffle": False, **options}) as ours:
        batches = iter(ours)
        dataset.path.touch()
        assert torch.cat(iterate(batches)).tolist() == list(range(24))


# ------------------------------------------------------------------------------------------------------ what goes wrong


class Meet:
    """Its second sample waits for the third, which is the next batch's."""

    def __init__(self) -> None:
        self.third = asyncio.Event()

    async def __getitem__(self, index: int) -> bool:
        if index == 1:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.third.wait(), 20)
        if index == 2:
            self.third.set()
        return self.third.is_set()


def test_samples_read_before_the_first_was_known_are_begun_with_the_first_batch() -> None:
    dataset = Meet()
    runner = runners.Coroutines(dataset)
    try:
        side = side_by_side.SideBySide(dataset, runner, None, None)
        side.begin(0, [0, 1], 0, 0)
        side.begin(1, [2, 3], 0, 0)
        assert side.samples(0, [0, 1], 0, 0) == [False, True]
        assert side.samples(1, [2, 3], 0, 0) == [True, True]
    finally:
        runner.close()


class Doors:
    """Each sample waits for its own door, if there is one."""

    def __init__(self) -> None:
        self.doors: dict[int, threading.Event] = {}
        self.begun: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.ended: list[int] = []

    def __getitem__(self, index: int) -> int:
        self.begun.put(index)
        if index in self.doors:
            assert self.doors[index].wait(20)
        self.ended.append(index)
        if index == 4:
            raise ValueError("bad")
        return index


def test_put_aside_waits_for_the_samples_that_have_begun_and_for_no_others() -> None:
    dataset = Doors()
    runner = runners.Threads(2)
    side = side_by_side.SideBySide(dataset, runner, None, None)

    def begun(count: int) -> list[int]:
        return sorted(dataset.begun.get(timeout=20) for _ in range(count))

    def put_aside(behind: list[int]) -> None:
        """Nothing but these samples is made meanwhile, and each is waited for."""
        aside = threading.Thread(target=side.put_aside)
        aside.start()
        for index in behind:
            aside.join(0.05)
            assert aside.is_alive()
            dataset.doors.pop(index).set()
        aside.join(20)
        assert not aside.is_alive() and dataset.ended == sorted(behind) and dataset.begun.empty()
        dataset.ended.clear()

    try:
        assert side.samples(0, [0], 0, 0) == begun(1)
        dataset.ended.clear()
        dataset.doors = {index: threading.Event() for index in [1, 2]}
        side.begin(1, [1, 2, 3], 0, 0)
        side.begin(2, [4, 5, 6, 7], 0, 0)
        assert begun(2) == [1, 2]
        put_aside(behind=[1, 2])
        put_aside(behind=[])
        side.begin(3, [8, 9], 0, 0)
        dataset.doors = {index: threading.Event() for index in [5, 6]}
        assert side.samples(1, [1, 2, 3], 0, 0) == [1, 2, 3]
        assert begun(4) == [3, 4, 5, 6]
        with pytest.raises(ValueError, match="bad"):  # 5 and 6 are dropped, but under way
            side.samples(2, [4, 5, 6, 7], 0, 0)
        dataset.ended.clear()
        put_aside(behind=[5, 6])
        assert side.samples(3, [8, 9], 0, 0) == [8, 9]
    finally:
        for door in dataset.doors.values():
            door.set()
        runner.close()


class Bad(Plain):
    bad: tuple[int, ...] = (6, 9, 10)

    def sample(self, index: int) -> Any:
        super().sample(index)
        if index in self.bad:
            raise LookupError(f"sample {index} is bad")
        return super().sample(index)


class BadBlocking(Bad, Blocking):
    pass


class BadAwaited(Bad, Awaited):
    pass


def bad_kind(way: str) -> tuple[Any, dict[str, Any]]:
    return (BadAwaited, COROUTINES) if way == "coroutines" else (BadBlocking, THREADS)


@WAYS
@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_is_that_of_the_first_row(way: str, workers: int, capfd: Any) -> None:
    kind, options = bad_kind(way)
    with loader(kind(), shuffle=False, num_workers=workers, **options) as ours:
        batches, found = iter(ours), []
        for _ in range(6):
            try:
                found.append(next(batches)["index"].tolist())
            except LookupError as error:
                found.append([line for line in str(error).splitlines() if line][-1].removeprefix("LookupError: "))
    bad = ["sample 6 is bad", "sample 9 is bad"]
    assert found == [[0, 1, 2, 3], *bad, [12, 13, 14, 15], [16, 17, 18, 19], [20, 21, 22, 23]]
    gc.collect()
    assert "never retrieved" not in capfd.readouterr().err


@WAYS
@pytest.mark.parametrize("workers", [0, 2])
def test_bad_samples_are_replaced(way: str, workers: int) -> None:
    kind, options = bad_kind(way)
    found = []
    for dataset, given in ((kind(), options), (Bad(), {})):
        with loader(dataset, num_workers=workers, on_bad_sample="skip", max_bad_samples=0.9, **given) as ours:
            seed_all()
            with pytest.warns(RuntimeWarning, match="LookupError"):
                found.append(iterate(ours))
    assert_same(*found)


class Draws(Plain):
    def __init__(self, draw: Any) -> None:
        super().__init__()
        self.draw = draw


class DrawsBlocking(Draws):
    def __getitem__(self, index: int) -> Any:
        return self.draw() and index


class DrawsAwaited(Draws):
    async def __getitem__(self, index: int) -> Any:
        return self.draw() and index


@WAYS
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("draw", "named"),
    [(random.random, "random"), (numpy.random.rand, "numpy.random"), (lambda: torch.rand(1), "torch's generator")],
    ids=["random", "numpy", "torch"],
)
@pytest.mark.parametrize("seeds", [False, True])
def test_draws_that_are_not_the_samples_own(way: str, workers: int, draw: Any, named: str, seeds: bool) -> None:
    if way == "threads" and not workers:
        return  # without workers there are no threads
    kind, options = (DrawsAwaited, COROUTINES) if way == "coroutines" else (DrawsBlocking, THREADS)
    with loader(kind(draw), num_workers=workers, sample_seeds=seeds, **options) as ours:
        batches = iter(ours)
        for _ in range(2):
            with pytest.raises(RuntimeError, match=f"drew from {named} while samples are made side by side"):
                next(batches)


@WAYS
def test_draws_without_seeds(way: str) -> None:
    kind, options = kind_of(way)
    ours = loader(kind(), sample_seeds=False, num_workers=1, **options)
    with ours, pytest.raises(RuntimeError, match=r"sample_generator\(\) needs sample_seeds=True"):
        next(iter(ours))


class Cancels(Plain):
    async def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise asyncio.CancelledError
        return index


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_that_is_cancelled_is_an_error(workers: int) -> None:
    with loader(Cancels(), shuffle=False, num_workers=workers, look_ahead=1) as ours:
        batches = iter(ours)
        assert next(batches).tolist() == [0, 1, 2, 3]
        with pytest.raises(RuntimeError, match="sample 5 was cancelled"):
            next(batches)
        assert next(batches).tolist() == [8, 9, 10, 11]


class Hangs(Plain):
    async def __getitem__(self, index: int) -> Any:
        if index == 5:
            await self.answer()
        return index

    async def answer(self) -> None:
        await asyncio.Event().wait()


class HangsBlocking(Plain):
    def __getitem__(self, index: int) -> Any:
        if index == 5:
            self.answer()
        return index

    def answer(self) -> None:
        time.sleep(1000)


@pytest.mark.parametrize(("kind", "options"), [(Hangs, COROUTINES), (HangsBlocking, THREADS)], ids=["await", "threads"])
def test_a_sample_that_hangs(kind: Any, options: dict[str, Any]) -> None:
    with loader(kind(), shuffle=False, num_workers=1, timeout=1, **options) as ours:
        batches = iter(ours)
        assert next(batches).tolist() == [0, 1, 2, 3]
        with pytest.raises(RuntimeError, match="timed out after 1 seconds") as raised:
            next(batches)
    assert "in answer" in str(raised.value) and "in __getitem__" in str(raised.value)


class Dies(Plain):
    def __init__(self, path: Path) -> None:
        super().__init__(path)

    def die(self, index: int) -> None:
        if index == 13 and self.path is not None and not self.path.exists():
            self.path.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class DiesBlocking(Dies, Blocking):
    def __getitem__(self, index: int) -> Any:
        self.die(index)
        return super().__getitem__(index)


class DiesAwaited(Dies, Awaited):
    async def __getitem__(self, index: int) -> Any:
        self.die(index)
        return await super().__getitem__(index)


@WAYS
def test_a_worker_dies(way: str, tmp_path: Path) -> None:
    kind, options = (DiesAwaited, COROUTINES) if way == "coroutines" else (DiesBlocking, THREADS)
    with loader(kind(tmp_path / "died"), on_worker_death="respawn", **options) as ours:
        seed_all()
        found = iterate(ours)
    assert (tmp_path / "died").exists()
    seed_all()
    assert_same(found, iterate(loader(Plain(), num_workers=0)))


@WAYS
@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_epoch(way: str, workers: int) -> None:
    kind, options = kind_of(way)
    with loader(kind(), num_workers=workers, **options) as ours:
        seed_all()
        batches = iter(ours)
        before = [next(batches) for _ in range(2)]
        state = ours.state_dict()
    with loader(kind(), num_workers=2, **options) as other:
        other.load_state_dict(state)
        rest = iterate(other)
    seed_all()
    assert_same(before + rest, iterate(loader(Plain(), num_workers=0)))


@WAYS
def test_an_epoch_that_is_left_half_way(way: str) -> None:
    kind, options = kind_of(way)
    found = []
    for each, given in ((kind, options), (Plain, {})):
        with loader(each(), persistent_workers=True, **given) as ours:
            seed_all()
            next(iter(ours))
            found.append(iterate(ours))
    assert_same(*found)


# ---------------------------------------------------------------------------------------------------- event loops, ends


class Session(Plain):
    """Has something that belongs to the loop, as a client's connections do."""

    lock: Any = None

    async def __getitem__(self, index: int) -> Any:
        if self.lock is None:
            self.lock = asyncio.get_running_loop()
        assert self.lock is asyncio.get_running_loop()
        await asyncio.sleep(0)
        return index

    async def aclose(self) -> None:
        assert self.lock is asyncio.get_running_loop() and self.path is not None
        self.path.touch()


@pytest.mark.parametrize("workers", [0, 1])
def test_one_loop_for_all_epochs_and_its_end(workers: int, tmp_path: Path) -> None:
    dataset = Session(tmp_path / "closed")
    ours = loader(dataset, num_workers=workers, look_ahead=2, persistent_workers=workers > 0, shuffle=False)
    for _ in range(3):
        assert torch.cat(iterate(ours)).tolist() == list(range(24))
    assert not (tmp_path / "closed").exists()
    ours.close()
    assert (tmp_path / "closed").exists()


def test_the_loop_goes_with_its_loader(tmp_path: Path) -> None:
    ours = loader(Session(tmp_path / "closed"), num_workers=0, look_ahead=1)
    iterate(ours)
    del ours
    gc.collect()
    assert (tmp_path / "closed").exists()


def test_within_a_running_event_loop() -> None:
    async def in_a_notebook() -> list[Any]:
        with loader(Awaited(), num_workers=0, **COROUTINES) as ours:
            return iterate(ours)

    seed_all()
    found = asyncio.run(in_a_notebook())
    assert threading.active_count() == 1 or all("shmloader" not in thread.name for thread in threading.enumerate())
    seed_all()
    assert_same(found, iterate(loader(Plain(), num_workers=0)))


@pytest.mark.parametrize("is_running", [False, True])
def test_ctrl_c_without_workers(is_running: bool, tmp_path: Path) -> None:
    """The batch is made by the next call, because no loop runs any more when the interrupt comes out of next()."""

    class Interrupted(Plain):
        async def __getitem__(self, index: int) -> Any:
            if index == 4 and not (tmp_path / "interrupted").exists():  # the first one that next() waits for
                (tmp_path / "interrupted").touch()
                # To the main thread: it may still be in pthread_create(), which blocks signals, and os.kill() would
                # interrupt this thread, while the main one sleeps on.
                # Again after a while: CPython does not see a signal that comes when it is about to wait for a lock, and
                # drops an exception that a weak reference's callback raises.
                try:
                    while True:
                        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                        await asyncio.sleep(15)
                finally:
                    time.sleep(0.2)  # whoever does not wait for the loop finds it running
            return index

    def take() -> None:
        with loader(Interrupted(), shuffle=False, num_workers=0, look_ahead=1) as ours:
            batches, found = iter(ours), []
            found.append(next(batches).tolist())
            with pytest.raises(KeyboardInterrupt):
                next(batches)
            found += [batch.tolist() for batch in batches]
        assert [index for batch in found for index in batch] == list(range(24))

    async def take_in_a_notebook() -> None:
        take()

    if not is_running:
        take()
        return
    event_loop = asyncio.new_event_loop()  # asyncio.run() would cancel its task instead
    event_loop.run_until_complete(take_in_a_notebook())
    event_loop.close()


@pytest.mark.parametrize("which", [1, 2])
def test_ctrl_c_behind_a_lock_of_pythons_in_a_notebook(which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a handler raises there, nobody unlocks it, and the thread that makes the samples would wait for ever."""
    main, enter, entered = threading.get_ident(), threading.Condition.__enter__, 0

    def enter_and_press(self: threading.Condition) -> bool:
        nonlocal entered
        found = enter(self)
        if threading.get_ident() == main:
            entered += 1
            if entered == which:  # the first one is Thread.start()'s
                signal.raise_signal(signal.SIGINT)
        return found

    async def take_in_a_notebook() -> int:
        interrupts = 0
        with loader(Awaited(), shuffle=False, num_workers=0, look_ahead=1) as ours:
            batches, found = iter(ours), []
            monkeypatch.setattr(threading.Condition, "__enter__", enter_and_press)
            while len(found) < 24:
                try:
                    found += next(batches)["index"].tolist()
                except KeyboardInterrupt:
                    interrupts += 1
        assert found == list(range(24))
        return interrupts

    event_loop = asyncio.new_event_loop()  # asyncio.run() would cancel its task instead
    assert event_loop.run_until_complete(take_in_a_notebook()) == 1
    event_loop.close()


def test_it_is_torchs_without_look_ahead() -> None:
    """A collate function of the user's may await what it gets."""

    def gathered(samples: list[Any]) -> Any:
        async def all_of_them() -> list[Any]:
            return list(await asyncio.gather(*samples))

        return default_collate(asyncio.run(all_of_them()))

    for workers in (0, 1):
        with loader(Session(), shuffle=False, num_workers=workers, collate_fn=gathered) as ours:
            assert next(iter(ours)).tolist() == [0, 1, 2, 3]


# ------------------------------------------------------------------------------------------------------------- refused


def test_a_dataset_that_is_not_marked_as_thread_safe() -> None:
    class Unsafe(Plain):
        thread_safe = False

    for dataset in (Unsafe(), Subset(Unsafe(), [0]), ConcatDataset([Plain(), Unsafe()])):
        with pytest.raises(ValueError, match="worker_threads=2 needs a dataset that may be called"):
            shmloader.DataLoader(dataset, num_workers=1, worker_threads=2)
    with pytest.raises(ValueError, match=r"__getitem__ of Awaited is async\. Give look_ahead instead"):
        shmloader.DataLoader(Awaited(), num_workers=1, worker_threads=2)


def test_generators_outside_a_loader() -> None:
    torch.manual_seed(3)
    first = torch.rand(2, generator=shmloader.sample_generator())
    torch.manual_seed(3)
    assert torch.equal(first, torch.rand(2, generator=shmloader.sample_generator()))
    with pytest.raises(ValueError, match="but got 'jax'"):
        shmloader.sample_generator("jax")  # type: ignore[call-overload]
