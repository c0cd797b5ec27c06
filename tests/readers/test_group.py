"""The ranks of a group get the same batches, whatever the loader is: DataLoader(..., readers=group)."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed
from ranks import in_ranks

import shmloader
from shmloader.readers.group import about_this_process, check_one_node, check_size

FORMS = {
    "tensors and labels": "{}",
    "workers that persist": "{'persistent_workers': True}",
    "stolen": "{'schedule': 'steal'}",
    "chunks": "{'chunk_size': 2}",
    "each batch a copy": "{'spare_slots': 0}",
    "samples": "{'batch_size': None}",
    "next epoch early": "{'persistent_workers': True, 'prefetch_epochs': True}",
    "a dead worker replaced": "{'on_worker_death': 'respawn'}",
    "spawned": "{'multiprocessing_context': 'spawn', 'persistent_workers': True, 'num_workers': 1}",
    "by the fork server": "{'multiprocessing_context': 'forkserver', 'persistent_workers': True, 'num_workers': 1}",
}
LONG = ("stolen", "chunks", "workers that persist", "spawned", "by the fork server")
ALONE = """
def values(loader):
    return [(first.sum().item(), torch.as_tensor(second).tolist()) for first, second in loader]

def main(rank):
    shared = loader_of(**OPTIONS)
    got = [values(shared) for _ in range(3)]
    drawn = torch.rand(1).item()
    shared.close()
    torch.manual_seed(5)
    plain = data.DataLoader(Tens(), **{"batch_size": 4, "num_workers": 2, "shuffle": True} | TORCHS)
    same = [values(plain) for _ in range(3)]
    if OPTIONS.get('prefetch_epochs', False):  # it has drawn for the next epoch
        torch.empty((), dtype=torch.int64).random_()
    return got == same, drawn == torch.rand(1).item(), shared.rides_ring
"""


@pytest.mark.parametrize("form", [pytest.param(form, marks=[pytest.mark.long] * (form in LONG)) for form in FORMS])
def test_each_rank_gets_what_one_gets_alone(form: str) -> None:
    options = FORMS[form]
    ours = ("schedule", "chunk_size", "spare_slots", "prefetch_epochs", "on_worker_death")
    torchs = f"{{name: value for name, value in OPTIONS.items() if name not in {(*ours, 'multiprocessing_context')}}}"
    text = f"OPTIONS = {options}\nTORCHS = {torchs}\n{ALONE}"
    assert in_ranks(text) == [(True, True, True)] * 2


def test_streams_and_dicts() -> None:
    text = """
class Stream(data.IterableDataset):
    def __iter__(self):
        worker = data.get_worker_info()
        for k in range(worker.id, 21, worker.num_workers):
            yield {"k": k, "row": torch.full((5,), float(k)), "name": str(k)}

def main(rank):
    with loader_of(Stream(), shuffle=None) as loader:
        return [[(b["k"].tolist(), b["row"].sum().item(), b["name"]) for b in loader] for _ in range(2)]
"""
    first, second, third = in_ranks(text, 3)
    assert first == second == third
    assert len(first[0]) == 6 and first[0] == first[1]


@pytest.mark.parametrize("epochs", [6, pytest.param(313, marks=pytest.mark.long)], ids=["192 batches", "10016 batches"])
def test_what_one_rank_writes_no_other_sees(epochs: int) -> None:
    text = """
def main(rank):
    import random
    choose = random.Random(rank)
    wrong = count = 0
    with loader_of(Big(), batch_size=2, persistent_workers=True) as loader:
        for _ in range(EPOCHS):
            held = []
            for rows, k in loader:
                count += 1
                wrong += not torch.equal(rows, k[:, None].expand_as(rows).float())
                for _ in range(3):
                    rows[:, choose.randrange(20000):][:, :choose.randrange(1, 9000)] = rank + 0.5
                held = [*held[-1:], (rows, rows.clone())]
                wrong += not all(torch.equal(one, other) for one, other in held)
    return wrong, count

class Big(data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, k):
        return torch.full((20000,), float(k)), k
