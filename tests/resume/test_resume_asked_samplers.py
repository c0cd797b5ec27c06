"""When a sampler's state_dict() is called, what a state has that was saved before, and what becomes of its errors."""

from __future__ import annotations

import copy
import itertools
import random
import signal
import warnings
import zlib
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from conftest import Augmented, iterate, label
from test_resume import through_json
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler

import shmloader
from shmloader.resume import place
from shmloader.resume.place import place_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
]
LENGTH = 10


class Own(Sampler[int]):
    """Shuffles with torch's global generator when it is asked for the first index, and counts its state_dict()s."""

    asked, at = 0, 0
    order: Any = None

    def __len__(self) -> int:
        return LENGTH

    def permuted(self) -> list[int]:
        return torch.randperm(LENGTH).tolist()  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[int]:
        if self.order is None:
            self.order, self.at = self.permuted(), 0
        while self.at < LENGTH:
            self.at += 1
            yield self.order[self.at - 1]
        self.order = None

    def state_dict(self) -> dict[str, Any]:
        self.asked += 1
        return {"order": copy.copy(self.order), "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order, self.at = state["order"], state["at"]


class OfRandom(Own):
    def permuted(self) -> list[int]:
        return random.sample(range(LENGTH), LENGTH)


class OfNumpy(Own):
    def permuted(self) -> list[int]:
        return numpy.random.permutation(LENGTH).tolist()  # type: ignore[no-any-return]


class OfItsOwn(Own):
    """Its state lacks its generator."""

    def __init__(self, generator: Any) -> None:
        self.rng = generator

    def permuted(self) -> list[int]:
        if isinstance(self.rng, torch.Generator):
            return torch.randperm(LENGTH, generator=self.rng).tolist()  # type: ignore[no-any-return]
        if isinstance(self.rng, random.Random):
            return self.rng.sample(range(LENGTH), LENGTH)
        return self.rng.permutation(LENGTH).tolist()  # type: ignore[no-any-return]


class Pool(Own):
    """A pool of indices that NumPy's generator draws from, index by index; all of it is in the state."""

    def __init__(self) -> None:
        self.rng = numpy.random.default_rng(7)
        self.left: list[int] = []

    def __iter__(self) -> Iterator[int]:
        self.left = self.left or list(range(LENGTH))
        while self.left:
            yield self.left.pop(int(self.rng.integers(len(self.left))))

    def state_dict(self) -> dict[str, Any]:
        self.asked += 1
        return {"left": list(self.left), "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.left, self.rng.bit_generator.state = list(state["left"]), state["rng"]


class Buffer(Own):
    """A shuffle buffer over a generator of Python's: what comes in takes the place of what goes out."""

    size = 4

    def __init__(self, rng: Any = random) -> None:
        self.rng, self.held, self.read = rng, list[int](), 0

    def __iter__(self) -> Iterator[int]:
        while self.read < LENGTH or self.held:
            while self.read < LENGTH and len(self.held) < self.size:
                self.held.append(self.read)
                self.read += 1
            yield self.held.pop(self.rng.randrange(len(self.held)))
        self.read = 0

    def state_dict(self) -> dict[str, Any]:
        self.asked += 1
        return {"held": list(self.held), "read": self.read, "rng": self.rng.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held, self.read = list(state["held"]), state["read"]
        version, words, gauss = state["rng"]
        if self.rng is not random:
            self.rng.setstate((version, tuple(words), gauss))


class Yielded(Own):
    """Its state holds how many it gave, at the end too, as that of torchdata's samplers."""

    def __init__(self) -> None:
        self.given, self.first, self.epoch = 0, 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.given, self.first = self.first, 0
        while self.given < LENGTH:
            self.given += 1
            yield (self.given * (3, 7, 9)[self.epoch % 3]) % LENGTH

    def state_dict(self) -> dict[str, Any]:
        self.asked += 1
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.first = state["given"]


KINDS: dict[str, Any] = {
    "torch's generator": Own,
    "random": OfRandom,
    "NumPy's generator": OfNumpy,
    "a torch.Generator": lambda: OfItsOwn(torch.Generator().manual_seed(5)),
    "a random.Random": lambda: OfItsOwn(random.Random(5)),
    "a numpy Generator": lambda: OfItsOwn(numpy.random.default_rng(5)),
    "a RandomState": lambda: OfItsOwn(numpy.random.RandomState(5)),
    "a Philox": lambda: OfItsOwn(numpy.random.Generator(numpy.random.Philox(5))),
    "a pool": Pool,
    "a buffer": lambda: Buffer(random.Random(3)),
    "a buffer over random": Buffer,
    "a used up one": Yielded,
}
AS: dict[str, Any] = {
    "samples": lambda sampler: {"sampler": sampler, "batch_size": None},
    "batches": lambda sampler: {"sampler": sampler, "batch_size": 3},
    "batches of batches": lambda sampler: {
        "batch_sampler": BatchSampler(BatchSampler(sampler, 2, False), 2, False),
        "collate_fn": flat_batch,
    },
}
OPTIONS: list[Any] = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 2, "schedule": "steal"},
    {"num_workers": 2, "chunk_size": 2},
    {"num_workers": 1, "in_order": False},
    {"num_workers": 2, "device": "cpu", "on_device": copy.copy},
    {"num_workers": 2, "multiprocessing_context": "forkserver"},
]


EACH = [  # those are short that differ most
    pytest.param(each, id=label(each), marks=() if k in (0, 1, 3) else pytest.mark.long)
    for k, each in enumerate(OPTIONS[:-1])
]


def flat_batch(samples: list[Any]) -> Any:
    return samples


class Numbers(Augmented):
    def __getitem__(self, index: Any) -> Any:
        return {"i": index}


def made(sampler: Any, how: str = "batches", **options: Any) -> Any:
    return shmloader.DataLoader(Numbers(LENGTH), **AS[how](sampler), **options)


def numbers(batches: Any) -> list[Any]:
    return [flat(batch) for batch in itertools.islice(batches, 50)]


def flat(batch: Any) -> Any:
    if isinstance(batch, list):
        return [each["i"] for each in batch]
    return batch["i"].tolist() if isinstance(batch["i"], torch.Tensor) else batch["i"]


def seed() -> None:
    random.seed(1)
    numpy.random.seed(1)
    torch.manual_seed(1)


def cases() -> list[Any]:
    """Each with each; those are short that differ in one thing from what is usual.

    All the others take a quarter of an hour, so a sixth of them is tried, which has each kind and each option.
    """
    found = []
    for kind, how, options, asks in itertools.product(KINDS, AS, OPTIONS, (False, True)):
        if how != "batches" and "chunk_size" in options:
            continue
        if kind == "a buffer over random" and options["num_workers"]:
            continue  # it draws in mid-epoch from a global generator: docs/resume.md
        usual = kind in ("NumPy's generator", "a used up one") and how == "batches"
        is_short = usual if options in OPTIONS[1:2] else not options["num_workers"] and (usual or how == "samples")
        name = f"{kind}-{how}-{label(options)}-{'asked' if asks else 'first'}"
        if not is_short and zlib.crc32(name.encode()) % 6:
            continue
        marks = [] if is_short else [pytest.mark.long]
        found.append(pytest.param(kind, how, options, asks, id=name, marks=marks))
    return found


@pytest.mark.parametrize(("kind", "how", "options", "asks"), cases())
def test_the_rest_of_an_epoch(kind: str, how: str, options: dict[str, Any], asks: bool) -> None:
    """Saved as the first state of a run, or by a loop that saves all along; the first epoch, or a later one."""
    for epochs, after in (0, 2), (1, 0), (1, 1), (1, 3):
        if not after and isinstance(KINDS[kind](), OfItsOwn):
            continue  # before a draw, its generator must be in its state: docs/resume.md
        seed()
        with made(KINDS[kind](), how, **options) as first:
            for epoch in range(epochs):
                first.set_epoch(epoch)
                iterate(first)
            first.set_epoch(epochs)
            if asks:
                first.state_dict()
            batches = iter(first)
            numbers(itertools.islice(batches, after))
            state = through_json(first.state_dict())
            states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
            assert (state["epoch"], state["batches"]) == (epochs, after)
            rest = numbers(batches)
            first.set_epoch(epochs + 1)
            following = numbers(iterate(first))
        seed()
        with made(KINDS[kind](), how, **options) as again:
            random.setstate(states[0])
            numpy.random.set_state(states[1])
            torch.set_rng_state(states[2])
            again.load_state_dict(state)
            assert through_json(again.state_dict()) == state
            resumed = numbers(iterate(again))
            again.set_epoch(epochs + 1)
            assert resumed == rest, (epochs, after)
            if kind.startswith("a ") and not asks:  # its generator was loaded, too
                assert numbers(iterate(again)) == following, (epochs, after)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["NumPy's generator", "a used up one", "a pool"])
