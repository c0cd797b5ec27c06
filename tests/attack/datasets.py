"""The datasets of drawn programs: forms of samples, habits such as raising, exiting or forking, collate functions.
They are importable, so that a printed program can use them.
"""

from __future__ import annotations

import collections
import mmap
import os
import random
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

import numpy
import torch
from torch.utils._pytree import tree_map_only
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

from shmloader import row_wise
from shmloader.batch.replace_tensors import tensors_of
from tests.attack.unlike import Lazy, Unlike, Unready

Point = collections.namedtuple("Point", ["x", "label"])


class Marked(torch.Tensor):
    """A tensor of a class of the user's."""


def views(i: int) -> dict[str, Any]:
    """Tensors that share memory."""
    whole = torch.arange(20 * i, 20 * i + 20).view(4, 5)  # a view of another place has other elements
    return {"whole": whole, "views": [whole[1:3], whole.view(-1)[::2], whole[3:].expand(3, 1, 5)]}


def doubled(i: int) -> dict[str, torch.Tensor]:
    """Two keys, under which some samples have one tensor."""
    tensor = torch.full((3,), i)
    return {"x": tensor, "y": tensor if i % 3 else tensor.clone()}


FORMS: dict[str, Callable[[int], Any]] = {
    "number": lambda i: i,
    "float": lambda i: i / 4,
    "tensor": lambda i: torch.full((3,), i),
    "array": lambda i: numpy.full((2, 2), i, dtype="float32"),
    "numpy scalar": lambda i: numpy.int16(i),
    "dict": lambda i: {"x": torch.full((2,), float(i)), "label": i},
    "named tuple": lambda i: Point(torch.tensor([i]), f"{i}"),
    "pair": lambda i: (numpy.full(3, i), i),
    "string": lambda i: f"sample {i} by {type(i).__name__}",
    "bytes": lambda i: b"%d" % i,
    "nested": lambda i: [{"a": (i, torch.tensor(i))}, str(i)],
    "views": views,
    "doubled": doubled,
    "twins": lambda i: [numpy.full(2, i)] * 2,
    "marked": lambda i: torch.full((3,), i).as_subclass(Marked),
    "labelled": lambda i: (torch.full((8000,), i % 100, dtype=torch.uint8), i),  # too few for threads of torch
    "large": lambda i: torch.full((20_000,), i % 100, dtype=torch.uint8),
    "two large": lambda i: [torch.full((size,), i % 100, dtype=torch.uint8) for size in (6000, 5000)],
    "growing": lambda i: torch.full((1 << min(i, 17),), i % 100, dtype=torch.uint8),  # one size a batch of one
    "ragged": lambda i: torch.full((i % 4 + 1,), i),
}
NEED_COLLATE = ("ragged", "growing")  # default_collate cannot stack them
NOISE: dict[str, Callable[[], float]] = {
    "torch": lambda: torch.rand(()).item(),
    "random": random.random,
    "numpy": lambda: float(numpy.random.rand()),
}


class Broken(Exception):
    """Raised by a sample; it cannot be made of a message alone."""

    def __init__(self, index: int, why: str) -> None:
        super().__init__(f"sample {index} is broken: {why}")