"""
    assert in_ranks(f"EPOCHS = {epochs}\n{text}", 3) == [(0, 32 * epochs)] * 3


def test_all_leave_an_epoch_and_begin_another() -> None:
    text = """
def main(rank):
    got = []
    for options in ({}, {"persistent_workers": True}):
        loader = loader_of(**options)
        for most in (3, 1, 20):
            for number, (rows, k) in enumerate(loader):
                got.append(k.tolist())
                if number == most:
                    break
        loader.close()
        got.append([k.tolist() for _, k in loader])
        loader.close()
    return got
"""
    first, second = in_ranks(text)
    assert first == second and isinstance(first, list)


def test_a_rank_that_keeps_its_iterator_begins_the_next_epoch() -> None:
    """The first rank would wait for room in the ring, which only the old iterator's rank could make."""
    text = """
def main(rank):
    shared = loader_of()
    old = iter(shared)
    for _ in range(2 if rank else 16):
        next(old)
    new = iter(shared)
    return len(list(new)), list(old)
"""
    assert in_ranks(text) == [(16, [])] * 2


def test_how_fast_the_others_read_does_not_change_the_epoch_after_one_that_was_left() -> None:
    """A RandomSampler draws from the generator once more at its end.  Only a fast group would have come there."""
    text = """
def two_epochs(loader, most):
    batches = iter(loader)
    for _ in range(most):
        next(batches)
    torch.distributed.barrier()
    del batches
    return [k.tolist() for _, k in loader]

def main(rank):
    shared = loader_of(generator=torch.Generator().manual_seed(3))
    got = two_epochs(shared, 11 if rank else 13)  # the first one leaves while the other is two batches behind
    shared.close()
    options = {"batch_size": 4, "num_workers": 2, "shuffle": True}
    plain = data.DataLoader(Tens(), **options, generator=torch.Generator().manual_seed(3))
    return got == two_epochs(plain, 13), len(got)
"""
    assert in_ranks(text) == [(True, 16)] * 2


SAMPLERS = """
class Raises:  # not a generator, which would end
    def __iter__(self):
        self.given = 0
        return self

    def __next__(self):
        if self.given == 6:
            raise ValueError
        self.given += 1
        return list(range(4 * self.given - 4, 4 * self.given))

class OneList:
    def __iter__(self):
        batch = [0]
        for k in range(16):
            batch[:] = range(4 * k, 4 * k + 4)
            yield batch

def all_of(loader, others_read_from):
    batches, got = iter(loader), []
    for k in range(30):
        if k == others_read_from:
            torch.distributed.barrier()
        try:
            got.append(next(batches)[1].tolist())
        except ValueError:
            got.append("raised")
        except StopIteration:
            return got
    return "no end"

def loader_by(sampler, **options):
    return shmloader.DataLoader(Tens(), batch_sampler=sampler, num_workers=2, multiprocessing_context="fork", **options)
"""


@pytest.mark.parametrize("sampler", ["Raises", "OneList"])
def test_indices_that_were_drawn_for_slow_readers_are_kept(sampler: str) -> None:
    """The first of two ranks has taken three batches before the other one takes any."""
    text = f"""{SAMPLERS}
def main(rank):
    shared = loader_by({sampler}(), readers=torch.distributed.group.WORLD)
    got = all_of(shared, 0 if rank else 3)
    shared.close()
    return got if rank else (got, all_of(loader_by({sampler}()), -1))
"""
    (got, expected), others = in_ranks(text)
    assert got == expected and (others == expected or "raised" in expected)


def test_a_loader_that_is_dropped_ends_its_workers_without_the_collector() -> None:
    text = """
def main(rank):
    import gc, multiprocessing
    gc.collect()
    gc.disable()
    loader = loader_of(persistent_workers=True)
    batches = sum(1 for _ in loader)
    workers = len(multiprocessing.active_children())
    del loader
    return batches, workers, len(multiprocessing.active_children())
"""
    assert in_ranks(text) == [(16, 2, 0), (16, 0, 0)]


