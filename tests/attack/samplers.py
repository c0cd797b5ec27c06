"""The samplers of drawn programs: torch's, and users' own, which may have a state, raise, or give odd batches.
They are importable, so that a printed program can use them.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from torch.utils.data import BatchSampler, DistributedSampler, Sampler

from tests.attack.unlike import Lazy, Unlike
from tests.attack.unlike import Unready as _Unready

# What a printed program gives to the loader for each kind of order; `dataset`, `batch_size` and `at` are filled in.
ORDERS: dict[str, str] = {
    "in order": "",
    "shuffle": "shuffle=True",
    "generator": "shuffle=True, generator=torch.Generator().manual_seed(3)",
    "replacement": "sampler=RandomSampler(dataset, replacement=True, num_samples={length})",
    "own generator": "sampler=RandomSampler(dataset, generator=torch.Generator().manual_seed(4))",
    "weighted": "sampler=WeightedRandomSampler([1.0] * {length}, {length})",
    "subset": "sampler=SubsetRandomSampler(range(1, {length}))",
    "distributed": "sampler={distributed}(dataset, num_replicas={ranks}, rank={rank}, seed=5)",
    "torchs distributed": "sampler=torch.utils.data.DistributedSampler(dataset, {ranks}, {rank}, seed=5)",
    "straight distributed": "sampler={distributed}(dataset, {ranks}, {rank}, shuffle=False, seed=5)",
    "hidden distributed": "sampler=samplers.Hides(torch.utils.data.DistributedSampler(dataset, {ranks}, {rank}))",
    "list": "sampler=list(range({length}))[::-1]",
    "own": "sampler=samplers.Backwards({length})",
    "stateful": "sampler=samplers.Keeper({length})",
    "raising": "sampler=samplers.Raising({length}, {at})",
    "batches": "batch_sampler=BatchSampler(RandomSampler(dataset), {batch_size}, False)",
    "own batches": "batch_sampler=samplers.Batches({length}, {batch_size})",
    "odd batches": "batch_sampler=samplers.OddBatches({length}, {batch_size}, {at})",
    "stateful batches": "batch_sampler=BatchSampler(samplers.Keeper({length}), {batch_size}, False)",
    "used up": "sampler=samplers.UsedUp({length})",
    "used up batches": "batch_sampler=BatchSampler(samplers.UsedUp({length}), {batch_size}, False)",
    "itself": "sampler=samplers.Itself({length})",
    "itself in batches": "batch_sampler=samplers.Itself({length}, {batch_size})",
    "itself with state": "sampler=samplers.ItselfWithState({length})",
    "itself in batches with state": "batch_sampler=samplers.ItselfWithState({length}, {batch_size})",
    "pool": "sampler=samplers.Pool({length})",
    "pool in batches": "batch_sampler=BatchSampler(samplers.Pool({length}), {batch_size}, False)",
    "buffer": "sampler=samplers.Buffer({length})",
    "numpy's": "sampler=samplers.Numpys({length})",
    "numpy ints": "sampler=samplers.NumpyInts({length})",
    "stub": "sampler=samplers.Stub({length})",
    "module": "sampler=samplers.Module({length})",
    "unready": "sampler=samplers.Unready({length})",
    "unready in batches": "batch_sampler=samplers.UnreadyBatches({length}, {batch_size})",
    "lazy": "sampler=samplers.LazyOrder({length})",
    "unlike": "sampler=samplers.UnlikeOrder({length})",
    "unlike in batches": "batch_sampler=samplers.UnlikeBatches(samplers.UnlikeOrder({length}), {batch_size}, False)",
    "own unlike generator": "sampler=RandomSampler(dataset, generator=samplers.UnlikeGenerator().manual_seed(4))",
    "leaves out": "sampler=samplers.LeavesOut({length})",
    "keeps random": "sampler=samplers.KeepsGlobal({length}, 'random')",
    "keeps numpy": "sampler=samplers.KeepsGlobal({length}, 'numpy')",
    "keeps torch": "sampler=samplers.KeepsGlobal({length}, 'torch')",
    "failing state": "sampler=samplers.FailingState({length})",
    "counting": "sampler=samplers.Counting({length})",
    "calls set_epoch": "sampler=samplers.Calls(dataset)",
    "calls set_epoch twice": "sampler=samplers.Calls(dataset, 2)",
}
CALLING = ("calls set_epoch", "calls set_epoch twice")
IN_BATCHES = (
    "batches",
    "own batches",
    "odd batches",
    "stateful batches",
    "used up batches",
    "itself in batches",
    "itself in batches with state",
    "pool in batches",
    "unready in batches",
    "unlike in batches",
)
ONE_BY_ONE = ("itself", "itself with state")  # torch's BatchSampler asks them for an iterator at each batch
# What a resumed run gives to such a sampler in place of what the saved one gave.
OTHERS = {"seed": "seed=6", "shuffle": "seed=5, shuffle=False", "drop_last": "seed=5, drop_last=True"}
DISTRIBUTED = ("distributed", "torchs distributed", "straight distributed")
# Each draws from a global generator in mid-epoch, and its state has that generator's.
KEEPS = ("keeps random", "keeps numpy", "keeps torch")
UNREADY = ("unready", "unready in batches", "lazy")
# They have a set_epoch(), or seem to have one.
NUMBERED = (*DISTRIBUTED, "hidden distributed", *UNREADY, "unlike", "unlike in batches")
STATEFUL = (
    "stateful",
    "stateful batches",
    "used up",
    "used up batches",
    "itself with state",
    "itself in batches with state",
    "pool",
    "pool in batches",
    "buffer",
    "numpy's",
    "leaves out",
    *KEEPS,
)
ASKED = (*STATEFUL, "stub", "module", *UNREADY, "failing state", "counting")  # by what they have, or seem to have
DRAW_FROM_GLOBAL = ("shuffle", "replacement", "weighted", "subset", "batches")
DRAWS = (*DRAW_FROM_GLOBAL, "generator", "own generator", "own unlike generator", "numpy's", *KEEPS)
WITHOUT_STATE = (
    "own",
    "own batches",
    "odd batches",
    "raising",
    "itself",
    "itself in batches",
    "numpy ints",
    "stub",
    "module",
    *UNREADY,
    "unlike",
    "unlike in batches",
    "hidden distributed",
)  # of which a loader can only guess that they repeat themselves


_MOST = 400  # draws of all epochs of a program together


class SamplerError(Exception):
    """Raised by a sampler."""


class Remainder(DistributedSampler[Any]):
    """torch's sampler, whose first epoch is what other ranks left of theirs.

    Attributes:
        dealt: How many samples of that epoch they had, over all ranks.
    """

    dealt = 0

    def __iter__(self) -> Iterator[Any]:
        dealt, self.dealt = self.dealt, 0  # at its first index, because torch's loader asks for two iterators
        if not dealt:
            yield from super().__iter__()
            return
        single = DistributedSampler[Any](self.dataset, 1, 0, shuffle=self.shuffle, seed=self.seed)
        single.set_epoch(self.epoch)
        order = list(single)
        left, fill = order[dealt:], iter(order * self.num_replicas)
        while len(left) % self.num_replicas:
            left.append(next(fill))
        yield from left[self.rank :: self.num_replicas]

    def forget(self) -> None:
        """Begin the next epoch, although nobody asked for an index of the rest."""
        self.dealt = 0


class Backwards(Sampler[int]):
    """A sampler of the user's: the same order in each epoch."""

    def __init__(self, length: int) -> None:
        self.length, self.flag = length, 0

    def __iter__(self) -> Iterator[int]:
        return iter([(i + self.flag) % self.length for i in range(self.length)][::-1])

    def __len__(self) -> int:
        return self.length


