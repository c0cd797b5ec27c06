"""A loader that one process serves, and others attach to by its name."""

from __future__ import annotations

import os
import socket
import uuid
from typing import Any

import pytest
from served import printed

import shmloader
from shmloader.readers.server import serve
from shmloader.readers.wire import Wire


def test_a_job_gets_the_loaders_batches_and_one_that_comes_back_goes_on() -> None:
    text = """
server = forked(serve, loader(shuffle=True), NAME)
first = attached()
batches = iter(first)
got = [next(batches)[1].tolist() for _ in range(7)]
state = first.state_dict()
first.close()
second = attached()
second.load_state_dict(state)
batches = iter(second)
print(second.state_dict() == state)
got += [next(batches)[1].tolist() for _ in range(9)]
refused = ""
while not refused:  # until the server has opened another batch in its place
    third = attached()
    third.load_state_dict(state)
    try:
        iter(third)
    except RuntimeError as error:
        refused = str(error)
    third.close()
print(refused)
got += [k.tolist() for _, k in batches]
print(got == alone(), len(second), second.state_dict()["epoch"])
print(sum(1 for _ in second))
second.close()
end(server)
try:
    shmloader.attach(NAME)
except ConnectionError as error:
    print("No server" in str(error))
"""
    kept, refused, *rest = printed(text)
    assert kept == "True"
    gone = "Batch 7 of epoch 0 is not in the ring any more. Attach without a state to go on with the next one, which is"
    nexts = ("batch 1", "batch 20 of epoch 0", "batch 0 of epoch 1")  # behind the last one, the end may be known or not
    assert refused.startswith(tuple(f"{gone} {batch}" for batch in nexts))
    assert rest == ["True 20 1", "20", "True"]


def test_a_job_goes_on_wherever_the_one_before_it_has_left() -> None:
    text = """
server = forked(serve, loader(shuffle=True), NAME)
torchs, epochs = loader(shuffle=True), []
for _ in range(24):
    epochs.append([k.tolist() for _, k in torchs])
for taken in (1, 4, 7, 16, 19, 20, 21):  # behind the 20th comes the end
    first = attached(join="epoch")  # before the job before it has left, the server may have begun an epoch for it
    batches = iter(first)
    at = batches.epoch.number
    got = [next(batches)[1].tolist() for _ in range(min(taken, 20) - 1)]
    ring = batches._ring
    while not ring.side.ready():
        time.sleep(0.001)
    while taken > 20 and batches._serial not in ring.ends:  # a stopped server sends no end
        time.sleep(0.001)
    os.kill(server, signal.SIGSTOP)  # so it opens nothing more before the first job has left
    got.append(next(batches)[1].tolist())
    if taken > 20:
        got += list(batches)
    state = first.state_dict()
    first.close()
    os.kill(server, signal.SIGCONT)
    second = attached()
    second.load_state_dict(state)
    rest = [k.tolist() for _, k in second]
    if taken >= 20:
        rest = rest or [k.tolist() for _, k in second]
        print(got == epochs[at], rest == epochs[at + 1])
    else:
        print(got + rest == epochs[at])
    second.close()
os.kill(server, signal.SIGKILL)
os.waitpid(server, 0)
"""
    assert printed(text) == ["True"] * 5 + ["True True"] * 2


def test_a_job_may_leave_while_the_server_opens_a_batch() -> None:
    text = """
from shmloader.trainer.schedule import RoundRobin

opens = RoundRobin.open
asked, asks = os.pipe()
seen, sees = os.pipe()
left = []

def open_without_reader(self, epoch, index):
    if epoch.opened == 9 and not left:
        left.append(os.write(asks, b"x"))
        while self._ring.readers.live:
            time.sleep(0.001)
        os.write(sees, b"x")
    return opens(self, epoch, index)

RoundRobin.open = open_without_reader
server = forked(serve, loader(shuffle=True), NAME)
first = attached()
batches = iter(first)
got = [next(batches)[1].tolist() for _ in range(6)]
os.read(asked, 1)
state = first.state_dict()
first.close()
os.read(seen, 1)
second = attached()
second.load_state_dict(state)
got += [k.tolist() for _, k in second]
print(got == alone())
os.kill(server, signal.SIGKILL)
os.waitpid(server, 0)
"""
    assert printed(text) == ["True"]


