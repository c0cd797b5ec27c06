"""A loader that one process serves, and others attach to by its name: what each reader gets, and when."""

from __future__ import annotations

import socket
import struct
import types

import pytest
from served import printed

from shmloader.readers.server import Server, _close, _Reader

COPIES = pytest.mark.parametrize("copy", [True, False], ids=["copies", "shared"])


@COPIES
def test_all_jobs_get_the_loaders_batches_and_each_iter_is_an_epoch(copy: bool) -> None:
    text = (
        f"COPY = {copy}"
        + """
def job():
    with attached(copy=COPY) as batches:
        got = [[k.tolist() for _, k in batches] for _ in range(3)]
        assert got == epochs and len(batches) == 20, got

torchs = loader(shuffle=True)
epochs = [[k.tolist() for _, k in torchs] for _ in range(3)]
server = forked(serve_for, 3, loader(shuffle=True))
print(*[os.waitpid(pid, 0)[1] for pid in [forked(job) for _ in range(3)]])
end(server)
"""
    )
    assert printed(text) == ["0 0 0"]


@pytest.mark.parametrize(
    "options",
    [
        "chunk_size=2",
        "schedule='steal'",
        "group_by=lambda k: k % 7",
        "collate_fn=lambda rows: {'of': [k for _, k in rows], 'a': (torch.stack([x for x, _ in rows]), {'text': 'x'})}",
        "collate_fn=lambda rows: {f'key {k} {at}': rows[0][0] for k in range(4) for at in range(300)}",
    ],
    ids=["chunks", "steal", "places", "nested", "a description of many pages"],
)
@COPIES
def test_batches_of_every_kind_are_those_of_the_loader(copy: bool, options: str) -> None:
    text = (
        f"COPY, options = {copy}, dict({options})"
        + """
def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other

server = forked(serve, loader(**options), NAME)
job = attached(copy=COPY)
print(all(same(one, other) for one, other in zip(job, loader(**options), strict=True)))
job.close()
end(server)
"""
    )
    assert printed(text) == ["True"]


def test_a_copied_batch_is_private_and_a_shared_one_is_seen_by_all_who_share() -> None:
    text = """
def writes(copy, got, gives):
    batches = iter(attached(copy=copy))
    rows, _ = next(batches)
    os.write(read[1], b"x")
    os.read(got[0], 1)
    if gives is not None:
        rows.fill_(77)
        os.write(gives[1], b"x" * 3)
    os.write(1, f"{copy} {rows[0, 0].item():g}\\n".encode())

read, start, wrote = os.pipe(), os.pipe(), os.pipe()
server = forked(serve_for, 4, loader())
jobs = [forked(writes, copy, pipe, gives) for copy, pipe, gives in
        ((False, start, wrote), (False, wrote, None), (True, wrote, None))]
mine = iter(attached())
rows, _ = next(mine)
for _ in jobs:  # each has read, and so copied, the batch: a copy made later has what was written
    os.read(read[0], 1)
os.write(start[1], b"x")
print(*[os.waitpid(pid, 0)[1] for pid in jobs], f"{rows[0, 0].item():g}")
end(server)
"""
    *lines, last = printed(text)
    assert sorted(lines) == ["False 77", "False 77", "True 0"] and last == "0 0 0 0"


def test_a_batch_that_is_kept_stays_and_its_buffer_is_used_again_when_it_dies() -> None:
    text = """
server = forked(serve, loader(Big()), NAME)
job = attached()
kept, places = [], set()
for at, rows in enumerate(job):
    places.add(rows.data_ptr())
    if at < 5:
        kept.append(rows)
print([rows[0, 0].item() for rows in kept], len(places) <= 8)
job.close()
print([rows[3, -1].item() for rows in kept])
end(server)
"""
    assert printed(text) == ["[0.0, 4.0, 8.0, 12.0, 16.0] True", "[3.0, 7.0, 11.0, 15.0, 19.0]"]


def test_shared_batches_beyond_spare_slots_are_copies_and_hold_up_nobody() -> None:
    text = """
server = forked(serve, loader(Big()), NAME)
job = attached(copy=False)
kept = list(job)  # 20 batches, and the server lends 6
print([rows[0, 0].item() for rows in kept] == list(range(0, 80, 4)), job._reading._side.shared)
del kept
next(iter(job))
print(job._reading._side.shared <= 1)
end(server)
"""
    assert printed(text) == ["True 2", "True"]


def test_a_batch_that_its_worker_keeps_comes_as_a_copy() -> None:
    text = """
kept = []

def keeping(rows):
    kept.append(data.default_collate(rows))  # it lies in the slot
    return kept[-1]

for copy in (True, False):
    server = forked(serve, loader(Big(pairs=True), collate_fn=keeping), NAME)
    job = attached(copy=copy)
    print([rows[0][0, 0].item() for rows in job] == list(range(0, 80, 4)))
    job.close()
    end(server)
"""
    assert printed(text) == ["True", "True"]