class Hides(Sampler[Any]):
    """Gives what another sampler gives, which a loader does not find, so that set_epoch() does not reach it."""

    def __init__(self, hidden: DistributedSampler[Any]) -> None:
        self.hidden = hidden

    def __iter__(self) -> Iterator[Any]:
        return iter(self.hidden)

    def __len__(self) -> int:
        return len(self.hidden)


class Batches(Sampler[list[int]]):
    """A batch sampler of the user's, whose batches are of two sizes."""

    def __init__(self, length: int, batch_size: int) -> None:
        self.length, self.batch_size = length, batch_size

    def __iter__(self) -> Iterator[list[int]]:
        start, size = 0, self.batch_size
        while start < self.length:
            yield list(range(start, min(start + size, self.length)))
            start, size = start + size, self.batch_size + 1 if size == self.batch_size else self.batch_size

    def __len__(self) -> int:
        return len(list(iter(self)))


class OddBatches(Batches):
    """One of its batches is none: a number in place of a list."""

    def __init__(self, length: int, batch_size: int, at: int) -> None:
        super().__init__(length, batch_size)
        self.at = at

    def __iter__(self) -> Iterator[Any]:
        return (number if number == self.at else batch for number, batch in enumerate(super().__iter__()))


class Keeper(Sampler[int]):
    """A sampler that shuffles each epoch in another way and says where it is."""

    def __init__(self, length: int) -> None:
        self.length, self.epoch, self.position = length, 0, 0

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.length))
        random.Random(self.epoch).shuffle(order)
        while self.position < self.length:
            self.position += 1
            yield order[self.position - 1]
        self.position, self.epoch = 0, self.epoch + 1

    def __len__(self) -> int:
        return self.length

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position, self.epoch = state.pop("position"), state.pop("epoch")  # lhotse's empty what they get, too