def test_a_job_that_joins_in_mid_epoch_names_no_batch_before_it_has_one() -> None:
    text = """
server = forked(serve, loader(shuffle=True), NAME)
first = iter(attached())
got = [next(first)[1].tolist() for _ in range(3)]
second = attached()
batches = iter(second)
print(second.state_dict()["batch"])
next(first), next(first)  # otherwise nothing more is opened, because the ring is full
at = alone().index(next(batches)[1].tolist())
print(second.state_dict()["batch"] == at + 1 > 3)
os.kill(server, signal.SIGKILL)
os.waitpid(server, 0)
"""
    assert printed(text) == ["None", "True"]


def test_jobs_that_write_in_place_get_the_same_batches_and_join_at_an_epoch() -> None:
    text = """
def job(number):
    with attached(join="epoch") as batches:
        iter(batches)
        for epoch in range(3):
            wrong, seen = 0, []
            for rows, k in (batches._iterator if not epoch else batches):
                wrong += not torch.equal(rows, k[:, None].expand_as(rows).float())
                rows.add_(1000 * number)
                seen += k.tolist()
            assert sorted(seen) == list(range(80)) and not wrong, (seen, wrong)

server = forked(serve, loader(shuffle=True), NAME)
jobs = [forked(job, number) for number in (1, 2, 3)]
print(*[os.waitpid(pid, 0)[1] for pid in jobs])
os.kill(server, signal.SIGKILL)
os.waitpid(server, 0)
"""
    assert printed(text) == ["0 0 0"]


def test_a_process_comes_and_goes_as_often_as_it_likes() -> None:
    text = """
server = forked(serve, loader(shuffle=True), NAME)
kept, got = [], []
for at in range(70):
    with attached() as batches:
        rows, k = next(iter(batches))
        got.append(torch.equal(rows, k[:, None].expand_as(rows).float()))
        if at % 30 == 0:
            kept.append((rows, k.clone()))
        rows[1:] = at
print(all(got), all((rows[0] == k[0]).all() for rows, k in kept))
open_ones = []
try:
    for _ in range(40):
        open_ones.append(attached())
        iter(open_ones[-1])
except RuntimeError as error:
    print(len(open_ones), str(error)[3:42])
print(next(open_ones[0]._iterator)[0].shape)
os.kill(server, signal.SIGKILL)
os.waitpid(server, 0)
"""
    first, second, third = printed(text)
    assert first == "True True" and second.endswith("readers are attached to this loader, or") and third
    assert 29 <= int(second.split()[0]) <= 33  # the batches that are kept may be copies, or in the ring


LATE_END = """
from shmloader.readers.conducting import ConductingIterator

send_over = ConductingIterator._send_over
asked, asks = os.pipe()
seen, sees = os.pipe()
held_up = []

def send_over_late(self, *given):
    if not held_up and EARLY(self):
        held_up.append(os.write(asks, bytes([self.epoch.number])))
        os.read(seen, 1)
    send_over(self, *given)

ConductingIterator._send_over = send_over_late
torchs = loader(shuffle=True)
epochs = [[k.tolist() for _, k in torchs] for _ in range(20)]
"""


@pytest.mark.parametrize("named", [False, True], ids=["without a state", "with a state"])
@pytest.mark.parametrize("takes", [1, 20])
def test_a_job_that_joins_behind_an_epochs_last_batch_gets_the_next_epoch(named: bool, takes: int) -> None:
    """It may leave that epoch, and then the next iter() gives the one after it."""
    text = """
server = forked(serve, loader(shuffle=True), NAME)
first = attached()
batches = iter(first)
got = [next(batches)[1].tolist() for _ in range(20)]
state = first.state_dict()
os.read(asked, 1)
first.close()
second = attached()
if NAMED:
    second.load_state_dict(state)
batches = iter(second)
at = batches.epoch.number
os.write(sees, b"x")
print(got == epochs[0], at, [next(batches)[1].tolist() for _ in range(TAKES)] == epochs[1][:TAKES])
print([k.tolist() for _, k in second] == epochs[2], second.state_dict()["epoch"])
os.kill(server, signal.SIGKILL)
os.waitpid(server, 0)
"""
    early = "lambda batches: batches.epoch.source.is_exhausted and not batches.epoch.waits"
    text = f"NAMED, TAKES, EARLY = {named}, {takes}, {early}\n{LATE_END}{text}"
    assert printed(text) == ["True 0 True", "True 3"]