def test_an_error_comes_in_the_place_of_its_batch_and_the_next_one_follows() -> None:
    text = """
class Bad(Tens):
    def __getitem__(self, k):
        if k == 5:
            raise KeyError("five")
        return super().__getitem__(k)

server = forked(serve, loader(Bad()), NAME)
job = attached()
batches, got = iter(job), []
for _ in range(20):
    try:
        got.append(next(batches)[1][0].item())
    except KeyError as error:
        got.append("five" in str(error))
print(got == [0, True, *range(8, 80, 4)], next(batches, "over"))
job.close()
end(server)
"""
    assert printed(text) == ["True over"]


# ------------------------------------------------------------------------------------------------ joining and leaving


def test_a_job_joins_at_the_next_batch_or_at_the_next_epoch() -> None:
    text = """
server = forked(serve, loader(), NAME)
first = iter(attached())
got = [next(first)[1][0].item() // 4 for _ in range(7)]
at_batch, at_epoch = attached(), attached(join="epoch")
batches, later = iter(at_batch), iter(at_epoch)
joined = []
reads = threading.Thread(target=lambda: joined.append([k[0].item() // 4 for _, k in batches]))
epoch = threading.Thread(target=lambda: joined.append([k[0].item() // 4 for _, k in later]))
reads.start(), epoch.start()
got += [k[0].item() // 4 for _, k in first]
reads.join()
print(got == list(range(20)), joined[0] == got[-len(joined[0]):], 0 < len(joined[0]) < 14)
at_batch.close()
first.close()
epoch.join()
print(joined[1] == list(range(20)))
end(server)
"""
    assert printed(text) == ["True True True", "True"]


@pytest.mark.parametrize("ends", ["job.close()", "os.kill(os.getpid(), signal.SIGKILL)"], ids=["closes", "is killed"])
@COPIES
def test_the_next_job_begins_with_the_first_batch_that_the_last_one_has_not_read(copy: bool, ends: str) -> None:
    """Although the last one still has its first batch, and the one that it read last."""
    text = (
        f"COPY, ENDS = {copy}, {ends!r}"
        + """
def reads(takes):
    job = attached(copy=COPY)
    batches, kept = iter(job), []
    for _ in range(takes):
        batch = next(batches)
        kept = kept or [batch]
        print(batch[1][0].item() // 4, flush=True)
    exec(ENDS)

server = forked(serve, loader(), NAME)
for takes in (1, 3, 2, 9):
    os.waitpid(forked(reads, takes), 0)
with attached(copy=COPY) as job:
    print(*[k[0].item() // 4 for _, k in job], sep="\\n", flush=True)
late = attached(join="epoch")
print([k[0].item() // 4 for _, k in late] == list(range(20)))
late.close()
end(server)
"""
    )
    assert printed(text) == [*map(str, range(20)), "True"]


def test_a_job_that_joins_behind_the_last_batch_of_an_epoch_begins_with_the_next_one() -> None:
    text = """
server = forked(serve, loader(), NAME)
first = attached()
batches = iter(first)
for _ in range(20):
    next(batches)
first.close()  # the end of the epoch was sent to it, and it has not read that
second = attached()
print([k[0].item() // 4 for _, k in second] == list(range(20)))
end(server)
"""
    assert printed(text) == ["True"]


@COPIES
def test_jobs_that_come_and_go_at_once_lose_nothing_and_repeat_nothing(copy: bool) -> None:
    """The server may hear that a job has come before it hears that the former one has gone, and while it sends."""
    text = (
        f"COPY = {copy}"
        + """
server = forked(serve, loader(), NAME)
attached()
got = []
for _ in range(200):
    with shmloader.attach(NAME, copy=COPY) as job:
        got.append(next(iter(job))[1][0].item() // 4)
print([(one, other) for one, other in zip(got, got[1:]) if other != (one + 1) % 20])
end(server)
"""
    )
    assert printed(text) == ["[]"]


def test_the_server_hears_what_a_job_has_read_also_if_that_has_left_messages_unread() -> None:
    """The kernel reports such an end by an error, once, before it gives what that end had sent."""
    sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader = _Reader(sock)
    try:
        reader.hello = {}
        sock.send(b"not read")
        theirs.send(struct.pack("Q", 7))
        theirs.close()
        heard: list[int] = []
        assert not Server._hear(types.SimpleNamespace(_come_back=lambda number, _: heard.append(number)), reader)
        assert heard == [7]
    finally:
        _close(reader)


def test_jobs_that_keep_all_slots_together_hold_up_nobody() -> None:
    """Each keeps two, as it may, of other times; then all get copies, from the slot that nobody keeps."""
    text = """
def keeps(at):
    job, kept, read = attached(copy=False), [], 0
    while read < 400:
        for rows in job:
            read += 1
            if read > 2 * at and len(kept) < 2:
                kept.append((rows, rows[0, 0].item()))
    os.write(1, f"{all((rows[k] == number + k).all() for rows, number in kept for k in range(4))}\\n".encode())

server = forked(serve_for, 5, loader(Big()))
print(*[os.waitpid(pid, 0)[1] for pid in [forked(keeps, at) for at in range(5)]])
end(server)
"""
    assert printed(text) == [*["True"] * 5, "0 0 0 0 0"]


