"""A served loader when something ends, is slow, raises, lies or is refused: nobody waits for ever, nothing stays."""

from __future__ import annotations

import os
import pickle
import signal
import struct
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
import torch
from scripts import run_script
from served import printed, server_of

import shmloader
from shmloader.core.served_side import VERSION
from shmloader.readers.connection import Listener, address_of, connect_to, peer_of
from shmloader.readers.server import serve

HELLO = {"version": VERSION, "join": "batch", "shares": False}


# ------------------------------------------------------------------------------------------------ ends and deaths


@pytest.mark.parametrize("copy", [True, False], ids=["copies", "shared"])
def test_a_server_that_is_killed_ends_all_at_once_and_batches_stay_valid(copy: bool) -> None:
    text = (
        f"COPY = {copy}"
        + """
server = forked(serve, loader(Big()), NAME)
job = attached(copy=COPY)
batches = iter(job)
rows, got = next(batches), []
fresh = attached()
time.sleep(0.5)  # it has sent as many as it may lend
os.kill(server, signal.SIGKILL)
os.waitpid(server, 0)
try:
    for each in batches:
        got.append(each[0, 0].item())
except RuntimeError as error:
    print("has ended. All batches that it had sent were read" in str(error))
print(got == list(range(4, 4 + 4 * len(got), 4)), len(got) > 2)
try:
    iter(fresh)
except ConnectionError as error:
    print("No server named" in str(error))
print(rows[:, 5].tolist(), torch.equal(rows, rows[:, :1].expand_as(rows)))
rows.fill_(5)
print(rows.sum().item())
"""
    )
    assert printed(text) == ["True", "True True", "True", "[0.0, 1.0, 2.0, 3.0] True", "600000.0"]


def test_threads_that_wait_hear_of_the_servers_death_and_a_close_wakes_one() -> None:
    text = """
class Late(Tens):
    def __getitem__(self, k):
        time.sleep(1000 if k > 11 else 0)
        return super().__getitem__(k)

server = forked(serve, loader(Late()), NAME)
jobs, heard = [attached(), attached()], []

def reads(job):
    try:
        list(job)
        heard.append("over")
    except RuntimeError as error:
        heard.append("has ended" in str(error))

threads = [threading.Thread(target=reads, args=(job,), daemon=True) for job in jobs]
[thread.start() for thread in threads]
time.sleep(0.5)
jobs[0].close()
threads[0].join(20)
os.kill(server, signal.SIGKILL)
os.waitpid(server, 0)
threads[1].join(20)
print(heard)
"""
    assert printed(text) == ["['over', True]"]


@pytest.mark.parametrize("copy", [True, False], ids=["copies", "shared"])
def test_a_job_that_is_killed_holds_up_nobody_although_its_child_has_the_connection(copy: bool) -> None:
    text = (
        f"COPY = {copy}"
        + """
def dies():
    job = attached(copy=COPY)
    rows = next(iter(job))
    child = forked(time.sleep, 1000)
    os.write(told[1], child.to_bytes(4, "little"))
    time.sleep(1000)

told = os.pipe()
server = forked(serve_for, 2, loader(Big()))
dead = forked(dies)
job = attached()
batches = iter(job)
next(batches)
child = int.from_bytes(os.read(told[0], 4), "little")
os.kill(dead, signal.SIGKILL)
os.waitpid(dead, 0)
print(sum(1 for _ in batches) > 10, sum(1 for _ in job))
os.kill(child, signal.SIGKILL)
end(server)
"""
    )
    assert printed(text) == ["True 20"]


def test_the_server_and_its_workers_leave_nothing_when_they_are_killed() -> None:
    text = """
server = forked(serve, loader(), NAME)
job = attached()
next(iter(job))
children = open(f"/proc/{server}/task/{server}/children").read().split()
from conftest import left_in_shm, shm_names
before = shm_names()
os.kill(server, signal.SIGKILL)
os.waitpid(server, 0)
end = time.monotonic() + 20
def is_there(pid):
    try:
        return open(f"/proc/{pid}/stat").read().split()[2] != "Z"
    except OSError:
        return False
while (any(map(is_there, children)) or left_in_shm(before)) and time.monotonic() < end:
    time.sleep(0.05)
print(len(children), sum(map(is_there, children)), left_in_shm(before))
"""
    assert printed(text) == ["2 0 set()"]