def test_saved_again_and_again(kind: str, workers: int) -> None:
    """Before the first batch of the resumed epoch, behind it, and after another resume."""
    seed()
    with made(KINDS[kind](), num_workers=workers) as first:
        batches = iter(first)
        next(batches)
        state = through_json(first.state_dict())
        second = flat(next(batches))
        rest = numbers(batches)
    seed()
    numpy.random.rand()
    with made(KINDS[kind](), num_workers=workers) as again:
        again.load_state_dict(state)
        batches = iter(again)
        before = through_json(again.state_dict())
        assert flat(next(batches)) == second
        after = through_json(again.state_dict())
        assert numbers(batches) == rest
    for saved, wanted in (before, [second, *rest]), (after, rest):
        with made(KINDS[kind](), num_workers=workers) as third:
            third.load_state_dict(saved)
            assert numbers(iterate(third)) == wanted


def test_global_generators_are_as_they_were_after_a_resume() -> None:
    for kind in "random", "NumPy's generator", "torch's generator":
        first, again = made(KINDS[kind]()), made(KINDS[kind]())
        next(iter(first))
        again.load_state_dict(through_json(first.state_dict()))
        seed()
        wanted = random.random(), numpy.random.rand(), torch.rand(()).item()
        seed()
        iter(again)
        assert (random.random(), numpy.random.rand(), torch.rand(()).item()) == wanted