def test_a_job_that_joins_at_a_batch_that_was_opened_early_waits_for_the_next_whole_epoch() -> None:
    text = """
from shmloader.readers.iterator import ReaderIterator

pass_over = ReaderIterator._pass_over

def pass_over_late(self):
    os.write(sees, b"x")  # the server goes on
    pass_over(self)

def reads():
    job = attached()
    while True:
        for _ in job:
            pass

ReaderIterator._pass_over = pass_over_late
server = forked(serve, loader(shuffle=True, prefetch_epochs=True), NAME)
other = forked(reads)
(at,) = os.read(asked, 1)  # the first epoch before whose end is sent, the next one is open; beside load a later one
batches = iter(attached(join="epoch"))
print(batches.epoch.number - at, [k.tolist() for _, k in batches] == epochs[at + 2])
for pid in (other, server):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
"""
    early = "lambda batches: batches._ring.next is not None and batches._over_sent[0] != batches.epoch.serial"
    assert printed(f"EARLY = {early}\n{LATE_END}{text}") == ["2 True"]


def test_a_job_that_leaves_its_epoch_hears_of_the_servers_end_at_any_time() -> None:
    """The ring is closed after the job has looked for that, and before it clears its alarm; the server ends later."""
    text = """
from shmloader.readers.attachment import Attachment

class Late:
    def __init__(self, ring):
        self.ring, self.side = ring, ring.side

    def __getattr__(self, name):
        return getattr(self.side, name)

    def clear_alarm(self):
        if self.side.cursor == self.ring.ends.get(batches._serial):
            while not self.ring.closed:
                time.sleep(0.01)
            threading.Timer(0.2, ends.set).start()
        self.side.clear_alarm()

def ends_late(self, why):
    ends.wait()
    end_now(self, why)

end_now, ends = Attachment.end, threading.Event()
Attachment.end = ends_late
server = forked(lambda: serve(loader(), NAME, epochs=1))
job = attached()
batches = iter(job)
next(batches)
batches._ring.side = Late(batches._ring)
try:
    iter(job)
except RuntimeError as error:
    print("has ended. All batches that it finished were read" in str(error))
os.waitpid(server, 0)
"""
    assert printed(text) == ["True"]


def test_a_batch_may_be_published_between_any_two_looks_for_it() -> None:
    text = """
class Late:
    def __init__(self, side):
        self.side, self.looks = side, 0

    def __getattr__(self, name):
        return getattr(self.side, name)

    def ready(self):
        self.looks -= 1
        return self.looks < 0 and self.side.ready()

server = forked(serve, loader(shuffle=True), NAME)
batches = iter(attached())
batches._ring.side = Late(batches._ring.side)
got = []
for at in range(20):
    batches._ring.side.looks = at % 5
    got.append(next(batches)[1].tolist())
print(got == alone(), sum(1 for _ in batches))
os.kill(server, signal.SIGKILL)
os.waitpid(server, 0)
"""
    assert printed(text) == ["True 0"]


def test_a_job_that_is_too_slow_is_dropped_and_keeps_what_it_has() -> None:
    text = """
server = forked(lambda: serve(loader(shuffle=True), NAME, patience=0.2))
slow = iter(attached())
rows, k = next(slow)
quick = attached()
print(sum(len(k) for _ in range(3) for rows, k in quick) >= 160)
print(torch.equal(rows, k[:, None].expand_as(rows).float()))
try:
    for _ in range(30):
        next(slow)
except RuntimeError as error:
    print("it held up the others for 0.2 seconds" in str(error))
os.kill(server, signal.SIGKILL)
os.waitpid(server, 0)
quick.close()
"""
    assert printed(text) == ["True"] * 3


def test_a_job_that_is_dropped_before_its_last_batch_gets_an_error() -> None:
    """The server drops it after it has seen that the batch is ready, and opens the entry for the next epoch."""
    text = """
from shmloader.readers.iterator import ReaderIterator

is_of_this_epoch = ReaderIterator._is_of_this_epoch

def looks_late(self):
    while self._ring.side.cursor == self._first + 19 and self._ring.side.next_epoch == self._serial:
        time.sleep(0.01)
    return is_of_this_epoch(self)

def reads():
    job = attached()
    while True:
        for _ in job:
            pass

server = forked(lambda: serve(loader(shuffle=True), NAME, patience=0.2))
slow = iter(attached())
other = forked(reads)
ReaderIterator._is_of_this_epoch = looks_late
got = []
try:
    for _, k in slow:
        got.append(k)
        while len(got) == 19 and slow._serial not in slow._ring.ends:
            time.sleep(0.01)
except RuntimeError as error:
    print(len(got), "it held up the others for 0.2 seconds" in str(error))
for pid in (other, server):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
"""
    assert printed(text) == ["19 True"]


