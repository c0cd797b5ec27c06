"""What a program sees: batches, exceptions, states.  It runs in the child, beside the loader."""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import os
import pickle
import random
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch

from shmloader.batch.replace_tensors import tensors_of
from tests.attack.datasets import error_of_program
from tests.attack.hooks import ITERATORS, installed
from tests.attack.loaders import riding
from tests.attack.samplers import Remainder

MOST = 200  # batches of an epoch, after which it has no end


def plain(value: Any) -> Any:
    """The value as tuples, lists and numbers, which can be compared, pickled and printed."""
    if isinstance(value, torch.Tensor):
        return (type(value).__name__, str(value.dtype), tuple(value.shape), value.tolist())
    if isinstance(value, numpy.ndarray):
        return ("array", value.dtype.str, value.shape, value.tolist())
    if isinstance(value, Mapping):
        return (type(value).__name__, [(key, plain(item)) for key, item in value.items()])
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [plain(item) for item in value])
    if type(value).__name__ == "Batch":
        return ("Batch", plain(value.samples))
    return (type(value).__name__, repr(value))


def met_again(batch: Any) -> list[tuple[int, int]]:
    """Which lists, dicts, tensors and arrays of a batch are one object: where that is met first, and where again."""
    places: dict[int, int] = {}
    found: list[tuple[int, int]] = []
    left = [batch]
    while left:
        value = left.pop()
        if isinstance(value, (list, dict, torch.Tensor, numpy.ndarray)):
            place = len(places) + len(found)
            if (first := places.setdefault(id(value), place)) != place:
                found.append((first, place))
                continue
        if type(value).__name__ == "Batch":
            left.append(value.samples)
        elif isinstance(value, (list, tuple, Mapping)):
            left += value.values() if isinstance(value, Mapping) else value
    return found


def write(value: Any) -> None:
    """Write into tensors that have views beside them, which may show it."""
    if isinstance(value, dict) and "views" in value:
        for tensor in tensors_of(value["whole"]):
            tensor[-1:].fill_(1)  # in a part, so that it is seen where a view lies
    elif isinstance(value, (list, tuple)):
        for item in value:
            write(item)


def label_of(batch: Any) -> Any:
    """The label of a large batch; None: it has none."""
    if not (isinstance(batch, (list, tuple)) and len(batch) == 2 and all(isinstance(t, torch.Tensor) for t in batch)):
        return None
    image, label = batch
    return label if image.nbytes >= max(8000, 64 * label.nbytes) else None  # NOTE [ Small leaves ]


def memory_of(batch: Any) -> int:
    """The bytes of the memory in which the tensors of a batch lie, once where they share it."""
    storages = [tensor.untyped_storage() for tensor in tensors_of(batch)]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def seed_all(seed: int) -> None:
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def generators() -> tuple[Any, ...]:
    return torch.get_rng_state(), random.getstate(), numpy.random.get_state()


def set_generators(states: tuple[Any, ...]) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    numpy.random.set_state(states[2])