@pytest.mark.parametrize("kind", ["random", "NumPy's generator", "torch's generator"])
def test_a_loop_that_seeds_again(kind: str) -> None:
    """The generators are then as they were at the start, although the sampler has drawn from them."""
    seed()
    first = made(KINDS[kind]())
    batches = iter(first)
    next(batches)
    seed()
    state, rest = through_json(first.state_dict()), numbers(batches)
    again = made(KINDS[kind]())
    random.seed(2), numpy.random.seed(2), torch.manual_seed(2)
    again.load_state_dict(state)
    assert numbers(again) == rest


def test_another_batch_size_after_the_first_state() -> None:
    seed()
    first = made(OfNumpy())
    batches = iter(first)
    next(batches)
    state = through_json(first.state_dict())
    rest = [*itertools.chain(*numbers(batches))]
    again = shmloader.DataLoader(Numbers(LENGTH), 2, sampler=OfNumpy())
    again.load_state_dict(state)
    assert [*itertools.chain(*numbers(again))] == rest


# --------------------------------------------------------------------------------------------------- how often it is


@pytest.mark.parametrize("options", EACH)
@pytest.mark.parametrize("how", ["samples", "batches"])
def test_it_is_asked_once_an_epoch_until_somebody_saves(how: str, options: dict[str, Any]) -> None:
    if how == "samples" and "chunk_size" in options:
        pytest.skip("chunks are of batches")
    sampler = Pool()
    batches_in_all = LENGTH if how == "samples" else 4
    with made(sampler, how, **options) as loader:
        for _ in range(2):
            assert len(numbers(iterate(loader))) == batches_in_all
        assert sampler.asked == 2
        batches = iter(loader)
        next(batches)
        assert sampler.asked == 3
        loader.state_dict()
        assert sampler.asked == 3
        numbers(batches)
        before = sampler.asked
        numbers(iterate(loader))
        assert sampler.asked - before >= batches_in_all