def test_what_raises_in_the_server_comes_behind_the_batches_and_batches_stay_valid() -> None:
    text = """
class Breaks(data.SequentialSampler):
    def __iter__(self):
        yield from range(40)
        raise LookupError("no more numbers")

def served():
    try:
        serve(loader(Big(), sampler=Breaks(range(80))), NAME)
    except LookupError:
        os._exit(3)

server = forked(served)
batches = iter(attached(copy=False))
kept = [next(batches)]
try:
    for rows in batches:
        kept[1:] = [rows]
except RuntimeError as error:
    print("The server has raised LookupError: no more numbers" in str(error))
print(os.waitpid(server, 0)[1] >> 8, [torch.equal(rows, rows[:, :1].expand_as(rows)) and rows.sum().item() > 0
                                     for rows in kept])
"""
    assert printed(text) == ["True", "3 [True, True]"]


# ------------------------------------------------------------------------------------------------ slow readers


SLOW = """
server = forked(lambda: serve(loader(Big()), NAME, patience=0.3))
slow = iter(attached(copy=COPY))
rows = next(slow)
quick = attached()
print(sum(1 for _ in range(3) for _ in quick) >= 40, rows[:, 7].tolist())
got = []
try:
    for each in slow:
        got.append(each[:, 0].tolist())
        assert torch.equal(each, each[:, :1].expand_as(each))
except RuntimeError as error:
    print("This reader was dropped, because it held up the others for 0.3 seconds" in str(error))
print(rows[:, 7].tolist(), got == [[k, k + 1., k + 2., k + 3.] for k in range(4, 4 + 4 * len(got), 4)],
      sum(1 for _ in range(3) for _ in quick))
quick.close()
end(server)
"""


@pytest.mark.parametrize("copy", [True, False], ids=["copies", "shared"])
def test_a_job_that_is_too_slow_is_dropped_and_gets_no_batch_that_was_filled_again(copy: bool) -> None:
    assert printed(f"COPY = {copy}" + SLOW) == ["True [0.0, 1.0, 2.0, 3.0]", "True", "[0.0, 1.0, 2.0, 3.0] True 60"]


def test_one_job_alone_is_never_too_slow_and_a_pause_of_all_drops_nobody() -> None:
    text = """
server = forked(lambda: serve(loader(), NAME, patience=0.1, needed=2))
jobs = [iter(attached()) for _ in range(2)]
[next(job) for job in jobs]
time.sleep(0.7)
[next(job) for _ in range(6) for job in jobs]
jobs[0].close()
time.sleep(0.5)
print(sum(1 for _ in jobs[1]) > 8)
end(server)
"""
    assert printed(text) == ["True"]


def test_while_nobody_reads_and_while_all_wait_no_processor_is_used() -> None:
    text = """
class Late(Tens):
    def __getitem__(self, k):
        if k == 12:
            os.read(go[0], 1)
        return super().__getitem__(k)

go = os.pipe()
server = forked(serve, loader(Late()), NAME)

def used(pid):
    return sum(map(int, open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[11:13]))

first = iter(attached())
next(first)
pids = [server, *map(int, open(f"/proc/{server}/task/{server}/children").read().split()), os.getpid()]
time.sleep(0.3)
before = list(map(used, pids))
time.sleep(1)  # it reads nothing
paused = list(map(used, pids))
reads = threading.Thread(target=lambda: [next(first) for _ in range(6)])
reads.start()
time.sleep(0.3)
waits = list(map(used, pids))
time.sleep(1)  # the workers have no batch
print([b - a <= 2 for a, b in zip(before, paused)], [b - a <= 2 for a, b in zip(waits, map(used, pids))])
os.write(go[1], b"x")
reads.join(20)
print(reads.is_alive())
end(server)
"""
    assert printed(text) == [f"{[True] * 4} {[True] * 4}", "False"]


# ------------------------------------------------------------------------------------------------ interrupts and forks


@pytest.mark.parametrize("copy", [True, False], ids=["copies", "shared"])
def test_interrupts_in_a_loop_lose_no_batch_and_repeat_none(copy: bool) -> None:
    text = (
        f"COPY = {copy}"
        + """
class Interrupted(BaseException):
    pass

def interrupt(*_):
    if armed:
        raise Interrupted

armed, got, heard = [], [], 0
signal.signal(signal.SIGALRM, interrupt)
server = forked(serve, loader(), NAME)
job = attached(copy=COPY)
batches = iter(job)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0007)
while len(got) < 2000:
    try:
        armed.append(1)
        for batch in batches:
            armed.clear()
            break
        armed.clear()
        got.append(batch[1][0].item())
        if len(got) % 20 == 0:
            assert next(batches, None) is None
            batches = iter(job)
    except Interrupted:
        armed.clear()
        heard += 1
signal.setitimer(signal.ITIMER_REAL, 0)
print(got == [4 * (at % 20) for at in range(len(got))], heard > 20)
job.close()
end(server)
"""
    )
    assert printed(text) == ["True True"]