def test_the_server_is_killed_and_the_job_hears_of_it_at_once() -> None:
    text = """
server = forked(serve, loader(shuffle=True), NAME)
batches = iter(attached())
got = [next(batches)[1].tolist() for _ in range(3)]
os.kill(server, signal.SIGKILL)
try:
    while True:
        got.append(next(batches)[1].tolist())
except RuntimeError as error:
    print(got == alone()[:len(got)], len(got) < 12, "has ended. All batches that it finished were read" in str(error))
os.waitpid(server, 0)
"""
    assert printed(text) == ["True True True"]


def test_epochs_of_one_batch_are_all_kept_for_who_joins_later() -> None:
    text = """
class Few(Tens):
    def __len__(self):
        return 4

def short():
    return shmloader.DataLoader(Few(), batch_size=4, num_workers=2, prefetch_factor=8, persistent_workers=True,
                                multiprocessing_context="fork")

server = forked(serve, short(), NAME)
first = attached()
next(iter(first))
state = first.state_dict()
end = time.monotonic() + 10
while len(first._attachment._epochs) < 15 and time.monotonic() < end:  # as many as the ring has entries
    time.sleep(0.02)
second = attached()
second.load_state_dict(state | {"epoch": 1, "batch": 0})
next(iter(second))
print(second.state_dict()["epoch"], second.state_dict()["batch"])
second.close()
for _ in range(3):
    assert len(list(first)) == 1
first.close()
third = attached()
next(iter(third))
print(third.state_dict()["epoch"] <= 4, third.state_dict()["batch"])
third.close()
os.kill(server, signal.SIGKILL)
os.waitpid(server, 0)
"""
    assert printed(text) == ["1 1", "True 1"]


def test_a_child_of_a_reader_takes_nothing_in_its_place() -> None:
    text = """
server = forked(serve, loader(shuffle=True), NAME)
mine = attached()
batches = iter(mine)
got = [next(batches)[1].tolist()]

def child():
    for take in (lambda: iter(mine), lambda: next(batches)):
        try:
            take()
        except RuntimeError as error:
            print(str(error)[:57])
    mine.close()

os.waitpid(forked(child), 0)
got += [k.tolist() for _, k in batches]
print(got == alone(), len(list(mine)))
os.kill(server, signal.SIGKILL)
os.waitpid(server, 0)
"""
    assert printed(text) == ["This iterator belongs to the process that made it. This p"] * 2 + ["True 20"]


def test_a_server_that_is_stopped_says_so() -> None:
    text = """
def served():
    try:
        serve(loader(shuffle=True), NAME)
    except KeyboardInterrupt:
        pass

server = forked(served)
job = attached()
batches = iter(job)
number = next(batches)[1]
os.kill(server, signal.SIGINT)
try:
    list(batches)
except RuntimeError as error:
    print(error)
os.waitpid(server, 0)
"""
    (error,) = printed(text)
    assert (
        "was stopped in mid-epoch, so batch " in error or "has ended. All batches that it finished were read" in error
    )
    assert error.endswith(("Start it again, and attach without a state.", "Look at its output for the reason."))


def test_iter_that_was_interrupted_joins_again() -> None:
    text = """
server = forked(serve, loader(shuffle=True), NAME)
holds = attached()
kept = iter(holds)
next(kept)
late = attached(join="epoch")
late.load_state_dict(late.state_dict())  # it names no batch, so the job still begins with an epoch

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
for _ in range(2):
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        iter(late)
    except KeyboardInterrupt:
        print("interrupted", late.state_dict()["batch"])
print(sum(1 for _ in kept))
holds.close()
batches = iter(late)
print(late.state_dict()["batch"], len(list(batches)))
os.kill(server, signal.SIGKILL)
os.waitpid(server, 0)
"""
    assert printed(text) == ["interrupted None"] * 2 + ["19", "0 20"]