def test_a_loader_that_was_given_a_state_asks_at_each_draw() -> None:
    first = made(Pool())
    next(iter(first))
    again = made(sampler := Pool())
    again.load_state_dict(first.state_dict())
    numbers(again)
    assert sampler.asked >= 3


def test_other_loaders_do_not_ask() -> None:
    one, other = made(Pool()), made(sampler := Pool())
    one.state_dict()
    numbers(iterate(other))
    assert sampler.asked == 1


# ------------------------------------------------------------------------------------------------------- its errors


class Stub(Own):
    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


class StubAtOnce(Stub):
    def __iter__(self) -> Iterator[int]:
        return iter(self.permuted())


class StubOfTorchs(RandomSampler):
    def __init__(self) -> None:
        super().__init__(range(LENGTH))

    state_dict, load_state_dict = Stub.state_dict, Stub.load_state_dict


class NeedsArgument(Own):
    def state_dict(self, step: int) -> dict[str, Any]:  # type: ignore[override]
        return {}


class CannotBePickled(Own):
    def state_dict(self) -> dict[str, Any]:
        return {"of": (i for i in range(2))}


class Fails(Own):
    def state_dict(self) -> dict[str, Any]:
        raise LookupError("there is no state yet")


ERRORS = {
    NeedsArgument: (TypeError, "missing 1 required positional argument"),
    CannotBePickled: ((RuntimeError, TypeError), "generator"),
    Fails: (LookupError, "there is no state yet"),
}


@pytest.mark.parametrize("options", EACH)
@pytest.mark.parametrize("kind", [Stub, StubAtOnce, StubOfTorchs, *ERRORS])
def test_epochs_are_torchs(kind: Any, options: dict[str, Any]) -> None:
    """Also in a loop that asks for a state at each batch, and passes over its errors."""
    workers = {"num_workers": options["num_workers"], "persistent_workers": options.get("persistent_workers", False)}
    theirs = DataLoader(Numbers(LENGTH), sampler=kind(), batch_size=3, **workers)
    seed()
    wanted = [numbers(iterate(theirs)) for _ in range(3)]
    theirs._iterator = None
    for asks in False, True:
        seed()
        with made(kind(), **options) as loader:
            got = []
            for _ in range(3):
                got.append([])
                for batch in loader:
                    got[-1].append(flat(batch))
                    if asks and kind in ERRORS:
                        with pytest.raises(ERRORS[kind][0], match=ERRORS[kind][1]):
                            loader.state_dict()
                    elif asks:
                        loader.state_dict()
        assert got == wanted


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ERRORS)
def test_its_error_is_raised_by_state_dict(kind: Any, workers: int) -> None:
    with made(kind(), num_workers=workers) as loader:
        batches = iter(loader)
        for _ in range(2):
            next(batches)
            with pytest.raises(ERRORS[kind][0], match=ERRORS[kind][1]) as raised:
                loader.state_dict()
            frames = len(raised.traceback)
            with pytest.raises(ERRORS[kind][0]) as raised:
                loader.state_dict()
            assert len(raised.traceback) == frames  # it does not grow
        assert len(numbers(batches)) == 2


def test_its_workers_are_replaced_between_two_epochs() -> None:
    """The loader needs the sampler's state there, too, and does without it."""
    with made(Fails(), num_workers=2, persistent_workers=True) as loader:
        iterate(loader)
        place_of(loader).outlive_workers()
        loader._end_workers()
        assert len(numbers(iterate(loader))) == 4