class Once:
    """Whether something has happened in any process of the program."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 1)

    @property
    def happened(self) -> bool:
        return self._memory[0] != 0

    @happened.setter
    def happened(self, happened: bool) -> None:
        self._memory[0] = happened

    def __reduce__(self) -> Any:
        return (Once, ())


_errors: dict[int, Once] = {}  # of each process that makes datasets


def error_of_program() -> Once:
    """Whether the user has met the error of "raises once".

    Until then the sample raises whenever it is read, because a batch that was prefetched may be lost and read again.
    """
    return _errors.setdefault(os.getpid(), Once())


def _raise(data: Any, i: int) -> None:
    raise ValueError(f"sample {i} is bad")


def _raise_odd(data: Any, i: int) -> None:
    raise Broken(i, "odd")


def _raise_once(data: Any, i: int) -> None:
    if not data.error.happened:
        raise ValueError(f"sample {i} is bad")


class WithMessage(Exception):
    """Raised by a sample; it has a message as a class attribute, and is made of something else."""

    message = "of the class"

    def __init__(self, *, text: str) -> None:
        super().__init__(text)


def _raise_group(data: Any, i: int) -> None:
    raise ExceptionGroup("of tasks", [ValueError(f"sample {i} is bad")])  # noqa: F821 (Python 3.11)


def _raise_with_message(data: Any, i: int) -> None:
    raise WithMessage(text=f"sample {i} is bad")


def _exit_once(data: Any, i: int) -> None:
    if not data.exit.happened:
        data.exit.happened = True
        os._exit(3)


class _Grandchild:
    """A process that collates samples of its own while this one makes the sample after the next."""

    def __init__(self) -> None:
        wait, self._go = os.pipe()
        self._done, say = os.pipe()
        self._ends = [self._go, self._done]
        child = os.fork()
        if child == 0:
            try:
                os.close(self._go)
                if os.fork() == 0 and os.read(wait, 1):
                    default_collate([torch.full((3,), 90 + k) for k in range(2)])
                    os.write(say, b".")
            finally:
                os._exit(0)
        os.close(wait)
        os.close(say)
        os.waitpid(child, 0)

    def collate(self) -> None:
        os.write(self._go, b".")
        os.read(self._done, 1)
        self.__del__()

    def __del__(self) -> None:
        for end in self._ends:
            os.close(end)
        self._ends = []


def _fork(data: Any, i: int) -> None:
    data.grandchild = _Grandchild()


def _timer(data: Any, i: int) -> None:
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)


def _keep(data: Any, i: int) -> None:
    data.keepers.append(data.made)


HABITS: dict[str, Callable[[Any, int], None]] = {
    "raises": _raise,
    "raises odd": _raise_odd,
    "raises once": _raise_once,
    "raises with message": _raise_with_message,
    "exits once": _exit_once,
    "forks": _fork,
    "timer": _timer,
    "keeps": _keep,
}
if sys.version_info >= (3, 11):
    HABITS["raises group"] = _raise_group
NOT_REBUILT = (
    "raises group",
    "raises with message",
)  # torch cannot raise the class, and then there is no promise but the text
EVERY_SAMPLE = ("keeps",)


class _Samples:
    """What map-style datasets and streams share: how a sample is made."""

    def __init__(self, length: int, form: str = "number", *, noise: str = "", habit: str = "", at: int = 0) -> None:
        self.length, self.form, self.noise, self.habit, self.at = length, form, noise, habit, at
        self.exit, self.error = Once(), error_of_program()
        self.keepers: list[Any] = []
        self.made: Any = None
        self.grandchild: _Grandchild | None = None

    def sample(self, i: int) -> Any:
        if self.grandchild is not None:
            grandchild, self.grandchild = self.grandchild, None
            grandchild.collate()
        self.made = FORMS[self.form](i)
        if self.habit and (i % max(self.length, 1) == self.at or self.habit in EVERY_SAMPLE):
            HABITS[self.habit](self, i)
        return (self.made, NOISE[self.noise]()) if self.noise else self.made


class Rows(_Samples, Dataset[Any]):
    """A map-style dataset."""

    def __getitem__(self, i: int) -> Any:
        return self.sample(i)

    def __len__(self) -> int:
        return self.length


class RowsOfEpoch(Rows):
    """A map-style dataset with set_epoch(), whose samples differ from epoch to epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, i: int) -> Any:
        return self.sample(i + self.epoch * self.length)


class RowsUnready(Unready, Rows):
    """A map-style dataset with attributes that raise until something is set up, and nobody sets it up."""


class RowsLazy(Lazy, Rows):
    """A map-style dataset whose `__getattr__` raises."""


