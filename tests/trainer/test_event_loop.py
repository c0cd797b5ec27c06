"""The event loop of a loader without workers: who holds it, which thread runs it, and where signals' handlers raise."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import gc
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from torch.utils.data import Dataset

import shmloader
from shmloader.system.signals import held
from shmloader.trainer.event_loop import _Steps
from shmloader.worker.sample_generators import UNSEEDED

EPOCH = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


class Awaited(Dataset[Any]):
    """Its samples, and its end, call what a test gives."""

    def __init__(self, of_sample: Callable[[int], Any] | None = None, of_end: Callable[[], Any] | None = None) -> None:
        self.of_sample, self.of_end = of_sample, of_end
        self.ends = 0

    def __len__(self) -> int:
        return 12

    async def __getitem__(self, index: int) -> int:
        await asyncio.sleep(0)
        if self.of_sample is not None:
            await self.of_sample(index)
        return index

    async def aclose(self) -> None:
        if self.of_end is not None:
            self.of_end()
        await asyncio.sleep(0.001)
        self.ends += 1


def loader(dataset: Any, **options: Any) -> Any:
    return shmloader.DataLoader(dataset, **{"batch_size": 4, "look_ahead": 1, **options})


def lists(batches: Any) -> list[Any]:
    return [batch.tolist() for batch in batches]


def in_a_notebook(call: Callable[[], None]) -> None:
    """Call it in a thread that runs an event loop."""

    async def called() -> None:
        call()

    event_loop = asyncio.new_event_loop()  # asyncio.run() would cancel its task after a Ctrl-C
    event_loop.run_until_complete(called())
    event_loop.close()


def in_a_script(call: Callable[[], None]) -> None:
    call()


def press(number: int) -> None:
    """Send a signal to the main thread."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, number)


WHERE = pytest.mark.parametrize("where", [in_a_script, in_a_notebook])


@contextmanager
def raising(number: int, error: type[BaseException]) -> Iterator[list[int]]:
    """Have a signal's handler raise; gives the signals that came.  Not SIGALRM, which is pytest-timeout's."""
    came: list[int] = []

    def handler(number: int, frame: Any) -> None:
        came.append(number)
        raise error

    before = signal.signal(number, handler)
    try:
        yield came
    finally:
        signal.signal(number, before)


# ------------------------------------------------------------------------------------------------------- who holds it


def of_unnamed(dataset: Any) -> Iterator[Any]:
    yield from loader(dataset)


def of_a_loader_that_goes(dataset: Any) -> Iterator[Any]:
    mine = loader(dataset)
    batches = iter(mine)
    yield next(batches)
    del mine
    yield from batches


def of_a_copy(dataset: Any) -> Iterator[Any]:
    yield from copy.copy(loader(dataset))


@WHERE
@pytest.mark.parametrize("batches_of", [of_unnamed, of_a_loader_that_goes, of_a_copy])
def test_the_iterator_holds_it_too(where: Any, batches_of: Any) -> None:
    dataset = Awaited()

    def take() -> None:
        assert lists(batches_of(dataset)) == EPOCH

    gc.collect()
    gc.disable()
    try:
        where(take)
        assert dataset.ends == 1  # without a collection
    finally:
        gc.enable()


@WHERE
def test_another_one_begins_after_close(where: Any) -> None:
    dataset = Awaited()

    def take() -> None:
        ours = loader(dataset)
        batches = iter(ours)
        found = [next(batches).tolist()]
        ours.close()
        assert dataset.ends == 1
        assert found + lists(batches) == EPOCH
        ours.close()
        assert dataset.ends == 2
        ours.close()
        assert dataset.ends == 2

    where(take)


