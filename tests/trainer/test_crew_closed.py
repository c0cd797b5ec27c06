"""What is left, and what is raised, if a signal's handler closes a crew, breaks off its close(), or iterates in iter();
and if another thread closes a loader or a crew while one of its iterators is in its __del__()."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from test_crew import children
from torch.utils.data import Dataset

import shmloader
from shmloader import Crew, iterators
from shmloader.ring.board_segment import BoardSegment
from shmloader.system import handed_over, spawn_arguments
from shmloader.trainer.conductor import Conductor
from shmloader.trainer.iterator import RingIterator
from shmloader.trainer.member import Member
from shmloader.trainer.shared_workers import SharedWorkers

CLOSED = r"^The crew was closed by another thread or a signal's handler\. Iterate over the DataLoader again\.$"


@pytest.fixture
def crew() -> Iterator[Crew]:
    before = children()
    with Crew(2, multiprocessing_context="fork") as made:
        yield made
    assert children() == before


def signalled(handler: Callable[[], None]) -> None:
    """Have this run in the handler of SIGALRM, once."""

    def once(*_: Any) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        handler()

    signal.signal(signal.SIGALRM, once)


def handed_over_files() -> int:
    """How many messages to workers are open."""
    gc.collect()
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum("shmloader_handed_over" in os.readlink(link) for link in links if os.path.islink(link))


def errors_at_once(*closes: Callable[[], None]) -> list[BaseException]:
    """What these raise, called in as many threads at once."""
    failed: list[BaseException] = []
    all_there = threading.Barrier(len(closes))

    def call(close: Callable[[], None]) -> None:
        all_there.wait()
        try:
            close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=call, args=(close,)) for close in closes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed


class Pickled(Dataset[torch.Tensor]):
    """Sends SIGALRM to this process while it is pickled.  Each of its tensors is a descriptor then."""

    def __init__(self, tensors: int, sends: bool) -> None:
        self.tensors, self.sends = [torch.tensor([k]) for k in range(tensors)], sends

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.tensors[index]

    def __getstate__(self) -> dict[str, Any]:
        if self.sends:
            signal.raise_signal(signal.SIGALRM)
        return vars(self)


def signal_at(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send SIGALRM at this moment of an iter().  Handlers are held back in send(), and called when it waits or ends."""
    send, begin = handed_over.send, Conductor.begin
    sent: list[Any] = []

    def sends(channel: Any, packet: Any) -> None:
        sent.append(packet)
        if len(sent) == (2 if moment == "half sent" else 1):
            signal.raise_signal(signal.SIGALRM)
            if moment != "joined":  # it waits then
                raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        send(channel, packet)

    def begins(conductor: Conductor, *given: Any) -> None:
        if moment == "begun":
            begin(conductor, *given)
        signal.raise_signal(signal.SIGALRM)
        if moment != "begun":
            begin(conductor, *given)

    if moment in ("about to send", "half sent", "joined"):
        monkeypatch.setattr(handed_over, "send", sends)
    if moment in ("about to begin", "begun"):
        monkeypatch.setattr(Conductor, "begin", begins)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(
    "moment", ["pickled", "about to send", "half sent", "joined", "about to begin", "begun"], ids=str
)
def test_close_in_a_handler_while_a_loader_joins_is_named_and_leaves_nothing(
    moment: str, persistent: bool, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = children()
    busy = iter(shmloader.DataLoader(range(8), crew=crew))
    next(busy)
    dataset = Pickled(handed_over.AT_ONCE + 10 if moment == "half sent" else 8, moment == "pickled")
    loader = shmloader.DataLoader(dataset, crew=crew, persistent_workers=persistent)
    signalled(crew.close)
    with monkeypatch.context() as patch:
        signal_at(moment, patch)
        with pytest.raises(RuntimeError, match=CLOSED):
            iter(loader)
    assert children() == before and handed_over_files() == 0
    assert list(busy) == []
    assert [batch.item() for batch in loader] == list(range(8))


def test_what_a_handler_raises_after_it_has_closed_the_crew_comes_as_it_is(crew: Crew) -> None:
    def handler() -> None:
        crew.close()
        raise RuntimeError("the handler's")

    loader = shmloader.DataLoader(Pickled(8, True), crew=crew)
    signalled(handler)
    with pytest.raises(RuntimeError, match=r"^the handler's(\n|$)"):  # the pickler of Python 3.14 adds a note
        iter(loader)
    assert handed_over_files() == 0
    assert [batch.item() for batch in loader] == list(range(8))


@pytest.mark.parametrize("crewed", [False, True])
@pytest.mark.parametrize("moment", ["lent", "read"])
def test_next_ends_the_epoch_if_the_loader_is_closed_while_a_batch_is_read(
    moment: str, crewed: bool, crew: Crew
) -> None:
    options: dict[str, Any] = {"crew": crew} if crewed else {"num_workers": 1}
    loader = shmloader.DataLoader(torch.arange(8), **options)
    iterator: RingIterator = iter(loader)
    next(iterator)
    delivery: Any = iterator._delivery
    close = crew.close if crewed else loader.close

    class Closes:
        def __init__(self, real: Any) -> None:
            self.real = real

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

        def lend(self) -> Any:
            lease = self.real.lend()
            close()
            return lease

        def read(self, *given: Any) -> Any:
            close()
            return self.real.read(*given)

    if moment == "lent":
        delivery._ring = Closes(delivery._ring)
    else:
        delivery._reader = Closes(delivery._reader)
    assert list(iterator) == []
    assert [batch.item() for batch in loader] == list(range(8))


class Closing(torch.utils.data.Sampler[int]):
    """Closes a loader where it draws an index."""

    loader: Any = None

    def __iter__(self) -> Iterator[int]:
        for index in range(8):
            if index == 6 and self.loader is not None:
                self.loader.close()
            yield index


@pytest.mark.parametrize("crewed", [False, True])
def test_next_ends_the_epoch_if_the_loader_is_closed_while_an_index_is_drawn(crewed: bool, crew: Crew) -> None:
    options: dict[str, Any] = {"crew": crew} if crewed else {"num_workers": 1}
    sampler = Closing()
    loader = shmloader.DataLoader(torch.arange(8), sampler=sampler, **options)
    sampler.loader = loader
    got = [batch.item() for batch in loader]
    assert got == list(range(len(got))) and len(got) < 7
    sampler.loader = None
    assert [batch.item() for batch in loader] == list(range(8))


def test_an_iterator_that_is_closed_in_mid_epoch_gives_its_memory_back_at_once(crew: Crew) -> None:
    for _ in range(10):  # each worker may have made all its batches by chance
        iterator = iter(shmloader.DataLoader(torch.arange(64), crew=crew))
        next(iterator)
        iterator.close()
        with pytest.raises(RuntimeError, match="has been shut down"):
            iterator._ring.has_room()


class Resumable(torch.utils.data.Sampler[int]):
    """Its place cannot be put back."""

    def __iter__(self) -> Iterator[int]:
        yield from range(8)

    def state_dict(self) -> dict[str, Any]:
        return {"at": 0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise ValueError("the sampler's")


def test_close_ends_all_though_a_sampler_raises_in_it(crew: Crew) -> None:
    before = children()
    options: dict[str, Any] = {"batch_size": 2, "crew": crew, "persistent_workers": True}
    first, fails, last = (
        shmloader.DataLoader(torch.arange(8), sampler=sampler, prefetch_epochs=sampler is not None, **options)
        for sampler in (None, Resumable(), None)
    )
    assert [len(list(loader)) for loader in (first, fails, last)] == [4, 4, 4]
    with pytest.raises(ValueError, match=r"^the sampler's$"):
        crew.close()
    assert children() == before
    assert first._iterator is fails._iterator is last._iterator is None
    crew.close()
    assert [len(list(loader)) for loader in (first, fails, last)] == [4, 4, 4]
    with pytest.raises(ValueError, match=r"^the sampler's$"):
        fails.close()


def test_close_of_a_loader_ends_all_though_ctrl_c_comes_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before, close = children(), RingIterator.close
    loader = shmloader.DataLoader(torch.arange(8), num_workers=1)
    iterators = [iter(loader) for _ in range(3)]
    assert children() == before + 3

    def interrupted(iterator: RingIterator) -> None:
        close(iterator)
        raise KeyboardInterrupt if iterator is iterators[1] else ValueError

    monkeypatch.setattr(RingIterator, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loader.close()
    assert children() == before


def _interrupted(real: Callable[..., Any], at: int) -> Callable[..., Any]:
    """This function, which Ctrl-C follows (1), or comes before (0), when it is called the first time."""
    calls: list[Any] = []

    def hooked(*given: Any) -> Any:
        calls.append(given)
        result = real(*given) if at or len(calls) > 1 else None
        if len(calls) == 1:
            raise KeyboardInterrupt
        return result

    return hooked


@pytest.mark.parametrize("by", ["iter", "another iterator", "start", "a new loader", "close"])
@pytest.mark.parametrize("moment", ["refused", "about to end"])
def test_a_close_that_ctrl_c_breaks_off_is_finished_by_the_next_call_that_needs_the_crew(
    moment: str, by: str, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = children()
    loaders = [shmloader.DataLoader(range(8), crew=crew, persistent_workers=True) for _ in range(2)]
    assert [len(list(loader)) for loader in loaders] == [8, 8]
    left = iter(loaders[1])
    next(left)
    old = crew._workers
    name = "refuse" if moment == "refused" else "end_with"
    with monkeypatch.context() as patch:
        patch.setattr(SharedWorkers, name, _interrupted(getattr(SharedWorkers, name), int(moment == "refused")))
        with pytest.raises(KeyboardInterrupt):
            crew.close()
        assert not old.ended
        if by == "close":
            crew.close()
        elif by == "start":
            loaders[0].start()
        elif by == "a new loader":
            assert len(list(shmloader.DataLoader(range(8), crew=crew))) == 8
        else:
            assert len(list(iter(loaders[0]) if by == "iter" else loaders[0]._get_iterator())) == 8
    assert old.ended and children() == before + (0 if by == "close" else 2)
    assert list(left) == []
    assert [len(list(loader)) for loader in loaders] == [8, 8]
    assert children() == before + 2


def test_a_handler_that_iterates_in_close_gets_all_batches_and_ends_nothing_twice(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader, other = (shmloader.DataLoader(range(8), crew=crew) for _ in range(2))
    assert len(list(loader)) == 8
    end_with, got = SharedWorkers.end_with, []

    def iterates(*given: Any) -> None:
        got.append(len(list(other)))
        end_with(*given)

    monkeypatch.setattr(SharedWorkers, "end_with", iterates)
    crew.close()
    assert got == [8]


def test_two_threads_that_close_a_crew_end_it_once(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them would close a descriptor, and the other one fail at it."""
    before = children()
    loader = shmloader.DataLoader(range(8), batch_size=2, crew=crew, persistent_workers=True)
    assert len(list(loader)) == 4
    stop, calls = SharedWorkers.stop, [0]

    def stop_slowly(workers: SharedWorkers) -> None:
        calls[0] += 1
        time.sleep(0.2)
        stop(workers)

    monkeypatch.setattr(SharedWorkers, "stop", stop_slowly)
    assert (errors_at_once(crew.close, crew.close), calls, children()) == ([], [1], before)
    assert len(list(loader)) == 4


class Slow(Dataset[torch.Tensor]):
    """Where it is pickled, another thread closes something, and then a signal's handler does."""

    def __init__(self) -> None:
        self.closes: Callable[[], None] | None = None
        self.thread = threading.Thread()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)

    def __getstate__(self) -> dict[str, Any]:
        if self.closes is not None:
            self.thread = threading.Thread(target=self.closes)
            self.thread.start()
            time.sleep(0.3)  # so that it waits for this thread, if it does at all
            signal.raise_signal(signal.SIGALRM)
            self.closes = None
        return {"closes": None}


@pytest.mark.timeout(60, method="thread")  # no signal arrives where it hangs
@pytest.mark.parametrize("in_thread", ["iterator", "loader", "crew"])
@pytest.mark.parametrize("in_handler", ["iterator", "loader", "crew"])
def test_a_thread_and_a_handler_close_while_another_loader_joins(in_thread: str, in_handler: str, crew: Crew) -> None:
    """This thread holds the crew's lock while its handler runs.  The other thread must not wait for it with a lock."""
    other = shmloader.DataLoader(range(8), crew=crew, persistent_workers=True)
    iterator = iter(other)
    next(iterator)
    close = {"iterator": iterator.close, "loader": other.close, "crew": crew.close}
    dataset = Slow()
    loader = shmloader.DataLoader(dataset, crew=crew)
    dataset.closes = close[in_thread]
    signalled(close[in_handler])
    if "crew" in (in_thread, in_handler):  # the thread may close the crew before iter() ends, or after it
        with contextlib.suppress(RuntimeError):
            list(loader)
    else:
        assert [batch.item() for batch in loader] == list(range(8))
    assert list(iterator) == []
    dataset.thread.join()  # otherwise it may close the crew in the next epoch
    for _ in range(2):
        assert [batch.item() for batch in loader] == [batch.item() for batch in other] == list(range(8))


class Waits(Dataset[int]):
    """Makes each sample but the first one in half a second."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        time.sleep(0.5 if index else 0)
        return index


@pytest.mark.parametrize("crewed", [False, True])
def test_a_loader_that_is_closed_while_iter_drains_the_epoch_before_is_named(
    crewed: bool, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `for` loop would let StopIteration out of its iter()."""
    keep_states = RingIterator._keep_states

    def about_to_drain(iterator: RingIterator) -> None:
        monkeypatch.undo()
        closes.start()
        keep_states(iterator)

    options: dict[str, Any] = {"crew": crew} if crewed else {"num_workers": 1}
    with shmloader.DataLoader(Waits(), persistent_workers=True, **options) as loader:
        for _ in loader:
            break
        closes = threading.Timer(0.1, loader.close)
        monkeypatch.setattr(RingIterator, "_keep_states", about_to_drain)
        with pytest.raises(RuntimeError, match=r"^The loader was closed while iter\(\) ran"):
            iter(loader)
        closes.join()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_close_in_a_handler_while_a_workers_arguments_are_pickled(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The descriptors that the worker is about to get stay open, and the fork server does not end."""
    getstate = BoardSegment.__getstate__

    def signals(segment: BoardSegment) -> Any:
        state = getstate(segment)
        signal.raise_signal(signal.SIGALRM)
        return state

    with Crew(2, multiprocessing_context=method) as crew:
        loader = shmloader.DataLoader(torch.arange(8), crew=crew)
        signalled(crew.close)
        with monkeypatch.context() as patch:
            patch.setattr(BoardSegment, "__getstate__", signals)
            with pytest.raises(RuntimeError, match=CLOSED):
                iter(loader)
        for _ in range(2):
            assert len(list(loader)) == 8


def test_close_of_a_loader_at_rest_in_a_handler_while_another_one_begins(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, rests = (shmloader.DataLoader(torch.arange(8), crew=crew, persistent_workers=True) for _ in range(2))
    assert len(list(first)) == len(list(rests)) == 8
    fold, folded = RingIterator.fold, []

    def signals(iterator: RingIterator) -> None:
        folded.append(iterator)
        signal.raise_signal(signal.SIGALRM)
        fold(iterator)

    signalled(rests.close)
    monkeypatch.setattr(RingIterator, "fold", signals)
    assert len(list(first)) == 8 and len(folded) == 1
    assert len(list(rests)) == 8


def test_two_threads_that_close_loaders_of_a_crew_send_each_message_once(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    iterators: list[Any] = [iter(shmloader.DataLoader(Waits(), crew=crew)) for _ in range(2)]
    for iterator in iterators:
        next(iterator)
    send, wait = handed_over.send, Member._wait_for_those_who_fill

    def send_slowly(channel: Any, packet: Any) -> None:
        send(channel, packet)
        time.sleep(0.1)

    def wait_later(member: Member) -> None:
        time.sleep(0.05)  # the other thread sends now
        wait(member)

    monkeypatch.setattr(handed_over, "send", send_slowly)
    monkeypatch.setattr(Member, "_wait_for_those_who_fill", wait_later)
    assert errors_at_once(*(iterator.close for iterator in iterators)) == []
    assert all(iterator._worker_set.ended for iterator in iterators)


@pytest.mark.parametrize("closed", ["loader", "loader of a crew", "crew"])
def test_a_thread_closes_while_an_iterator_is_in_its_del(
    closed: str, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a weak reference it finds that iterator, whose attributes are then gone, because a signal came meanwhile."""
    before, drop_next = children(), Conductor.drop_next
    loader = shmloader.DataLoader(range(8), **({"num_workers": 2} if closed == "loader" else {"crew": crew}))
    close = crew.close if closed == "crew" else loader.close
    found: list[Any] = []
    failed: list[BaseException] = []
    thread = threading.Thread(target=lambda: failed.extend(errors_at_once(close)))

    def meanwhile(conductor: Conductor) -> None:
        monkeypatch.undo()
        signal.raise_signal(signal.SIGALRM)
        found.extend(each for each in iterators._iterators if each.loader() is loader)
        thread.start()
        thread.join(1)
        drop_next(conductor)

    iterator = iter(loader)
    next(iterator)
    signalled(gc.collect)
    monkeypatch.setattr(Conductor, "drop_next", meanwhile)
    del iterator
    thread.join()
    assert len(found) == 1 and "loader" not in vars(found[0]) and failed == []
    close()
    loader.start()
    assert [batch.item() for batch in loader] == list(range(8))
    found.clear()
    crew.close()
    assert children() == before


def _signals_in_pickling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send SIGALRM while the arguments of a worker are pickled, where handlers run."""

    class Signals(spawn_arguments.Pickler):
        def dump(self, value: Any) -> None:
            signal.raise_signal(signal.SIGALRM)
            super().dump(value)

    monkeypatch.setattr(spawn_arguments, "Pickler", Signals)


IN_HANDLER = (
    r"^a loader of a crew was iterated while this thread starts the crew's workers\. The call came from a signal"
)


def watches() -> int:
    """How many threads watch workers."""
    return sum(thread.name == "shmloader_watch" for thread in threading.enumerate())


@pytest.mark.parametrize("lets_out", [False, True])
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_iter_in_a_handler_while_the_crews_workers_start_is_refused(
    method: str, lets_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, refused = watches(), []
    with Crew(2, multiprocessing_context=method) as crew:
        loader, other = (shmloader.DataLoader(torch.arange(8), crew=crew) for _ in range(2))

        def handler() -> None:
            try:
                iter(other)
            except RuntimeError as error:
                refused.append(str(error))
                if lets_out:
                    raise

        signalled(handler)
        with monkeypatch.context() as patch:
            _signals_in_pickling(patch)
            if lets_out:
                with pytest.raises(RuntimeError, match=IN_HANDLER):
                    iter(loader)
            else:
                assert [batch.item() for batch in loader] == list(range(8))
        assert len(refused) == 1 and refused[0].endswith("Set a flag there, and iterate in your loop.")
        for each in (loader, other):
            assert [batch.item() for batch in each] == list(range(8))
        assert watches() == watched + 1
    assert watches() == watched


def test_next_in_a_handler_that_would_replace_a_worker_that_iter_replaces_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It counts no death twice, and its epoch goes on after that."""
    watched, got, refused = watches(), [], []
    with Crew(2, multiprocessing_context="spawn") as crew:
        busy = iter(shmloader.DataLoader(torch.arange(64), crew=crew, on_worker_death="respawn"))
        got.append(next(busy).item())
        members = busy._worker_set
        victim = members.workers[0]
        os.kill(victim.pid, signal.SIGKILL)
        end = time.monotonic() + 30
        while 0 not in members._ended and time.monotonic() < end:
            time.sleep(0.01)

        def handler() -> None:
            try:
                got.extend(batch.item() for batch in busy)
            except RuntimeError as error:
                refused.append((str(error), dict(members._deaths)))

        signalled(handler)
        with monkeypatch.context() as patch:
            _signals_in_pickling(patch)
            assert len(list(shmloader.DataLoader(torch.arange(8), crew=crew))) == 8
        assert [deaths for _, deaths in refused] == [{}] and refused[0][0].startswith("a loader of a crew was iterated")
        got.extend(batch.item() for batch in busy)
        assert got == list(range(64))
    assert watches() == watched