class RowsUnlike(Unlike, Rows):
    """A map-style dataset that may not be compared.  It has a set_epoch() that changes nothing."""

    def set_epoch(self, epoch: int) -> None:
        pass


class RowsWhoseEpochCounts(Rows):
    """A map-style dataset that counts in place how often set_epoch() was called."""

    calls = 0

    def set_epoch(self, epoch: int) -> None:
        self.calls += 1

    def __getitem__(self, i: int) -> Any:
        return self.sample(i + self.calls * self.length)


class RowsWhoseEpochShuffles(Rows):
    """A map-style dataset that shuffles its samples in place."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.order = list(range(self.length))

    def set_epoch(self, epoch: int) -> None:
        random.shuffle(self.order)

    def __getitem__(self, i: int) -> Any:
        return self.sample(self.order[i])


class RowsWhoseEpochSeeds(Rows):
    """A map-style dataset that seeds the generators, as many public ones do."""

    def set_epoch(self, epoch: int) -> None:
        random.seed(epoch)
        numpy.random.seed(epoch)
        torch.manual_seed(epoch)


class RowsWhoseEpochDraws(Rows):
    """A map-style dataset that draws in set_epoch() in a worker, and raises where workers have drawn unlike numbers."""

    drawn: tuple[int, bytes] | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.board = mmap.mmap(-1, 8 * 8)  # for each epoch's number, what the first worker has drawn

    def set_epoch(self, epoch: int) -> None:
        if get_worker_info() is not None:
            drawn = random.random() + float(numpy.random.rand()) + torch.rand(()).item()
            self.drawn = 8 * epoch, struct.pack("d", drawn)
            if self.board[8 * epoch : 8 * epoch + 8] == bytes(8):
                self.board[8 * epoch : 8 * epoch + 8] = self.drawn[1]

    def __getitem__(self, i: int) -> Any:
        if self.drawn is not None and self.board[self.drawn[0] : self.drawn[0] + 8] != self.drawn[1]:
            raise LookupError("workers have drawn unlike numbers in set_epoch()")
        return self.sample(i)


class RowsWithEpochsAttribute(Rows):
    """A map-style dataset with an attribute that the user sets after set_epoch(), which resets it."""

    attribute = 0

    def set_epoch(self, epoch: int) -> None:
        self.attribute = 0

    def __getitem__(self, i: int) -> Any:
        return self.sample(i + self.attribute * self.length)


class RowsWithGenerator(Rows):
    """A map-style dataset that holds a generator, which must reach the workers that do not inherit it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.generator = torch.Generator().manual_seed(7)

    def __getitem__(self, i: int) -> Any:
        return self.sample(i), self.generator.initial_seed()


class _Reader:
    """An iterator over the part of a worker that goes on after an exception."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.position = stream, 0

    def __iter__(self) -> _Reader:
        return self

    def __next__(self) -> Any:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        i = first + self.position * step
        if i >= self.stream.length:
            raise StopIteration
        self.position += 1
        return self.stream.sample(i)


class _ReaderWithState(_Reader):
    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class Stream(_Samples, IterableDataset[Any]):
    """A stream without a state; each worker reads its part."""

    def __iter__(self) -> Iterator[Any]:
        return _Reader(self)


class StreamItself(Stream, _Reader):
    """A stream that is its own iterator: `__iter__` begins again.  A sample that has raised comes at the next call."""

    position = 0
    stream = property(lambda self: self)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.first_habit = self.habit

    def __iter__(self) -> Iterator[Any]:
        self.position, self.habit = 0, self.first_habit
        return self

    def __next__(self) -> Any:
        position = self.position
        try:
            return super().__next__()
        except StopIteration:
            raise
        except Exception:
            self.position, self.habit = position, ""
            raise


class _UnreadyReader(Unready, _Reader):
    pass


class StreamUnready(Unready, Stream):
    """A stream with attributes that raise until something is set up, and nobody sets it up.  So has its iterator."""

    def __iter__(self) -> Iterator[Any]:
        return _UnreadyReader(self)


class StreamUnlike(Unlike, Stream):
    """A stream that may not be compared."""


class StreamModule(torch.nn.Module, Stream):
    """A stream that is a network; its state_dict() has its parameters."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        torch.nn.Module.__init__(self)
        Stream.__init__(self, *arguments, **options)