@pytest.mark.parametrize("last", ["closed", "gone"])
def test_an_end_that_comes_while_a_rank_looks_for_it_is_no_error(last: str) -> None:
    """The messages of the epoch's end, and of what follows, come after the rank has looked for the former."""
    text = f"""
import threading
from shmloader.readers.attachment import AttachedRing, Attachment

note, error_here = Attachment._note, AttachedRing.error_here
messages, has_come, late = [], threading.Event(), []

def keep_back(attachment, message):
    messages.append((attachment, message))
    if "closed" in message:
        has_come.set()
    attachment._rings[message.get("over", message.get("closed"))].side.alarm()  # the rank looks again

def come(ring, serial):
    error = error_here(ring, serial)
    if any(message.get("at") == ring.side.cursor for _, message in messages) and has_come.wait(30):
        for attachment, message in messages:
            note(attachment, message)
        if {last!r} == "gone":
            attachment.end("The conductor is gone.")
        late.append(ring.closed)
        messages.clear()
        has_come.clear()
    return error

def main(rank):
    if rank:
        Attachment._note, AttachedRing.error_here = keep_back, come
    loader = loader_of(num_workers=1)
    found = [[k.tolist() for _, k in loader] for _ in range({1 if last == "gone" else 3})]
    return found, late
"""
    (first, _), (other, late) = in_ranks(text)
    assert other == first and late == [True] * len(first)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_rank_that_receives_no_messages_for_a_while_is_waited_for(persistent: bool) -> None:
    """It is stopped, or holds its GIL.  Meanwhile a handler may break off iter() in the first rank."""
    text = f"""
from shmloader.readers import attachment
from shmloader.readers.host import Host

class Few(Tens):
    def __len__(self):
        return 4

receive, wait, until = attachment._receive, Host.wait_until_received, [0.0]

def receive_late(*given):
    time.sleep(max(until[0] - time.monotonic(), 0))
    return receive(*given)

def raises(*_):
    raise TimeoutError

def wait_for_a_second(self):
    signal.setitimer(signal.ITIMER_REAL, 1)
    try:
        wait(self)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)

def main(rank):
    attachment._receive, Host.wait_until_received = receive_late, wait_for_a_second
    signal.signal(signal.SIGALRM, raises)
    generator = torch.Generator().manual_seed(3)
    loader = loader_of(Few(), num_workers=1, prefetch_factor=50, persistent_workers={persistent}, generator=generator)
    got, broken = [], 0
    for epoch in range(50):
        if epoch == 3:
            until[0] = time.monotonic() + 4 * rank
        batches = None
        while batches is None:
            try:
                batches = iter(loader)
            except TimeoutError:
                broken += 1
        got += [k.tolist() for _, k in batches]
    return got, generator.get_state().tolist(), broken
"""
    (*first, broken), (*other, _) = in_ranks(text)
    assert first == other and broken


def test_a_rank_that_can_receive_nothing_more_holds_up_nobody() -> None:
    text = """
from shmloader.readers import attachment

class Few(Tens):
    def __len__(self):
        return 4

receive, is_lost = attachment._receive, []

def lose(wire, mine, dead):
    if not is_lost:
        return receive(wire, mine, dead)
    mine().end("A descriptor that came was lost.")  # as if this process could open no more files
    return False

def main(rank):
    attachment._receive = lose
    generator = torch.Generator().manual_seed(3)
    loader = loader_of(Few(), num_workers=1, generator=generator)
    epochs = 0
    try:
        for _ in range(60):
            epochs += len(list(loader))
            is_lost.extend([1] * rank)
    except RuntimeError as error:
        dist.barrier()  # it keeps its loader
        return epochs, str(error)
    dist.barrier()
    return epochs
"""
    first, (epochs, error) = in_ranks(text)
    assert first == 60 and epochs < 60 and "A descriptor" in error