class UsedUp(Sampler[int]):
    """A sampler whose state keeps that it has ended, as that of torchdata's StatefulDistributedSampler."""

    def __init__(self, length: int) -> None:
        self.length, self.given = length, 0
        self.loaded: int | None = None

    def __iter__(self) -> Iterator[int]:
        self.given, self.loaded = self.loaded or 0, None
        while self.given < self.length:
            self.given += 1
            yield self.length - self.given

    def __len__(self) -> int:
        return self.length

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state["given"]


class Itself(Sampler[Any]):
    """A sampler that is its own iterator, of samples or of batches: `__iter__` begins again, as lhotse's does.

    One that begins again and again would not end, so it raises in the end.
    """

    def __init__(self, length: int, batch_size: int | None = None) -> None:
        self.length, self.batch_size, self.place, self.draws = length, batch_size, 0, 0

    def __iter__(self) -> Iterator[Any]:
        self.place = 0
        return self

    def __next__(self) -> Any:
        self.draws += 1
        if self.draws > _MOST:
            raise SamplerError("it does not end")
        if self.place >= self.length:
            raise StopIteration
        start, self.place = self.place, min(self.place + (self.batch_size or 1), self.length)
        return start if self.batch_size is None else list(range(start, self.place))

    def __len__(self) -> int:
        return -(-self.length // (self.batch_size or 1))


class ItselfWithState(Itself):
    """The same with a state, from which its next `__iter__` goes on."""

    is_loaded = False

    def __iter__(self) -> Iterator[Any]:
        if not self.is_loaded:
            self.place = 0
        self.is_loaded = False
        return self

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place, self.is_loaded = state["place"], True


class Calls(Sampler[int]):
    """A sampler that calls the dataset's set_epoch() before each round through its indices."""

    def __init__(self, dataset: Any, rounds: int = 1) -> None:
        self.dataset, self.rounds, self.epochs = dataset, rounds, 0

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.rounds):
            self.epochs += 1
            self.dataset.set_epoch(self.epochs)
            yield from range(len(self.dataset))

    def __len__(self) -> int:
        return self.rounds * len(self.dataset)


class Raising(Sampler[int]):
    """A sampler that raises within an epoch, and ends there."""

    def __init__(self, length: int, at: int) -> None:
        self.length, self.at = length, at

    def __iter__(self) -> Iterator[int]:
        for i in range(self.length):
            if i == self.at:
                raise SamplerError(f"no index after {i}")
            yield i

    def __len__(self) -> int:
        return self.length