class StreamWithFailingState(Stream):
    """A stream whose state_dict() raises, which is an error of the loader's state_dict() alone."""

    def state_dict(self) -> dict[str, int]:
        raise LookupError("it has no state")

    def load_state_dict(self, state: dict[str, int]) -> None:
        raise LookupError("it has no state")


class StreamWhoseIteratorHasState(Stream):
    """A stream whose iterator says where it is."""

    def __iter__(self) -> Iterator[Any]:
        return _ReaderWithState(self)


class StreamWithState(Stream):
    """A stream that says where it is.  It counts the epochs that it has finished, and they change its samples."""

    position, epoch = 0, 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        while (i := first + self.position * step) < self.length:
            self.position += 1
            yield self.sample(i + self.epoch * self.length)
        self.position, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position, self.epoch = state["position"], state["epoch"]


class StreamOfEpoch(Stream):
    """A stream with set_epoch(), whose state holds its epoch: all its iterators in that epoch begin at the state's
    place, as those of Hugging Face's datasets do.  It goes back to that epoch when the state is loaded.  Its state is
    that of its last iterator.  Before it has one, it returns the state that was loaded.  It empties what it gets.
    """

    position, epoch, of = 0, 0, 0
    start: dict[str, int] | None = None

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        self.of = self.epoch
        self.position = self.start["position"] if self.start and self.start["epoch"] == self.epoch else 0
        while (i := first + self.position * step) < self.length:
            self.position += 1
            yield self.sample(i + self.of * self.length)

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position, "epoch": self.of}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start, self.epoch = {**state}, state["epoch"]
        self.position, self.of = state["position"], state["epoch"]
        state.clear()


class StreamThatDrawsOn(Stream):
    """A stream whose set_epoch() begins its draws again.  Loading a state draws as often as then, from where it is."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        self.rng, self.drawn = random.Random(epoch), 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        while first + self.drawn * step < self.length:
            self.drawn += 1
            yield self.sample(self.rng.randrange(1000))

    def state_dict(self) -> dict[str, int]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state: dict[str, int]) -> None:
        for _ in range(state["drawn"]):
            self.rng.randrange(1000)
        self.drawn = state["drawn"]


class StreamWhoseEpochCounts(Stream):
    """A stream that counts in place how often set_epoch() was called."""

    calls = 0

    def set_epoch(self, epoch: int) -> None:
        self.calls += 1

    def sample(self, i: int) -> Any:
        return super().sample(i + self.calls * self.length)


OF_EPOCH: dict[str, type] = {
    "rows whose epoch counts": RowsWhoseEpochCounts,
    "rows whose epoch shuffles": RowsWhoseEpochShuffles,
    "rows whose epoch seeds": RowsWhoseEpochSeeds,
    "rows whose epoch draws": RowsWhoseEpochDraws,
    "rows with an epoch's attribute": RowsWithEpochsAttribute,
    "stream whose epoch counts": StreamWhoseEpochCounts,
}
KINDS: dict[str, type] = {
    **OF_EPOCH,
    "rows": Rows,
    "rows of epoch": RowsOfEpoch,
    "rows unready": RowsUnready,
    "rows lazy": RowsLazy,
    "rows unlike": RowsUnlike,
    "stream": Stream,
    "stream itself": StreamItself,
    "stream with state": StreamWithState,
    "stream whose iterator has state": StreamWhoseIteratorHasState,
    "stream of epoch": StreamOfEpoch,
    "stream that draws on by epoch": StreamThatDrawsOn,
    "stream module": StreamModule,
    "stream unready": StreamUnready,
    "stream unlike": StreamUnlike,
    "stream with failing state": StreamWithFailingState,
    "rows with generator": RowsWithGenerator,
}
NUMBERED = ("rows unready", "rows lazy", "rows unlike")  # with a set_epoch() without effect, or one that raises


# ------------------------------------------------------------------------------------------------ collate functions


class Batch:
    """A batch of a user's class: pickle carries it."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __repr__(self) -> str:
        return f"Batch({self.samples!r})"