def test_a_rank_that_comes_when_the_first_one_has_closed_its_loader_hears_of_it() -> None:
    """A process that the first rank has forked still has the socket that listens."""
    text = """
from shmloader.readers import group

connect_to = group.connect_to

def connect_late(name):
    dist.barrier()
    return connect_to(name)

def main(rank):
    group.connect_to = connect_late
    loader = loader_of()
    found = None
    if rank:
        try:
            list(loader)
        except RuntimeError as error:
            found = str(error)
    else:
        iter(loader)
        other = data.DataLoader(Tens(), num_workers=1, persistent_workers=True)
        list(other)
        loader.close()
        dist.barrier()
    dist.barrier()  # the first rank and its worker live until the other one has heard of it
    return [found]
"""
    _, (other,) = in_ranks(text)
    assert "has closed its loader or ended before rank 1 could read from it" in other


def test_a_handler_of_the_conductors_keeps_no_message_from_the_others() -> None:
    text = """
def main(rank):
    from shmloader.readers.wire import Wire
    if rank == 0:
        def raises(*_):
            raise TimeoutError("the handler's")

        def interrupted(self, message, *given):
            if "over" in message:
                Wire.send = send
                signal.raise_signal(signal.SIGALRM)
            send(self, message, *given)

        signal.signal(signal.SIGALRM, raises)
        send, Wire.send = Wire.send, interrupted
    raised, epochs = 0, []
    with loader_of(persistent_workers=True) as loader:
        for _ in range(2):
            batches, got = iter(loader), []
            while True:
                try:
                    got.append(next(batches)[1].tolist())
                except TimeoutError:
                    raised += 1
                except StopIteration:
                    break
            epochs.append(got)
    return epochs, raised
"""
    (first, raised), (second, none) = in_ranks(text)
    assert first == second and [len(epoch) for epoch in first] == [16, 16]
    assert raised == 1 and none == 0


def test_a_state_is_every_ranks_and_each_goes_on_from_it() -> None:
    text = """
def main(rank):
    loader = loader_of(persistent_workers=True)
    whole = [k.tolist() for _, k in loader]
    batches = iter(loader)
    before = [next(batches)[1].tolist() for _ in range(5)]
    state = loader.state_dict()
    after = [k.tolist() for _, k in batches]
    loader.close()
    other = loader_of(persistent_workers=True)
    other.load_state_dict(state)
    loaded = other.state_dict() == state
    again = [k.tolist() for _, k in other]
    other.close()
    return state, after == again, loaded, len(whole), len(after)
"""
    first, second = in_ranks(text)
    assert first[0] == second[0]
    assert first[1:] == second[1:] == (True, True, 16, 11)


def test_an_error_of_the_dataset_or_the_sampler_reaches_every_rank() -> None:
    text = """
class Fails(Tens):
    def __getitem__(self, k):
        if k == 9:
            raise KeyError("nine")
        return super().__getitem__(k)

class Sampler(data.Sampler):
    def __iter__(self):
        yield from range(20)
        raise IndexError("no more")

    def __len__(self):
        return 64

def main(rank):
    got = []
    for options in ({"dataset": Fails(), "shuffle": False}, {"shuffle": None, "sampler": Sampler()}):
        batches = iter(loader_of(**options))
        count = 0
        try:
            for _ in range(16):
                next(batches)
                count += 1
        except Exception as error:
            got.append((count, type(error).__name__, str(error)[-8:]))
        batches.close()
    return got
"""
    first, second = in_ranks(text)
    assert first[0] == second[0] == (2, "KeyError", first[0][2])
    assert first[1][1] == "IndexError" and second[1][1] == "RuntimeError"
    assert second[1][2].strip() == "no more"


@pytest.mark.parametrize("keeps", [True, False], ids=["rank 0 keeps its loader", "rank 0 drops its loader"])
def test_what_fails_before_the_first_epoch_reaches_every_rank(keeps: bool) -> None:
    text = """
loaders = []

def main(rank):
    loader = loader_of()
    if KEEPS:
        loaders.append(loader)
    if rank == 0:
        from shmloader.trainer import iterator
        def full(*_, **__):
            raise OSError(28, "no room at all")
        iterator.Segment = full
    try:
        next(iter(loader))
    except Exception as error:
        return type(error).__name__, str(error)
"""
    (first, why), (second, its_why) = in_ranks(f"KEEPS = {keeps}\n{text}")
    assert first == "OSError" and "no room at all" in why
    assert second == "RuntimeError" and ("no room at all" in its_why or (not keeps and "rank 0" in its_why)), its_why