class FailsWithin(Pool):
    """Has a state only before an epoch; or only within one."""

    within = True

    def state_dict(self) -> dict[str, Any]:
        if self.within == (0 < len(self.left) < LENGTH):
            raise LookupError("there is no state here")
        return super().state_dict()


class FailsBefore(FailsWithin):
    within = False


class StubWithin(Pool):
    """It has a state at the beginning, from which the loader draws again."""

    def state_dict(self) -> dict[str, Any]:
        if 0 < len(self.left) < LENGTH:
            raise NotImplementedError
        return super().state_dict()


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_belongs_to_its_place(workers: int) -> None:
    with made(FailsWithin(), num_workers=workers, **({"prefetch_factor": 1} if workers else {})) as loader:
        batches = iter(loader)
        next(batches)
        assert loader.state_dict()["batches"] == 1  # the first state needs only that of the beginning
        next(batches)
        next(batches)
        with pytest.raises(LookupError, match="no state here"):
            loader.state_dict()
        assert len(numbers(batches)) == 1
        assert loader.state_dict()["epoch"] == 1
    with made(FailsBefore(), num_workers=workers, **({"prefetch_factor": 1} if workers else {})) as loader:
        with pytest.raises(LookupError, match="no state here"):
            loader.state_dict()
        batches = iter(loader)
        with pytest.raises(LookupError, match="no state here"):
            loader.state_dict()
        next(batches)
        state, rest = through_json(loader.state_dict()), numbers(batches)
    again = made(FailsBefore())
    again.load_state_dict(state)
    assert numbers(again) == rest


@pytest.mark.parametrize("asks", [False, True])
def test_without_a_state_in_mid_epoch_it_draws_again(asks: bool) -> None:
    first = made(StubWithin())
    if asks:
        first.state_dict()
    batches = iter(first)
    numbers(itertools.islice(batches, 2))
    state, rest = through_json(first.state_dict()), numbers(batches)
    again = made(StubWithin())
    again.load_state_dict(state)
    batches = iter(again)
    assert flat(next(batches)) == rest[0]
    state = through_json(again.state_dict())  # which counts from the epoch's start, too
    assert numbers(batches) == rest[1:]
    third = made(StubWithin())
    third.load_state_dict(state)
    assert numbers(third) == rest[1:]


@pytest.mark.parametrize("options", EACH)
@pytest.mark.parametrize("kind", [Stub, StubAtOnce, StubOfTorchs])
@pytest.mark.parametrize("after", [0, 2])
def test_not_implemented_counts_as_no_state(kind: Any, options: dict[str, Any], after: int) -> None:
    seed()
    with made(kind(), **options) as first:
        batches = iter(first)
        numbers(itertools.islice(batches, after))
        state = through_json(first.state_dict())
        assert state["sampler_state"] is None and state["rank"] is None
        rest = numbers(batches)
    with made(kind(), **options) as again, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        place._warned.clear()
        again.load_state_dict(state)
        assert numbers(iterate(again)) == rest
    guessed = [str(each.message) for each in caught if "right only if it gives the same order" in str(each.message)]
    assert len(guessed) == (after > 0 and kind is not StubOfTorchs)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stub_that_draws_in_its_iter_is_drawn_again(workers: int) -> None:
    seed()
    with made(StubAtOnce(), "samples", num_workers=workers) as first:
        batches = iter(first)
        next(batches)
        state, rest = through_json(first.state_dict()), numbers(batches)
    with made(StubAtOnce(), "samples", num_workers=workers) as again:
        again.load_state_dict(state)
        assert numbers(again) == rest


class LaterWithState(Pool):
    """Its state_dict() was a stub when the state was saved."""

    is_stub = False

    def state_dict(self) -> dict[str, Any]:
        if self.is_stub:
            raise NotImplementedError
        return super().state_dict()