def as_list(samples: list[Any]) -> list[Any]:
    return samples


def as_object(samples: list[Any]) -> Batch:
    return Batch(samples)


def beside_object(samples: list[Any]) -> Any:
    return default_collate(samples), Batch(samples)


def with_views(samples: list[Any]) -> Any:
    """The collated batch, and views of its tensors."""
    batch = default_collate(samples)
    found = [tensor for tensor in tensors_of(batch) if tensor.dim()]
    return {
        "few": [tensor.reshape(-1)[-2:] for tensor in found],  # small beside a large batch: NOTE [ Small leaves ]
        "whole": batch,
        "views": [view for tensor in found for view in (tensor[:1], tensor[-1:], tensor.expand(3, *tensor.shape))],
    }


def annotated_views(samples: list[Any]) -> Any:
    """The collated batch, its tensors once more, and annotations of a shape of their own, which also occur twice."""
    batch = default_collate(samples)
    marks = {f"{sample}": [{"box": [k] * (len(f"{sample}") % 4)}] * (k % 3) for k, sample in enumerate(samples)}
    views = [*tensors_of(batch)] * 2
    return {"whole": batch, "views": views, "marks": marks, "again": marks, "of": (marks, {"in": [marks]})}


def twice(samples: list[Any]) -> Any:
    """The collated batch twice: a tensor, or a container of tensors."""
    batch = default_collate(samples)
    return {"once": batch, "again": [batch]}


@row_wise
def rows_twice(samples: list[Any]) -> Any:
    """The collated rows under two keys: the same tensors in some chunks, and clones in others."""
    rows = default_collate(samples)
    is_same = crc32(f"{samples[0]}".encode()) % 2 == 1
    return {"once": rows, "again": rows if is_same else tree_map_only(torch.Tensor, torch.Tensor.clone, rows)}


def by_name(samples: list[Any]) -> Any:
    """Records with keys of their own and a tensor in each, so that each batch has another structure."""
    return {f"{sample}": {"at": torch.tensor([k]), "of": sample} for k, sample in enumerate(samples)}


def mixed(samples: list[Any]) -> Any:
    """Other tensors than those that were collated.  Only the last of several is returned as it is."""
    found = [*tensors_of(default_collate(samples))][::-1]
    others = [each for tensor in found for each in (tensor.float(), tensor.flip(0))]
    return {"others": others, "as it is": found[1:][-1:]}


def expanded(samples: list[Any]) -> Any:
    """Tensors of the collated batch, each of which has a row again and again, and a constant."""
    found = [tensor for tensor in tensors_of(default_collate(samples)) if tensor.dim()]
    return [tensor[:1].expand(5, *tensor.shape[1:]) for tensor in found], torch.ones(1).expand(40)


class _Collates(Unlike):
    """A collate function that may not be compared."""

    def __call__(self, samples: list[Any]) -> Any:
        return default_collate(samples)


unlike = _Collates()


COLLATE: dict[str, Any] = {
    "as_list": as_list,
    "as_object": as_object,
    "beside_object": beside_object,
    "with_views": with_views,
    "annotated_views": annotated_views,
    "twice": twice,
    "rows_twice": rows_twice,
    "by_name": by_name,
    "mixed": mixed,
    "expanded": expanded,
    "unlike": unlike,
}
ROW_WISE = ("rows_twice",)  # may have a chunk_size
BY_PICKLE = ("as_object", "beside_object")  # tensors that overlap may arrive apart in their batches