def test_a_forked_process_has_its_own() -> None:
    async def of_sample(index: int) -> None:
        loops.add(asyncio.get_running_loop())

    loops: set[Any] = set()
    batches = iter(loader(Awaited(of_sample)))
    assert next(batches).tolist() == EPOCH[0]
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        os._exit(0 if lists(batches) == EPOCH[1:] and len(loops) == 2 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert lists(batches) == EPOCH[1:] and len(loops) == 1


# ------------------------------------------------------------------------------------------------------------ in turns


@WHERE
@pytest.mark.parametrize("shuffle", [False, True])
def test_threads_that_iterate_over_one_loader_take_turns(where: Any, shuffle: bool) -> None:
    began, found = threading.Event(), []

    async def of_sample(index: int) -> None:
        began.set()
        await asyncio.sleep(0.05)  # the other threads ask for it meanwhile

    ours = loader(Awaited(of_sample), shuffle=shuffle)

    def take() -> None:
        try:
            found.append(sorted(index for batch in lists(ours) for index in batch))
        except Exception as error:
            found.append([repr(error)])

    def take_late() -> None:
        began.wait(20)
        where(take)

    threads = [threading.Thread(target=take_late) for _ in range(2)]
    for thread in threads:
        thread.start()
    where(take)
    for thread in threads:
        thread.join()
    assert found == [list(range(12))] * 3


@WHERE
def test_a_sample_cannot_iterate_over_its_own_loader(where: Any) -> None:
    async def of_sample(index: int) -> None:
        next(iter(ours))

    ours = loader(Awaited(of_sample))

    def take() -> None:
        with pytest.raises(RuntimeError, match="a sample iterates over the loader that makes it"):
            next(iter(ours))
        ours.close()

    where(take)


# ------------------------------------------------------------------------------------------------------ what is raised


@WHERE
@pytest.mark.parametrize("workers", [0, 1])
def test_an_exception_of_a_sample_has_no_foreign_context(where: Any, workers: int) -> None:
    async def of_sample(index: int) -> None:
        raise ValueError(f"sample {index} is bad")

    def take() -> None:
        with loader(Awaited(of_sample), num_workers=workers) as ours, pytest.raises(ValueError, match="0 is bad") as at:
            next(iter(ours))
        assert "During handling" not in "".join(traceback.format_exception(at.value))

    where(take)


@pytest.mark.parametrize("error", [TimeoutError, KeyboardInterrupt])
def test_a_handlers_exception_in_a_callback_leaves_next_and_the_callback_ends(error: type[BaseException]) -> None:
    async def of_sample(index: int) -> None:
        if index == 4 and not came:
            ready = asyncio.get_running_loop().create_future()

            def callback() -> None:
                signal.raise_signal(signal.SIGUSR2)
                ready.set_result(None)
                ended.append(index)

            asyncio.get_running_loop().call_soon(callback)
            await asyncio.wait_for(ready, 5)

    ended: list[int] = []
    with raising(signal.SIGUSR2, error) as came, loader(Awaited(of_sample)) as ours:
        batches = iter(ours)
        assert next(batches).tolist() == EPOCH[0]
        with pytest.raises(error):
            next(batches)
        assert came and ended == [4]
        assert lists(batches) == EPOCH[2 if error is TimeoutError else 1 :]  # as in without_workers.py


def test_a_handler_raises_when_the_loop_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = asyncio.SelectorEventLoop.stop

    def press_and_stop(self: Any) -> None:
        if not came:
            signal.raise_signal(signal.SIGUSR2)
        stop(self)

    with raising(signal.SIGUSR2, TimeoutError) as came, loader(Awaited()) as ours:
        batches = iter(ours)
        monkeypatch.setattr(asyncio.SelectorEventLoop, "stop", press_and_stop)
        with pytest.raises(TimeoutError):
            next(batches)
        assert lists(batches) == EPOCH[1:]


def test_ctrl_c_when_the_sample_that_is_waited_for_has_just_ended() -> None:
    async def of_sample(index: int) -> None:
        if came:
            await asyncio.sleep(0.01)
        elif index == 5:  # sample 4 has asked for the loop's stop
            signal.raise_signal(signal.SIGUSR2)

    with raising(signal.SIGUSR2, KeyboardInterrupt) as came, loader(Awaited(of_sample)) as ours:
        batches = iter(ours)
        assert next(batches).tolist() == EPOCH[0]
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        assert lists(batches) == EPOCH[1:]


def test_a_sample_may_limit_its_time_by_a_timer() -> None:
    async def of_sample(index: int) -> None:
        if index == 4:
            timer.start()
            with pytest.raises(TimeoutError):
                time.sleep(5)

    with raising(signal.SIGUSR2, TimeoutError) as came, loader(Awaited(of_sample)) as ours:
        timer = threading.Timer(0.05, press, [signal.SIGUSR2])
        assert lists(ours) == EPOCH
        assert came
        timer.join()


def test_a_watchdog_raises_while_the_loop_waits() -> None:
    async def of_sample(index: int) -> None:
        if index == 4:
            timer.start()
            await asyncio.sleep(20)

    with raising(signal.SIGUSR2, TimeoutError), loader(Awaited(of_sample)) as ours:
        timer = threading.Timer(0.05, press, [signal.SIGUSR2])
        batches = iter(ours)
        assert next(batches).tolist() == EPOCH[0]
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            next(batches)
        assert time.monotonic() < began + 10
        timer.join()


def test_a_sample_gets_what_a_handler_raises_before_its_step() -> None:
    async def of_sample(index: int) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.sleep(0)

    def make() -> None:
        steps = _Steps(Awaited(of_sample).__getitem__, 3, UNSEEDED)
        with raising(signal.SIGUSR2, TimeoutError), held():
            steps.send(None)
            steps.send(None)
            signal.raise_signal(signal.SIGUSR2)
            with pytest.raises(StopIteration) as ended:
                steps.send(None)
        assert ended.value.value == 3

    contextvars.copy_context().run(make)  # as a task of the loop does: awaited() sets the draws of its context


def test_ctrl_c_twice_in_a_notebook() -> None:
    """A sample holds the loop up for longer than the user waits."""

    async def of_sample(index: int) -> None:
        if index == 4 and not came:
            for presses in (1, 2):
                while len(came) < presses:  # again, because CPython may miss one just before it waits for a lock
                    press(signal.SIGINT)
                    time.sleep(0.2)
            time.sleep(0.3)

    def take() -> None:
        with loader(Awaited(of_sample)) as ours:
            batches, found = iter(ours), []
            while len(found) < 3:
                with suppress(KeyboardInterrupt):
                    found.append(next(batches).tolist())
            assert found == EPOCH

    with raising(signal.SIGINT, KeyboardInterrupt) as came:
        in_a_notebook(take)
        assert len(came) >= 2


@WHERE
@pytest.mark.parametrize("is_named", [False, True])
def test_ctrl_c_while_a_loader_is_collected(where: Any, is_named: bool) -> None:
    dataset = Awaited(of_end=lambda: press(signal.SIGINT))

    def take() -> None:
        with pytest.raises(KeyboardInterrupt):
            if is_named:
                ours = loader(dataset)
                assert lists(ours) == EPOCH
                del ours
            else:
                for _ in loader(dataset):
                    pass
            time.sleep(1)
        assert dataset.ends == 1

    with raising(signal.SIGINT, KeyboardInterrupt):
        where(take)


def test_a_forked_process_continues_an_iterator_while_another_thread_makes_a_batch() -> None:
    inside, leave = threading.Event(), threading.Event()

    class Waits(Dataset[int]):
        def __len__(self) -> int:
            return 4

        async def __getitem__(self, index: int) -> int:
            if threading.current_thread() is not threading.main_thread():
                inside.set()
                await asyncio.to_thread(leave.wait, 30)
            return index

    loader: Any = shmloader.DataLoader(Waits(), batch_size=2, look_ahead=2)
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1]
    thread = threading.Thread(target=list, args=(loader,))
    thread.start()
    assert inside.wait(30)
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        os._exit(0 if next(iterator).tolist() == [2, 3] else 1)
    assert os.waitpid(pid, 0)[1] == 0
    leave.set()
    thread.join()