def test_a_sampler_that_has_a_state_since_the_state_was_saved() -> None:
    first, again = made(LaterWithState()), made(LaterWithState())
    first.sampler.is_stub = True
    batches = iter(first)
    next(batches)
    again.load_state_dict(through_json(first.state_dict()))
    assert numbers(again) == numbers(batches)


def test_between_epochs_a_stub_has_no_state() -> None:
    loader = made(Stub())
    for _ in range(2):
        state = through_json(loader.state_dict())
        assert state["sampler_state"] is None and state["rank"] is None
        again = made(Stub())
        again.load_state_dict(state)
        assert len(numbers(again)) == 4
        iterate(loader)


class Interrupted(Pool):
    """A signal comes while its state is made, as a timer's may."""

    at = 0

    def state_dict(self) -> dict[str, Any]:
        if len(self.left) == self.at:
            self.at = -1
            signal.raise_signal(signal.SIGUSR1)
        return super().state_dict()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_ctrl_c_in_state_dict_comes_through(workers: int) -> None:
    def handler(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        sampler = Interrupted()
        with made(sampler, num_workers=workers, prefetch_factor=1 if workers else None) as loader:
            for at in 0, LENGTH - 6:
                if at:
                    loader.state_dict()
                sampler.at, raised, got = at, 0, list[Any]()
                batches: Any = None
                while True:
                    try:
                        batches = iter(loader) if batches is None else batches
                        got.append(flat(next(batches)))
                    except KeyboardInterrupt:
                        raised += 1
                    except StopIteration:
                        break
                assert raised == 1
                assert sorted(itertools.chain(*got)) == list(range(LENGTH))
    finally:
        signal.signal(signal.SIGUSR1, before)


# -------------------------------------------------------------------------------------------------------- nn.Module


class ModuleSampler(torch.nn.Module):
    """nn.Module's own state_dict() does not say where it is."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(LENGTH, generator=torch.Generator().manual_seed(3)).tolist())

    def __len__(self) -> int:
        return LENGTH


class ModuleWithState(ModuleSampler):
    def __init__(self) -> None:
        super().__init__()
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        order = list(super().__iter__())
        while self.at < LENGTH:
            self.at += 1
            yield order[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # type: ignore[override]
        self.at = state["at"]


class AroundModule:
    """Passes everything on by `__getattr__`."""

    def __init__(self) -> None:
        self.inner = ModuleSampler()

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __iter__(self) -> Iterator[int]:
        return iter(self.inner)

    def __len__(self) -> int:
        return LENGTH


@pytest.mark.filterwarnings("ignore:.*same order")
@pytest.mark.parametrize("options", EACH)
@pytest.mark.parametrize("kind", [ModuleSampler, ModuleWithState, AroundModule])
def test_a_module_as_sampler(kind: Any, options: dict[str, Any]) -> None:
    wanted = numbers(DataLoader(Numbers(LENGTH), sampler=kind(), batch_size=3))
    for after in 0, 1, 3:
        with made(kind(), **options) as first:
            batches = iter(first)
            got = numbers(itertools.islice(batches, after))
            state = through_json(first.state_dict())
            assert (state["sampler_state"] is not None) == (kind is ModuleWithState)
        with made(kind(), **options) as again:
            again.load_state_dict(state)
            assert got + numbers(iterate(again)) == wanted
            assert numbers(iterate(again)) == wanted


@pytest.mark.filterwarnings("ignore:.*same order")
def test_a_state_of_a_module_that_an_older_version_saved() -> None:
    wanted = numbers(DataLoader(Numbers(LENGTH), sampler=ModuleSampler(), batch_size=3))
    first = made(ModuleSampler())
    next(iter(first))
    within = {**first.state_dict(), "sampler_state": ({},), "global_generator": None, "rank": 0}
    iterate(first)
    for state, rest in (within, wanted[1:]), ({**first.state_dict(), "sampler_state": ({},), "rank": 0}, wanted):
        again = made(ModuleSampler())
        again.load_state_dict(state)
        assert numbers(again) == rest