def test_a_loader_without_a_batch_ends_its_server() -> None:
    text = """
found, go = os.pipe()

class Waits(data.SequentialSampler):
    def __iter__(self):
        os.read(found, 1)  # otherwise the server may end before attach() has found it
        return super().__iter__()

def served():
    try:
        serve(shmloader.DataLoader(range(3), batch_size=4, drop_last=True, num_workers=1, persistent_workers=True,
                                   multiprocessing_context="fork", sampler=Waits(range(3))), NAME)
    except ValueError as error:
        print(str(error).split(".")[0])

server = forked(served)
mine = attached()
if JOINS:
    batches = iter(mine)
os.write(go, b".")
ended = False
try:
    for _ in range(3):
        list(mine)
except RuntimeError as error:
    ended = "has ended" in str(error)
except ConnectionError as error:  # the server may end before this reader has joined, or while it does
    ended = not JOINS and ("has ended" in str(error) or "No server" in str(error))
os.waitpid(server, 0)
print(ended)  # now, because both processes write into one pipe, and a line and its end are two writes
"""
    for joins in (True, False):
        lines = printed(f"JOINS = {joins}\n{text}")
        assert lines == ["A loader that is served must give batches, but this one gave none in an epoch", "True"]


# ------------------------------------------------------------------------------------------------ what is refused


def test_nobody_serves() -> None:
    with pytest.raises(ConnectionError, match=r"No server named 'nobody' runs.*shmloader serve"):
        shmloader.attach("nobody")
    with pytest.raises(ValueError, match="join should be 'batch' or 'epoch'"):
        shmloader.attach("nobody", join="now")
    with pytest.raises(ValueError, match="spare_slots should be"):
        shmloader.attach("nobody", spare_slots=-1)


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"num_workers": 0}, "num_workers=0 and persistent_workers=False"),
        ({"num_workers": 1}, "needs num_workers above 0 and persistent_workers=True"),
        ({"num_workers": 1, "persistent_workers": True, "in_order": False}, "but has in_order=False. Leave it out"),
        ({"num_workers": 1, "persistent_workers": True, "device": "cpu"}, "device='cpu'"),
        ({"num_workers": 1, "persistent_workers": True, "pin_memory": True}, "pin_memory=True"),
        ({"num_workers": 1, "persistent_workers": True, "batch_size": 2, "group_by": int}, "group_by=.*Leave it out"),
    ],
)
def test_a_loader_that_cannot_be_served(options: dict[str, Any], refused: str) -> None:
    with pytest.raises(ValueError, match=refused):
        serve(shmloader.DataLoader(range(4), **options), uuid.uuid4().hex)


def test_a_name_that_is_taken() -> None:
    name = uuid.uuid4().hex
    taken = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    taken.bind(f"\0shmloader/serve/{os.geteuid()}/{name}")
    taken.listen()
    made = shmloader.DataLoader(range(4), num_workers=1, persistent_workers=True, multiprocessing_context="fork")
    with taken, pytest.raises(OSError, match="Another process serves under the name"):
        serve(made, name)


def test_another_users_socket_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
        with pytest.raises(PermissionError, match=r"is user .*'s, and this one is user 4711's"):
            Wire(one)


def test_all_threads_that_wait_in_iter_hear_of_the_servers_death() -> None:
    text = """
server = forked(serve, loader(), NAME)
batches = attached()
it = iter(batches)
other = iter(attached())  # it takes nothing, so the server does not begin another epoch
heard = []

def begin():
    try:
        iter(batches)
    except RuntimeError as error:
        heard.append("has ended" in str(error))

threads = [threading.Thread(target=begin, daemon=True) for _ in range(3)]
[thread.start() for thread in threads]
time.sleep(0.3)
os.kill(server, signal.SIGKILL)
os.waitpid(server, 0)
[thread.join(20) for thread in threads]
print(heard)
"""
    assert printed(text) == ["[True, True, True]"]


def test_threads_that_share_a_job_may_begin_an_epoch_while_another_one_takes() -> None:
    text = """
server = forked(serve, loader(), NAME)
batches = attached()
it, over, wrong, begun = iter(batches), time.monotonic() + 0.7, [], 0

def take():
    while time.monotonic() < over:
        try:
            next(it)
        except StopIteration:
            time.sleep(0.001)
        except Exception as error:
            wrong.append(repr(error))

taker = threading.Thread(target=take, daemon=True)
taker.start()
while time.monotonic() < over:
    time.sleep(0.002)
    iter(batches)
    begun += 1
taker.join(20)
print(taker.is_alive(), wrong, begun > 20)
batches.close()
end(server)
"""
    assert printed(text) == ["False [] True"]