class Pool(Sampler[int]):
    """Draws from a pool of indices by a generator of NumPy's.  All of it is in the state, also behind an epoch."""

    def __init__(self, length: int) -> None:
        self.length, self.left = length, list[int]()
        self.rng = numpy.random.default_rng(length)

    def __iter__(self) -> Iterator[int]:
        self.left = self.left or list(range(self.length))
        while self.left:
            yield self.left.pop(int(self.rng.integers(len(self.left))))

    def __len__(self) -> int:
        return self.length

    def state_dict(self) -> dict[str, Any]:
        return {"left": list(self.left), "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.left, self.rng.bit_generator.state = list(state["left"]), state["rng"]


class Buffer(Sampler[int]):
    """A shuffle buffer over a generator of Python's."""

    def __init__(self, length: int) -> None:
        self.length, self.read, self.held = length, 0, list[int]()
        self.rng = random.Random(length)

    def __iter__(self) -> Iterator[int]:
        while self.read < self.length or self.held:
            while self.read < self.length and len(self.held) < 4:
                self.held.append(self.read)
                self.read += 1
            yield self.held.pop(self.rng.randrange(len(self.held)))
        self.read = 0

    def __len__(self) -> int:
        return self.length

    def state_dict(self) -> dict[str, Any]:
        return {"read": self.read, "held": list(self.held), "rng": self.rng.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.read, self.held = state["read"], list(state["held"])
        version, words, gauss = state["rng"]
        self.rng.setstate((version, tuple(words), gauss))


class Numpys(Sampler[int]):
    """Draws its order from NumPy's global generator when it is asked for the first index, and keeps it in its state."""

    def __init__(self, length: int) -> None:
        self.length, self.order = length, list[int]()

    def __iter__(self) -> Iterator[int]:
        self.order = self.order or numpy.random.permutation(self.length).tolist()
        while self.order:
            yield self.order.pop()

    def __len__(self) -> int:
        return self.length

    def state_dict(self) -> dict[str, Any]:
        return {"order": list(self.order)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order = list(state["order"])


class LeavesOut(Sampler[int]):
    """Shuffles by generators of its own, and leaves them out of its state."""

    def __init__(self, length: int) -> None:
        self.length, self.left = length, list[int]()
        self.rng, self.numbers = random.Random(length), numpy.random.default_rng(length)

    def __iter__(self) -> Iterator[int]:
        if not self.left:
            self.left = self.numbers.permutation(self.length).tolist()
            self.rng.shuffle(self.left)
        while self.left:
            yield self.left.pop()

    def __len__(self) -> int:
        return self.length

    def state_dict(self) -> dict[str, Any]:
        return {"left": list(self.left)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.left = list(state["left"])


class KeepsGlobal(Sampler[int]):
    """Draws each index from a global generator, which its own state restores: "random", "numpy" or "torch"."""

    def __init__(self, length: int, library: str) -> None:
        self.length, self.library, self.left = length, library, list[int]()

    def __iter__(self) -> Iterator[int]:
        below: dict[str, Callable[[int], Any]] = {
            "random": random.randrange,
            "numpy": numpy.random.randint,
            "torch": lambda limit: torch.randint(limit, ()),
        }
        self.left = self.left or list(range(self.length))
        while self.left:
            yield self.left.pop(int(below[self.library](len(self.left))))

    def __len__(self) -> int:
        return self.length

    def state_dict(self) -> dict[str, Any]:
        get: dict[str, Callable[[], Any]] = {
            "random": random.getstate,
            "numpy": numpy.random.get_state,
            "torch": torch.get_rng_state,
        }
        return {"left": list(self.left), "generator": pickle.dumps(get[self.library]()).hex()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        put: dict[str, Callable[[Any], None]] = {
            "random": random.setstate,
            "numpy": numpy.random.set_state,
            "torch": torch.set_rng_state,
        }
        self.left = list(state["left"])
        put[self.library](pickle.loads(bytes.fromhex(state["generator"])))


class NumpyInts(Backwards):
    """Gives NumPy's ints, and Python's among them."""

    def __iter__(self) -> Iterator[Any]:
        return iter([i if i % 7 == 6 else numpy.int64(i) for i in range(self.length)])


class Stub(Backwards):
    """Has the methods of a base class that leaves them to others."""

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


class Module(torch.nn.Module):
    """A network that chooses the samples; its state_dict() has its parameters."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length
        self.weights = torch.nn.Parameter(torch.arange(float(length)))

    def __iter__(self) -> Iterator[int]:
        return iter(self.weights.argsort(descending=True).tolist())

    def __len__(self) -> int:
        return self.length


class Unready(_Unready, Backwards):
    """Has attributes that raise until something is set up, and nobody sets it up."""


class UnreadyBatches(_Unready, Sampler[list[int]]):
    """The same of batches."""

    def __init__(self, length: int, size: int) -> None:
        self.length, self.size = length, size

    def __iter__(self) -> Iterator[list[int]]:
        for start in range(0, self.length, self.size):
            yield list(range(start, min(start + self.size, self.length)))

    def __len__(self) -> int:
        return -(-self.length // self.size)


class LazyOrder(Lazy, Backwards):
    """Its `__getattr__` raises."""


class UnlikeOrder(Unlike, Backwards):
    """May not be compared.  It has a set_epoch() that changes nothing."""

    def set_epoch(self, epoch: int) -> None:
        pass


class UnlikeBatches(Unlike, BatchSampler):
    """The same of batches, around another one."""

    def set_epoch(self, epoch: int) -> None:
        pass


class UnlikeGenerator(Unlike, torch.Generator):
    """A generator that may not be compared."""


class FailingState(Backwards):
    def state_dict(self) -> dict[str, Any]:
        raise SamplerError("it has no state")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise SamplerError("it has no state")


class Counting(Backwards):
    """Its state would be costly, so it raises if it is asked more than once an epoch."""

    asked, begun = 0, 0

    def __iter__(self) -> Iterator[int]:
        self.begun += 1
        for index in super().__iter__():
            if self.asked > self.begun + 1:  # one epoch may have begun early
                raise SamplerError(f"it was asked for its state {self.asked} times in {self.begun} epochs")
            yield index

    def state_dict(self) -> dict[str, Any]:
        self.asked += 1
        return {"asked": self.asked}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.asked = state["asked"]