def test_an_epoch_that_only_waiting_jobs_would_read_is_broken_off() -> None:
    text = """
server = forked(serve, loader(), NAME)
first = attached()
next(iter(first))
first.close()
late = attached(join="epoch")
print([k[0].item() // 4 for _, k in late] == list(range(20)))
end(server)
"""
    assert printed(text) == ["True"]


def test_a_job_that_leaves_an_epoch_gets_the_next_whole_one() -> None:
    text = """
server = forked(serve, loader(), NAME)
job = attached()
for _ in job:
    break
print([k[0].item() // 4 for _, k in job] == list(range(20)))
iter(job), iter(job)  # nothing of that epoch has come, so nothing is left of it
print(sum(1 for _ in job))
end(server)
"""
    assert printed(text) == ["True", "20"]


def test_with_readers_all_begin_with_the_same_batch_also_after_all_have_ended() -> None:
    text = """
def job(at, takes):
    time.sleep(0.1 * at)
    batches = iter(attached())
    got = [str(next(batches)[1][0].item() // 4) for _ in range(takes)]
    os.write(1, f"{' '.join(got)}\\n".encode())

server = forked(serve_for, 3, loader())
for _ in range(2):
    print(*[os.waitpid(pid, 0)[1] for pid in [forked(job, at, 4) for at in range(3)]], flush=True)
end(server)
"""
    lines = printed(text)
    assert lines[:4] == ["0 1 2 3"] * 3 + ["0 0 0"]
    assert len(set(lines[4:7])) == 1 and lines[7] == "0 0 0"


def test_a_process_comes_and_goes_as_often_as_it_likes() -> None:
    text = """
server = forked(serve, loader(), NAME)
attached()
def opens(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))
before = opens("self"), None
seen = set()
for at in range(60):
    job = attached(copy=at % 2 == 0)
    next(iter(job))
    if at % 3:
        job.close()
    del job
    if at >= 40:
        seen.add((opens("self"), opens(server) // 4))
print(len(seen) <= 2, opens("self") == before[0])
many = [attached() for _ in range(40)]
print(len([iter(job) for job in many]))
[job.close() for job in many]
end(server)
"""
    assert printed(text) == ["True True", "40"]


# ------------------------------------------------------------------------------------------------ states


@COPIES
def test_a_readers_state_is_the_servers_at_that_batch_and_a_server_begins_there(copy: bool) -> None:
    text = (
        f"COPY = {copy}"
        + """
def served(state, **options):
    made = loader(shuffle=True, **options)
    made.load_state_dict(state)
    serve(made, NAME)

server = forked(serve, loader(shuffle=True), NAME)
job, own = attached(copy=COPY), loader(shuffle=True)
batches, mine = iter(job), iter(own)
same = []
for _ in range(7):
    next(batches), next(mine)
    same.append(job.state_dict() == own.state_dict())
state = job.state_dict()
job.close()
end(server)
print(same == [True] * 7, job.state_dict() == state)
server = forked(served, state)
job, resumed = attached(copy=COPY), loader(shuffle=True)
resumed.load_state_dict(state)
for _ in range(2):
    got, right = [k.tolist() for _, k in job], [k.tolist() for _, k in resumed]
    print(got == right, len(got), job.state_dict() == resumed.state_dict())
end(server)
"""
    )
    assert printed(text) == ["True True", "True 13 True", "True 20 True"]


def test_states_of_streams_and_no_state_at_all() -> None:
    text = """
class Stream(data.IterableDataset):
    def __init__(self):
        self.at = 0
    def __iter__(self):
        while self.at < 40:
            self.at += 1
            yield self.at - 1
        self.at = 0
    def state_dict(self):
        if FAILS:
            raise ValueError("none of mine")
        return {"at": self.at, "long": "x" * 9000}
    def load_state_dict(self, state):
        self.at = state["at"]

def stream():
    return shmloader.DataLoader(Stream(), batch_size=4, num_workers=1, persistent_workers=True,
                                multiprocessing_context="fork")

for FAILS in (False, True):
    server = forked(serve, stream(), NAME)
    job = attached()
    batches = iter(job)
    got = [next(batches).tolist() for _ in range(3)]
    try:
        state = job.state_dict()
        resumed = stream()
        resumed.load_state_dict(state)
        print([b.tolist() for b in batches] == [b.tolist() for b in resumed], got[-1])
    except RuntimeError as error:
        print(str(error).startswith("The server's state_dict() has raised ValueError"), "none of mine" in str(error))
    try:
        attached().state_dict()
    except RuntimeError as error:
        print("nothing has come from it" in str(error))
    job.close()
    end(server)
"""
    assert printed(text) == ["True [8, 9, 10, 11]", "True", "True True", "True"]
