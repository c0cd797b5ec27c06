"""Messages between a conductor and its readers: of any size, whoever sends them, with or without descriptors left."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from served import server_of

import shmloader
from shmloader.readers.attach import Attached, address_of
from shmloader.readers.attachment import Attachment
from shmloader.readers.host import Host
from shmloader.readers.wire import Wire, connect_to, listen_at


@pytest.fixture
def ends() -> Iterator[tuple[Wire, Wire]]:
    one, other = map(Wire, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    yield one, other
    one.close()
    other.close()


@pytest.mark.parametrize("size", [10, 60_000, 3_000_000])
def test_a_message_of_any_size_arrives_with_its_descriptors(ends: tuple[Wire, Wire], size: int) -> None:
    one, other = ends
    before = len(os.listdir("/proc/self/fd"))
    one.send({"text": "x" * size}, (0, 1))
    one.send({"text": "next"})
    message, fds = other.receive()
    assert message == {"text": "x" * size} and len(fds) == 2
    for fd in fds:
        os.close(fd)
    assert other.receive() == ({"text": "next"}, [])
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_was_sent_arrives_although_the_sender_has_closed_and_not_read_all(ends: tuple[Wire, Wire]) -> None:
    one, other = ends
    other.send({"nobody": "reads it"})
    one.send({"ended": 1})
    one.close()
    assert other.receive() == ({"ended": 1}, [])
    assert other.receive() == (None, [])


# ------------------------------------------------------------------------------------------------ a host that goes on


@pytest.fixture
def host() -> Iterator[tuple[Host, str]]:
    name = f"shmloader/{uuid.uuid4().hex}"
    made = Host(listen_at(name), 2, None, False, None, {"spare": 1, "server": "this"})
    yield made, name
    made.close()


def answer(name: str, sent: bytes) -> Any:
    wire = connect_to(name)
    try:
        wire.sock.send(sent)
        return wire.receive(wait=True)[0]
    finally:
        wire.close()


def test_whatever_one_process_sends_the_host_serves_the_next_one(host: tuple[Host, str]) -> None:
    _, name = host
    for hello in (b"no pickle", pickle.dumps(5), pickle.dumps({"batch": 3}), pickle.dumps({"batch": 3, "server": 0})):
        refused = answer(name, hello)
        assert refused and "refused" in refused
    wire = connect_to(name)
    wire.send({})
    assert (wire.receive(wait=True)[0] or {})["server"] == "this"
    wire.sock.send(b"no pickle")
    dropped = wire.receive(wait=True)[0]
    assert "what it sent cannot be handled" in (dropped or {})["dropped"]
    wire.close()
    assert answer(name, pickle.dumps({}))["server"] == "this"


FULL = """
import os, resource, sys, time
from shmloader.readers.host import Host
from shmloader.readers.wire import listen_at
host = Host(listen_at(sys.argv[1]), 2, None, False, None, {"spare": 1})
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, 4096))
print("full", flush=True)
sys.stdin.readline()
resource.setrlimit(resource.RLIMIT_NOFILE, (1000, 4096))
print("room", time.process_time(), flush=True)
sys.stdin.readline()
"""


def test_a_host_that_may_open_no_more_files_refuses_and_says_so() -> None:
    name = f"shmloader/{uuid.uuid4().hex}"
    with subprocess.Popen(
        [sys.executable, "-c", FULL, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "full\n"
        for _ in range(3):
            with pytest.raises(RuntimeError, match=r"cannot accept another reader: .*Too many open files"):
                Attachment(connect_to(name), {}, None, False, None)  # type: ignore[arg-type]
        print("go on", file=process.stdin, flush=True)
        assert process.stdout.readline().startswith("room")
        assert answer(name, pickle.dumps({}))["spare"] == 1
        process.kill()


# ------------------------------------------------------------------------------------------------ names and states


@pytest.mark.parametrize("name", ["", "x" * 108, "ü" * 50, 5, None])
def test_a_name_that_the_kernel_does_not_take(name: Any) -> None:
    with pytest.raises(ValueError, match=r"name should be a text of 1 to .* bytes"):
        shmloader.attach(name)


def test_the_longest_name() -> None:
    name = "x" * (107 - len(address_of("x")) + 1)
    listen_at(address_of(name)).close()
    with pytest.raises(ValueError, match="name should be"):
        address_of(name + "x")


@pytest.mark.parametrize(
    "state",
    [
        None,
        [],
        {},
        {"batch": 3},
        {"server": "a", "epoch": 0, "batch": "3"},
        {"server": "a", "epoch": None, "batch": 3},
        {"server": "a", "epoch": 0, "batch": -1},
        {"server": "a", "epoch": 0, "batch": 1 << 64},
        shmloader.DataLoader(range(4)).state_dict(),
    ],
)
def test_what_is_no_state_of_an_attached_loader(state: Any) -> None:
    attached = Attached("nobody", "batch", None)
    with pytest.raises(ValueError, match="this is no state of an attached loader"):
        attached.load_state_dict(state)
    attached.load_state_dict(attached.state_dict())
    attached.load_state_dict({"server": "a", "epoch": 0, "batch": 3})


LACKING = """
import os, resource, sys
import shmloader
names = sys.argv[1:]
batches = shmloader.attach(names[0])
before = len(os.listdir("/proc/self/fd"))
found = set()
for more in range(-4, 4):
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + more, 4096))
    try:
        next(iter(shmloader.attach(names[0])))
        found.add("batch")
    except RuntimeError as error:
        found.add("text" if f"may open no more files than {before + more} (ulimit -n)" in str(error) else repr(error))
    except OSError as error:
        found.add(error.strerror)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
print(sorted(found))
"""


def test_a_job_that_may_open_no_more_files_says_so() -> None:
    name = f"lacking {os.getpid()}"
    with server_of(8, name):
        ran = subprocess.run([sys.executable, "-c", LACKING, name], capture_output=True, text=True, timeout=100)
    assert (ran.stdout, ran.stderr) == ("['Too many open files', 'batch', 'text']\n", "")


def test_a_wire_that_the_collector_ends_first_closes_its_descriptor_once() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    wire = Wire(ours)
    wire.__del__()  # of a cycle, the collector may end the wire before the attachment that closes it
    other = os.open(os.devnull, os.O_RDONLY)  # it gets the number that is free again
    wire.close()
    os.fstat(other)
    os.close(other)
    theirs.close()
