"""A served loader's job in rare moments: a handler raises, a reader is refused, an iterator is closed."""

from __future__ import annotations

from served import printed


def test_who_closes_an_iterator_in_mid_epoch_attaches_again() -> None:
    text = """
server = forked(serve, loader(), NAME)
job = attached()
with iter(job) as batches:
    print([k[0].item() for _, k in batches] == list(range(0, 80, 4)))
with iter(job) as batches:  # what was closed behind its end is followed by the next epoch
    print(next(batches)[1][0].item(), batches.epoch.number)
try:
    iter(job)
except RuntimeError as error:
    print(error)
job.close()
job = attached()
print(next(iter(job))[1][0].item() > 0)
job.close()
end(server)
"""
    *got, error, again = printed(text)
    assert got == ["True", "0 1"] and again == "True"
    assert error.endswith(
        "was closed in mid-epoch, so the server gives this job nothing more. Attach again to get the batches that "
        "come now."
    )


def test_a_batch_whose_reading_was_interrupted_comes_next_in_its_own_epoch() -> None:
    text = """
class Interrupts:
    at = None

    def __init__(self, number):
        self.number = number

    def __setstate__(self, state):
        self.__dict__.update(state)
        if self.number == Interrupts.at:
            Interrupts.at = None
            raise KeyboardInterrupt

class Numbers(Tens):
    def __getitem__(self, k):
        return Interrupts(k)

server = forked(serve, loader(Numbers(), collate_fn=lambda samples: (samples[0].number, samples[0])), NAME)
Interrupts.at = 76  # of the last batch
job = attached()
batches, got = iter(job), []
while len(got) < 40:
    try:
        got.append(next(batches)[0])
    except KeyboardInterrupt:
        print(len(got))
    except StopIteration:
        batches = iter(job)
print(got == 2 * list(range(0, 80, 4)))
Interrupts.at = 76
try:
    for _ in iter(job):
        pass
except KeyboardInterrupt:
    print([number for number, _ in job] == list(range(0, 80, 4)))  # and who leaves it does not get it later
job.close()
end(server)
"""
    assert printed(text) == ["19", "True", "True"]


def test_a_reader_for_which_no_descriptor_is_left_holds_up_nobody() -> None:
    text = """
failing = []
dup = os.dup

def short(fd):  # the server has no descriptor left when it keeps the reader's
    if sys._getframe(1).f_code.co_name == "_welcome" and os.path.exists(FLAG):
        raise OSError(24, "Too many open files")
    return dup(fd)

FLAG = f"/dev/shm/{NAME}"
os.dup = short
server = forked(serve, loader(), NAME)
job = attached()
next(iter(job))
other = attached()
open(FLAG, "w").close()
try:
    iter(other)
except RuntimeError as error:
    print("Too many open files" in str(error))
os.unlink(FLAG)
print(sum(1 for _ in job))
job.close()
end(server)
"""
    assert printed(text) == ["True", "20"]


def test_a_job_does_not_begin_with_entries_over_which_tasks_are_being_written() -> None:
    text = """
(held, hold), (go, let_go) = os.pipe(), os.pipe()
HELD = 12  # the batch at whose second chunk the server stops; at least 4 are open at once

class Index:  # Python pickles it, so the server's other thread runs meanwhile
    def __init__(self, k, longer=""):
        self.k = k

    def __reduce__(self):
        if self.k == 4 * HELD + 2:  # the first chunk's task is written
            os.write(hold, b"h")
            os.read(go, 1)
        return Index, (self.k, "longer" * 500 * (self.k in (4 * HELD, 4 * HELD + 1)))

class Indices(list):
    def __iter__(self):
        return map(Index, range(80))

class Tenth(Tens):
    def __getitem__(self, index):
        return super().__getitem__(index.k)

server = forked(serve, loader(Tenth(), sampler=Indices(range(80)), chunk_size=2), NAME)
job = attached()
batches, states = iter(job), [job.state_dict()]
for _ in range(HELD - 3):  # the server opens batch HELD over one of these
    next(batches)
    states.append(job.state_dict())
os.read(held, 1)
job.close()
refused = 0
for state in states:  # the oldest one that is in the ring comes first
    job = attached()
    job.load_state_dict(state)
    try:
        batches = iter(job)
        break
    except RuntimeError as error:
        assert "not in the ring any more" in str(error)
        refused += 1
os.write(let_go, b"g")
print(0 < refused < len(states), [k[0].item() // 4 for _, k in batches] == list(range(refused, 20)))
job.close()
end(server)
"""
    assert printed(text) == ["True True"]