KILLED = """
def main(rank):
    loader = loader_of(persistent_workers=True)
    count = 0
    try:
        for _ in range(4):
            for rows, k in loader:
                assert torch.equal(rows, k[:, None].expand_as(rows).float())
                count += 1
                if rank == VICTIM and count == 21:
                    os.kill(os.getpid(), signal.SIGKILL)
    except RuntimeError as error:
        return count, str(error)
    return count, ""
"""


def test_a_reader_is_killed_and_the_others_lose_nothing() -> None:
    first, second, third = in_ranks(f"VICTIM = 1\n{KILLED}", 3, (0, 2))
    assert first == third == (64, "") and second is None


def test_the_conductor_is_killed_and_readers_get_an_error_behind_what_is_published() -> None:
    first, *others = in_ranks(f"VICTIM = 0\n{KILLED}", 3, (1, 2))
    assert first is None
    for count, error in others:
        assert 20 <= count <= 25 and "has ended. All batches that it finished were read" in error


def test_a_worker_is_killed_and_every_rank_hears_of_it() -> None:
    text = """
def has_all_before(rank):
    return os.path.join(FOLDER, f"all before {rank}")

class Dies(Tens):
    def __getitem__(self, k):
        if k == 30:
            while not all(os.path.exists(has_all_before(rank)) for rank in range(WORLD)):
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(k)

def main(rank):
    got = []
    try:
        for _, k in loader_of(Dies(), shuffle=False):
            got += k.tolist()
            if len(got) == 28:  # a death raises although earlier batches of other workers are still being made
                open(has_all_before(rank), "w").close()
    except RuntimeError as error:
        return got, "is killed by signal" in str(error)
"""
    first, second = in_ranks(text)
    assert first == second == (list(range(28)), True)


# ------------------------------------------------------------------------------------------------ what is refused


def test_ranks_of_two_nodes_are_refused() -> None:
    here = about_this_process()
    check_one_node({0: here, 1: here | {"pid": 1}})
    elsewhere = here | {"node": ["another boot", *here["node"][1:]], "host": "b"}
    with pytest.raises(ValueError, match=r"ranks 4 and 7 cannot share memory.*Give each node a group of its own"):
        check_one_node({4: here, 5: here, 7: elsewhere})


def test_a_group_that_is_too_large_is_refused() -> None:
    check_size(32)
    with pytest.raises(ValueError, match="a group of 33 ranks, and at most 32"):
        check_size(33)


def test_what_readers_cannot_be_given() -> None:
    with pytest.raises(ValueError, match="readers should be a process group"):
        shmloader.DataLoader(range(4), num_workers=1, readers="all")
    group: Any = torch.distributed.ProcessGroup(0, 1)
    with pytest.raises(ValueError, match="got num_workers=0"):
        iter(shmloader.DataLoader(range(4), readers=group))
    with pytest.raises(ValueError, match="in_order=False"):
        shmloader.DataLoader(range(4), num_workers=1, readers=group, in_order=False)
    with pytest.raises(ValueError, match=r"readers and group_by cannot go together.*Leave one of the two out"):
        shmloader.DataLoader(range(4), 2, num_workers=1, readers=group, group_by=int)
    with pytest.raises(RuntimeError, match=r"Call iter\(\) instead"):
        shmloader.DataLoader(range(4), num_workers=1, readers=group).start()


@pytest.mark.parametrize("options", [{"pin_memory": True}, {"device": "cuda:0"}, {"device": "cpu"}], ids=str)
def test_page_locked_memory_cannot_be_each_ranks_own(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shmloader.device.accelerator.kind", lambda: "cuda")
    monkeypatch.setattr("shmloader.device.accelerator.count", lambda: 1)
    monkeypatch.setattr("shmloader.requirements._check_device", lambda *_: None)
    group: Any = torch.distributed.ProcessGroup(0, 1)
    with pytest.raises(ValueError, match=r"not page-locked.*Leave both out, and copy with batch.to\(device\)"):
        shmloader.DataLoader(range(4), num_workers=1, readers=group, **options)