def test_a_handler_that_calls_next_in_next_gets_an_error() -> None:
    text = """
class Late(Tens):
    def __getitem__(self, k):
        if k == 12:
            os.read(go[0], 1)
        return super().__getitem__(k)

def again(*_):
    try:
        next(batches)
    except RuntimeError as error:
        print("The call came from a signal handler" in str(error))
    os.write(go[1], b"x")

go = os.pipe()
signal.signal(signal.SIGALRM, again)
server = forked(serve, loader(Late()), NAME)
job = attached()
batches = iter(job)
[next(batches) for _ in range(3)]
signal.setitimer(signal.ITIMER_REAL, 0.3)
print(next(batches)[1].tolist())
end(server)
"""
    assert printed(text) == ["True", "[12, 13, 14, 15]"]


def test_threads_that_share_a_job_attach_once_and_get_each_batch_once() -> None:
    text = """
server = forked(serve, loader(), NAME)
job, got, found = attached(), [], []

def take():
    batches = iter(job)
    found.append(batches)
    ready.wait()
    got.extend(k[0].item() // 4 for _, k in batches)

ready = threading.Barrier(4)
threads = [threading.Thread(target=take) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join(60) for thread in threads]
print(len(set(map(id, found))), sorted(got) == list(range(20)))
end(server)
"""
    assert printed(text) == ["1 True"]


def test_a_child_of_a_reader_takes_nothing_and_sends_nothing_back() -> None:
    text = """
server = forked(serve, loader(Big()), NAME)
mine = attached(copy=False)
batches = iter(mine)
kept = [next(batches)]

def child():
    kept.clear()  # the last tensor of the batch, in this process
    for take in (lambda: next(batches), lambda: next(iter(mine))):
        try:
            take()
        except RuntimeError as error:
            print(str(error)[:57])
    mine.close()

os.waitpid(forked(child), 0)
got = [rows[0, 0].item() for rows in batches]
print(got == list(range(4, 80, 4)), kept[0][:, 3].tolist(), len(list(mine)))
end(server)
"""
    assert printed(text) == [
        *["This iterator belongs to the process that made it. This p"] * 2,
        "True [0.0, 1.0, 2.0, 3.0] 20",
    ]


# ------------------------------------------------------------------------------------------------ what is refused


def test_nobody_serves() -> None:
    with pytest.raises(ConnectionError, match=r"No server named 'nobody' runs.*shmloader serve"):
        shmloader.attach("nobody")
    with pytest.raises(ValueError, match="join should be 'batch' or 'epoch'"):
        shmloader.attach("nobody", join="now")


@pytest.mark.parametrize("name", ["", "x" * 108, "ü" * 50, 5, None])
def test_a_name_that_the_kernel_does_not_take(name: Any) -> None:
    with pytest.raises(ValueError, match=r"name should be a text of 1 to .* bytes"):
        shmloader.attach(name)
    Listener(address_of("x" * (108 - len(address_of("x")) + 1))).close()  # the longest one


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"num_workers": 0}, "num_workers=0 and persistent_workers=False"),
        ({"num_workers": 1}, "needs num_workers above 0 and persistent_workers=True"),
        ({"num_workers": 1, "persistent_workers": True, "in_order": False}, "but has in_order=False. Leave it out"),
        ({"num_workers": 1, "persistent_workers": True, "device": "cpu"}, "device='cpu'"),
        ({"num_workers": 1, "persistent_workers": True, "pin_memory": True}, "pin_memory=True"),
    ],
)
def test_a_loader_that_cannot_be_served(options: dict[str, Any], refused: str) -> None:
    with pytest.raises(ValueError, match=refused):
        serve(shmloader.DataLoader(range(4), **options), uuid.uuid4().hex)


def test_what_is_no_loader_of_ours_cannot_be_served() -> None:
    for served, kind in (
        (torch.utils.data.DataLoader([0]), r"torch\.utils\.data\.dataloader\.DataLoader"),
        (42, "int"),
    ):
        with pytest.raises(
            ValueError, match=rf"should be a shmloader.DataLoader, but got a (builtins\.)?{kind}\. Have"
        ):
            serve(served, uuid.uuid4().hex)


def test_another_users_process_is_refused_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    name = uuid.uuid4().hex
    with server_of(8, name), connect_to(name) as sock:
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
        with pytest.raises(PermissionError, match=r"is user .*'s, and this one is user 4711's"):
            peer_of(sock)
        monkeypatch.undo()
    text = """
real = os.geteuid
def served():
    address = "\\0shmloader/serve/" + str(real()) + "/" + NAME
    from shmloader.readers import server
    server.address_of = lambda name: address
    os.geteuid = lambda: 4711  # every process that connects is another user's
    serve(loader(), NAME)

server = forked(served)
job = attached()
try:
    iter(job)
except ConnectionError as error:
    print("No server" in str(error))
end(server)
"""
    assert printed(text) == ["True"]