class Log:
    """Events, in order.  Each is a tuple that begins with its kind.

    Args:
        keep: How many of the latest batches to hold on to; each is looked at again at the end.
        note: What is called with each event at once, so that a hang or a crash does not take them with it.
    """

    def __init__(self, keep: int = 0, note: Callable[[Any], None] = lambda event: None) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.kept: collections.deque[tuple[Any, Any]] = collections.deque(maxlen=keep)
        self.labels: list[tuple[Any, Any]] = []  # of all batches, kept as a loop over a validation set keeps them
        self.note = note
        self.epoch, self.handed, self.under_way = -1, 0, False
        self._hooks, self._hook = contextlib.ExitStack(), ""
        self._resumes = False
        self._refused = False  # whether a state was refused, so that the loader is not where it was saved
        self.in_place = True  # what a sampler raises comes in place of a batch, as it does where there are workers

    def add(self, *event: Any) -> None:
        self.events.append(event)
        self.note(event)

    # ------------------------------------------------------------------------------------------------------ batches

    def begin(self, loader: Any) -> Any:
        """An iterator of the next epoch; after resume(), of the one that was under way."""
        before = self.epoch, self.handed, self.under_way
        self.in_place = loader.num_workers > 0
        goes_on = self.under_way and self._resumes
        if not goes_on:
            self.epoch, self.handed, self.under_way = self.epoch + 1, 0, True
            if isinstance(loader.sampler, Remainder):
                loader.sampler.forget()
        try:
            iterator = iter(loader)
        except Exception as error:
            self.epoch, self.handed, self.under_way = before  # the next iter() begins the same epoch
            self.raised(error, "iter()")
            return None
        if goes_on:
            self.add("goes on", loader.num_workers, self._errors())
        self._resumes = False
        self._loader = weakref.ref(loader)
        if (found := riding(loader, iterator)) is not None:
            self.add("rides", loader.num_workers, *found, self._hook in ITERATORS)
        return iterator

    def _errors(self) -> int:
        """How many samples of the epoch under way have raised."""
        events = itertools.takewhile(lambda event: event[0] != "end", reversed(self.events))
        return sum(event[:3] == ("raised", "next()", "ValueError") for event in events)

    def take(self, iterator: Any, count: int = MOST) -> None:
        """Call next() `count` times, or until the end.

        Each error that comes in place of a batch counts as that batch: what a sample raised, a batch that cannot be cut
        into chunks or is too large for the ring, and where there are workers, what the sampler raised.
        """
        if iterator is None:  # iter() raised
            return
        for _ in range(count):
            try:
                batch = next(iterator)
            except StopIteration:
                self.under_way = False
                self.add("end")
                stats = getattr(self._loader(), "stats", None)
                if stats is not None and self.labels:
                    self.add("copied", stats().copied_spare)
                return
            except Exception as error:
                self.handed += self.in_place or type(error).__name__ != "SamplerError"
                error_of_program().happened |= isinstance(error, ValueError)
                self.raised(error, "next()")
                continue
            self.handed += 1
            self.add("memory", memory_of(batch))
            seen, again = plain(batch), met_again(batch)
            write(batch)
            written = plain(batch)
            self.add("batch", seen, *([written] if written != seen else []), *([again] if again else []))
            self.kept.append((batch, plain(batch)))
            if (label := label_of(batch)) is not None:
                self.labels.append((label, plain(label)))
        if count == MOST:
            self.add("no end", count)

    def take_in_thread(self, iterator: Any, count: int) -> None:
        thread = threading.Thread(target=self.take, args=(iterator, count))
        thread.start()
        thread.join()

    def inner(self, loader: Any) -> None:
        """An epoch within an epoch."""
        before = self.epoch, self.handed, self.under_way
        self.take(self.begin(loader))
        self.epoch, self.handed, self.under_way = before[0] + 1, before[1], before[2]

    def close(self, iterator: Any) -> None:
        """Close an iterator, and look whether it gives a batch after that."""
        if iterator is None:  # iter() raised
            return
        iterator.close()
        try:
            next(iterator)
        except StopIteration:
            return
        except Exception as error:
            return self.raised(error, "next() of a closed iterator")
        self.add("batch of a closed iterator")

    def raised(self, error: BaseException, where: str) -> None:
        self.add("raised", where, type(error).__name__, str(error))

    def attempt(self, where: str, call: Callable[[], Any]) -> Any:
        """What a call returns; an exception is an event."""
        try:
            return call()
        except Exception as error:
            self.raised(error, where)
            return None

    # ------------------------------------------------------------------------------------------------------- states

    def save(self, loader: Any) -> Any:
        """What a checkpoint has: the loader's state and the generators'."""
        state = self.attempt("state_dict()", loader.state_dict)
        if state is None:
            return None
        expected = (self.epoch, self.handed) if self.under_way else (self.epoch + 1, 0)
        text = (state["epoch"], state["batches"])
        if text != expected and not self._refused:
            self.add("wrong state", text, expected)
        try:
            state = json.loads(json.dumps(state))
        except TypeError as error:
            self.raised(error, "json of state_dict()")
        mark = (len(self.events), self.epoch, self.handed, self.under_way, error_of_program().happened)
        return pickle.loads(pickle.dumps(state)), generators(), mark

    def resume(self, loader: Any, saved: Any) -> None:
        """Load a checkpoint into a fresh loader.  What came after it is forgotten, as after a crash."""
        if saved is None:
            return
        state, states, (events, self.epoch, self.handed, self.under_way, error_of_program().happened) = saved
        del self.events[events:]
        self.note(("resumed", events))
        set_generators(states)
        self._resumes = True
        seen = len(self.events)
        self.attempt("load_state_dict()", lambda: loader.load_state_dict(state))
        self._refused |= len(self.events) > seen

    def go_on_in_other_ranks(self, before: Any, loader: Any) -> None:
        """Have torch's loader of other ranks read first what is left of the epoch."""
        loader.sampler.epoch = before.sampler.epoch
        if "epoch" in vars(before.dataset):  # a look-up may raise
            loader.dataset.epoch = before.dataset.epoch
        if self.under_way:
            mine = min(self.handed * (before.batch_size or 1), len(before.sampler))
            loader.sampler.dealt = mine * before.sampler.num_replicas
            self._resumes = True

    # --------------------------------------------------------------------------------------------------- the program

    def fork(self) -> None:
        """Fork a child that drops all it has and ends."""
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)

    def set_epoch(self, number: int, *parts: Any) -> None:
        """Call set_epoch() of those that have it."""
        for part in parts:
            try:
                method = part.set_epoch
            except (AttributeError, KeyError):  # it has none, or its look-up raises
                continue
            method(number)

    def hook(self, name: str) -> None:
        """Replace something of torch's until unhook()."""
        self._hooks.enter_context(installed(name))
        self._hook = name

    def unhook(self) -> None:
        """Put back what was replaced."""
        self._hooks.close()
        self._hook = ""

    def finish(self, generator: torch.Generator | None = None) -> None:
        """Look at what was kept, and at the generators."""
        for batch, seen in [*self.kept, *self.labels]:
            if plain(batch) != seen:
                self.add("changed", seen, plain(batch))
        self.kept.clear()
        self.labels.clear()
        ends = [torch.rand(()).item(), random.random(), float(numpy.random.rand())]
        if generator is not None:
            ends.append(torch.rand((), generator=generator).item())
        self.add("generators", *ends)


def _print_in_workers() -> None:
    """Have each process that is forked from now on print its warnings, which a list of this process would not get."""

    def show(message: Any, category: Any, filename: str, line: int, file: Any = None, text: str | None = None) -> None:
        sys.stderr.write(warnings.formatwarning(message, category, filename, line, text))

    os.register_at_fork(after_in_child=lambda: setattr(warnings, "showwarning", show))


def caught(log: Log, run: Callable[[], None]) -> None:
    """Run, and note each warning."""
    _print_in_workers()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            run()
        except Exception as error:
            log.raised(error, "the program")
        finally:
            log.unhook()
    for warning in found:
        log.add("warned", warning.category.__name__, str(warning.message))