def answer(name: str, sent: bytes) -> Any:
    with connect_to(name) as sock:
        sock.send(sent)
        return pickle.loads(sock.recv(1 << 16))


def test_whatever_one_process_sends_the_others_are_served() -> None:
    name = uuid.uuid4().hex
    with server_of(8, name):
        for hello in (b"no pickle", pickle.dumps(5), pickle.dumps(HELLO | {"version": 0})):
            assert "The server cannot serve this process" in answer(name, hello)[2]
        with connect_to(name) as sock:
            sock.send(pickle.dumps(HELLO))
            sock.recv(1 << 16)
            sock.send(b"no number")
            while (got := pickle.loads(sock.recv(1 << 16)))[0] != 2:
                assert got[0] < 2
        with connect_to(name) as sock:
            sock.send(pickle.dumps(HELLO))
            for number in (0, 5, 1 << 63):
                sock.send(struct.pack("Q", number))
            job = shmloader.attach(name)
            assert next(iter(job)).numel() == 2
            job.close()


def test_a_server_that_may_open_no_more_files_refuses_and_says_so() -> None:
    text = """
ready, limited = os.pipe()

def served():
    def full():
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, 4096))
        os.write(limited, b"1")
    serve(loader(), NAME, on_start=full)

server = forked(served)
os.read(ready, 1)
for _ in range(3):
    try:
        iter(attached())
    except RuntimeError as error:
        print("The server cannot accept another reader" in str(error) and "Too many open files" in str(error))
resource.prlimit(server, resource.RLIMIT_NOFILE, (1000, 4096))
print(sum(1 for _ in attached()))
end(server)
"""
    assert printed(text) == ["True"] * 3 + ["20"]


# ------------------------------------------------------------------------------------------------ the command


def test_the_command_serves_from_a_state_until_a_signal_and_says_what_is_wrong(tmp_path: Path) -> None:
    name = uuid.uuid4().hex
    (tmp_path / "mine.py").write_text(
        "import torch, shmloader\n"
        "def loader():\n"
        "    return shmloader.DataLoader(torch.arange(40), batch_size=4, num_workers=1, persistent_workers=True)\n"
        "def none():\n    return shmloader.DataLoader(range(4))\n"
    )

    def command(*given: str) -> subprocess.Popen[str]:
        line = [sys.executable, "-m", "shmloader", "serve", *given, "--name", name]
        process = subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, text=True,
                                   env=os.environ | {"PYTHONPATH": os.getcwd()})  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == f"shmloader serves {given[0]} as {name!r} (pid {process.pid})\n"
        return process

    def refused(*given: str) -> tuple[int, str]:
        """What the command ends with, in a process that has torch already."""
        line = ["serve", *given, "--name", name]
        ran = run_script(f"""
            import os
            from shmloader.commands.line import main
            os.chdir({str(tmp_path)!r})
            main({line})
        """)
        return ran.status, ran.err

    def ended(process: subprocess.Popen[str]) -> int:
        process.terminate()
        process.communicate(timeout=100)
        return process.returncode

    server = command("mine:loader", "--patience", "inf")
    with shmloader.attach(name) as job:
        batches = iter(job)
        assert [next(batches)[0].item() for _ in range(3)] == [0, 4, 8]
        torch.save(job.state_dict(), tmp_path / "place.pt")
    taken = (
        f"shmloader serve: [Errno 98] Another process serves under the name {name!r}. End it, or choose another name.\n"
    )
    assert refused("mine:loader") == (1, taken)
    assert ended(server) == -signal.SIGTERM
    server = command("mine:loader", "--state", "place.pt", "--readers", "1")
    with shmloader.attach(name) as job:
        assert [batch[0].item() for batch in job] == list(range(12, 40, 4))
    ended(server)
    torch.save({"no": "state"}, tmp_path / "place.pt")
    torch.save([1], tmp_path / "list.pt")
    (tmp_path / "junk.pt").write_bytes(b"junk")
    for given, status, says in (
        (("mine:loader", "--state", "place.pt"), 1, "serve: this is no state of a shmloader.DataLoader"),
        (("mine:loader", "--state", "list.pt"), 1, "Error"),
        (("mine:loader", "--state", "junk.pt"), 1, "serve: --state junk.pt is no file that torch.save() has"),
        (("mine:none",), 1, "serve: A loader that is served needs num_workers above 0"),
        (("mine",), 1, "names no function"),
        *(
            (("mine:loader", "--patience", wrong), 2, "is not a number of seconds from")
            for wrong in ("0", "-1", "soon")
        ),
    ):
        found, said = refused(*given)
        assert found == status and says in said
