"""Continues the order of an epoch's samples from a place in it, without loading a sample.
It decides how each sampler does that, also with another number of ranks or another batch size; refusals.py decides with
which samplers a state can be loaded.

torch's own samplers give the same order again from the same seed or generator, and the delivered part is skipped:
sample by sample where that is possible, so that the batch size may change.  shmloader's DistributedSampler divides the
rest of all ranks' order.  A sampler with its own `state_dict` and `load_state_dict` resumes by these.  Any other
sampler starts again, and what was delivered is skipped.  That is right only if it gives the same order again.
"""

from __future__ import annotations

import collections
import copy
import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.data
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from shmloader.resume.distributed import DistributedSampler
from shmloader.resume.generators import as_global, draw_a_seed, pack, seed_drawn_from, unpack
from shmloader.resume.order import Order
from shmloader.resume.state import State

_SHARED = torch.utils.data.DistributedSampler
_STRAIGHT = (SubsetRandomSampler, WeightedRandomSampler)  # they draw the samples themselves from their generator
_DRAWS = (RandomSampler, *_STRAIGHT)
_SOURCES = {RandomSampler: "data_source", SubsetRandomSampler: "indices", WeightedRandomSampler: "weights"}
_ORDERED = ("list", "tuple", "range", "_InfiniteConstantSampler")  # the last is the sampler of streams
_DEEPEST = 8  # samplers inside each other; a mock contains itself
KNOWN = (SequentialSampler, *_DRAWS, DistributedSampler, _SHARED)


def sampler_of(loader: Any) -> Any:
    """What the loader draws from: batches, or samples if there is no automatic batching."""
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def chain(sampler: Any) -> list[Any]:
    """A batch sampler, and the sampler that it batches."""
    parts = [sampler]
    while is_a(parts[-1], BatchSampler):
        parts.append(parts[-1].sampler)
    return parts


def within(sampler: Any) -> list[Any]:
    """A sampler and all samplers inside it, also inside classes that are not torch's, such as accelerate's shards."""
    parts = [sampler]
    while len(parts) < _DEEPEST:
        inside = (getattr(parts[-1], name, None) for name in ("batch_sampler", "sampler"))
        found = next((part for part in inside if part is not None), None)
        if found is None:
            break
        parts.append(found)
    return parts


def is_a(sampler: Any, *kinds: type) -> bool:
    """Whether a sampler gives its samples as one of these classes does, also if it is of a subclass."""
    return isinstance(sampler, kinds) and any(type(sampler).__iter__ is kind.__iter__ for kind in kinds)  # type: ignore[attr-defined]


def is_known(sampler: Any) -> bool:
    """Whether it is torch's or ours: its draws change none of its attributes and ask a dataset only for its length."""
    return is_a(sampler, *KNOWN, BatchSampler)


def inner(sampler: Any) -> Any:
    """The sampler that orders the samples."""
    return chain(sampler)[-1]


def name_of(sampler: Any) -> str:
    """The name of the sampler that orders the samples."""
    last = inner(sampler)
    for kind in KNOWN:
        if is_a(last, kind):
            return kind.__name__
    return type(last).__name__


def order_of(sampler: Any) -> Order:
    """What a state records of its order.  A loader with another order cannot resume from that state in mid-epoch."""
    name = name_of(sampler)
    if keeps_state(sampler) is not None:  # it resumes by its own state, whatever its order is
        return Order(name, is_name_only=True)
    inside = tuple(
        f"BatchSampler({part.batch_size}{', drop_last' * bool(part.drop_last)})" for part in chain(sampler)[1:-1]
    )
    last = inner(sampler)
    drawing = next((part for part in within(last) if is_a(part, *_DRAWS, DistributedSampler, _SHARED)), None)
    if drawing is None:
        return Order(name, inside)
    kind = name if drawing is last else f"{name} of {name_of(drawing)}"
    settings = _settings_of(drawing) if drawing is last else ()
    if not getattr(drawing, "shuffle", True):
        return Order(f"{kind} without shuffle", inside, settings=settings)
    if getattr(drawing, "replacement", False):
        kind += " with replacement"
    return Order(kind, inside, _drawn_from(drawing), settings=settings)


def _settings_of(sampler: Any) -> tuple[str, ...]:
    """The arguments of a DistributedSampler, beside `shuffle`, that decide its order: of any other sampler none."""
    if not is_a(sampler, DistributedSampler, _SHARED):
        return ()
    seed, drop_last = sampler.seed, f"drop_last={bool(sampler.drop_last)}"
    if not sampler.shuffle:
        return (drop_last,)
    return (f"seed={int(seed)}", drop_last) if isinstance(seed, int) else ()


def _drawn_from(sampler: Any) -> int | None:
    """From how many samples one of torch's samplers draws its order; None if it cannot be asked."""
    try:
        for kind, name in _SOURCES.items():
            if is_a(sampler, kind):
                return len(getattr(sampler, name))
        return len(sampler.dataset)
    except Exception as error:
        from shmloader.core.handlers import is_handlers  # here, because off Linux there is no core

        if is_handlers(error):
            raise
        return None


def ranks_of(loader: Any) -> tuple[int, int]:
    """This rank, and how many ranks share the samples of a loader, according to its sampler.

    torch's sampler has one pair of attributes for this, and accelerate's shards have another.
    """
    for part in within(loader.batch_sampler if loader.batch_sampler is not None else loader.sampler):
        if isinstance(part, _SHARED):
            return part.rank, part.num_replicas
        rank, ranks = getattr(part, "process_index", None), getattr(part, "num_processes", None)
        if type(rank) is int and type(ranks) is int:
            return rank, ranks
    return 0, 1


def keeps_state(sampler: Any) -> Any:
    """The sampler of this chain that has its own state_dict(); None: none has."""
    for part in chain(sampler):
        if callable(getattr(part, "state_dict", None)) and callable(getattr(part, "load_state_dict", None)):
            return part
    return None


def state_of_sampler(sampler: Any) -> Any:
    """A copy of a sampler's own state_dict(); None if it has none."""
    keeper = keeps_state(sampler)
    return None if keeper is None else copy.deepcopy(keeper.state_dict())


def is_last(sampler: Any, batch: Any) -> bool:
    """Whether a batch of a BatchSampler is not full, which means that the sampler inside has ended."""
    while is_a(sampler, BatchSampler):
        if len(batch) < sampler.batch_size:
            return True
        sampler, batch = sampler.sampler, batch[-1]
    return False


def draws_a_seed(sampler: Any) -> bool:
    """Whether it draws a seed for each epoch from the global generator."""
    last = inner(sampler)
    return is_a(last, RandomSampler) and last.generator is None


def draws_from_global(sampler: Any) -> bool:
    """Whether its samples are drawn, or may be drawn, from the global generator."""
    last = inner(sampler)
    if is_a(last, *KNOWN):
        return is_a(last, *_STRAIGHT) and last.generator is None
    return type(last).__name__ not in _ORDERED and keeps_state(sampler) is None


def seeds(sampler: Any, start: State | None, of_global: torch.Tensor) -> dict[str, Any]:
    """The fields of State for the sampler's draws from the global generator in an epoch.

    Args:
        sampler: The sampler.
        start: The state from which the epoch began, if one was loaded.
        of_global: The state of the global generator before the sampler draws.
    """
    if start is not None:
        return {"sampler_seed": start.sampler_seed, "global_generator": start.global_generator}
    return {
        "sampler_seed": seed_drawn_from(of_global) if draws_a_seed(sampler) else None,
        "global_generator": pack(of_global) if draws_from_global(sampler) else None,
    }


def leaves_global(sampler: Any) -> bool:
    """Whether draw_as_if() knows how this sampler advances the global generator at its iter()."""
    last = inner(sampler)
    return draws_a_seed(sampler) or (is_a(last, *_STRAIGHT) and last.generator is None)


def draw_as_if(sampler: Any) -> None:
    """Advance the global generator as this sampler does at its iter().  What it drew is in the state."""
    last = inner(sampler)
    if draws_a_seed(sampler):
        draw_a_seed()
    elif is_a(last, *_STRAIGHT) and last.generator is None:
        next(iter(last), None)  # draws all at once


def draws_for_itself(sampler: Any) -> bool:
    """Whether one of torch's samplers draws its order, from its own generator or the global one."""
    return any(is_a(part, *_DRAWS) for part in within(sampler))


def is_guessed(sampler: Any) -> bool:
    """Whether its order is not known to be repeatable."""
    return draws_from_global(sampler) and not is_a(inner(sampler), *KNOWN)


def generator_of(sampler: Any) -> torch.Generator | None:
    """A sampler's own generator, or that of a sampler inside it; None if there is none."""
    found = (getattr(part, "generator", None) for part in reversed(within(sampler)))
    return next((each for each in found if isinstance(each, torch.Generator)), None)


def batch_size_of(sampler: Any) -> int:
    """The samples of each batch (of a batch sampler of batches: the lists), 1 if there are no batches; 0: not known."""
    parts = chain(sampler)
    if len(parts) == 1:
        return int(is_a(sampler, *KNOWN))
    return int(parts[0].batch_size)


def rest(sampler: Any, state: State, loader_generator: torch.Generator | None = None) -> Iterator[Any]:
    """The rest of a loader's sampler, or batch sampler, after a place in an epoch.

    The loader's and the sampler's own generators must be in their state at the epoch's beginning.  The global one is
    touched only by a first draw that the run that saved the state had not made yet.
    """
    parts = chain(sampler)
    last = parts[-1]
    left: Iterator[Any]
    if (keeper := keeps_state(sampler)) is not None:
        if state.sampler_state is not None:  # otherwise it has its state already: NOTE [ Drawn from ]
            keeper.load_state_dict(copy.deepcopy(state.sampler_state))  # lhotse empties what it gets
        left = iter(()) if state.used_up else _in_batches(parts[: parts.index(keeper)], iter(keeper))
    elif len(parts) > 2 and is_a(last, DistributedSampler):
        left = _divided(parts, state)
    elif not is_a(last, *KNOWN) or len(parts) > 2:
        left = _drawn_again(sampler, state, loader_generator)
    elif len(parts) == 2:
        left = _batched(sampler, _left_of(last, state))
    else:
        left = _left_of(last, state)
    if not state.beyond:
        return left
    beyond = frozenset(each[0] for each in state.beyond)
    return (index for number, index in enumerate(_by_next(left), state.batches) if number not in beyond)


def _divided(parts: list[Any], state: State) -> Iterator[Any]:
    """The rest of the order of our DistributedSampler, which batch samplers inside each other batch.

    The outermost one gets lists, and the state counts these.  Only the last lists of an epoch are not full.
    """
    size = math.prod(part.batch_size for part in parts[1:-1])
    return _in_batches(parts[:-1], parts[-1].after(state.samples * size))


def _drawn_again(sampler: Any, state: State, loader_generator: torch.Generator | None) -> Iterator[Any]:
    """The rest of an unknown sampler, or of a batch sampler of a batch sampler, which draws from its beginning again.

    A batch sampler of torch's takes the rest sample by sample (from another batch sampler, list by list), so its batch
    size may change.

    It draws from the global generator of the epoch's beginning, and then that one gets its present state back.  If the
    state was saved before the first batch, the run that saved it may not have made the first draw yet.  Then, if the
    user has restored the global generator, it arrives at its present state before that draw, and moves on with it.
    """
    parts, is_expected = chain(sampler), not state.batches
    with as_global(state.global_generator) as of_global:
        if len(parts) > 1:  # the batch sampler makes the sampler's iterator in the first draw
            of_global.stay_if_here(is_expected)
            left = _batched(sampler, _skipped(_restarted(parts[1], state), state.samples // state.ranks))
        else:
            left = _restarted(sampler, state)
            _draw_base_seed_if_it_follows(state, loader_generator)
            of_global.stay_if_here(is_expected)
            left = _skipped(left, state.batches)
        if state.batches:
            return left
        # inside as_global(), because the first draw may draw all of them
        return Left(list(map(next, (left,))), left)


def _draw_base_seed_if_it_follows(state: State, loader_generator: torch.Generator | None) -> None:
    """Draw the base seed, if a sampler that has drawn again in its iter() had drawn there before it.

    A resumed epoch takes that seed from the state, and does not draw it.  It is the next draw only if the state is of
    an iterator of torch's without workers, which made the sampler's iterator first: Generators.were_drawn_from().
    """
    now = torch.get_rng_state() if loader_generator is None else loader_generator.get_state()
    if seed_drawn_from(now) == state.base_seed:
        draw_a_seed(loader_generator)


class Left:
    """The rest of an iterator of which some were drawn already.

    Attributes:
        source: the iterator.
    """

    def __init__(self, drawn: list[Any], source: Iterator[Any]) -> None:
        self.source = source
        self._all = itertools.chain(drawn, _by_next(source))

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._all)


def _in_batches(batch_samplers: list[Any], indices: Iterator[Any]) -> Iterator[Any]:
    """What batch samplers inside each other, of which the last one batches these samples, make of them."""
    for part in reversed(batch_samplers):
        indices = _batched(part, indices)
    return indices


def _batched(sampler: Any, indices: Iterator[Any]) -> Iterator[Any]:
    """Batches of these samples, as this batch sampler makes them."""
    batches = copy.copy(sampler)
    batches.sampler = _Once(indices)
    return iter(batches)


class _Once:
    """An iterator in a sampler's place."""

    def __init__(self, indices: Iterator[Any]) -> None:
        self._indices = indices

    def __iter__(self) -> Iterator[Any]:
        return _by_next(self._indices)  # because torch's BatchSampler calls iter() of what it gets, for each batch


def _left_of(last: Any, state: State) -> Iterator[Any]:
    """The samples of one of torch's samplers, or ours, that this rank has not received."""
    if is_a(last, DistributedSampler):
        left: Iterator[Any] = last.after(state.samples)
        return left
    return _skipped(iter(_seeded(last, state)), state.samples // state.ranks)


def _seeded(last: Any, state: State) -> Any:
    """A copy of this sampler that draws what it drew in the epoch of this state, without the global generator."""
    if not is_a(last, *_DRAWS) or last.generator is not None:
        return last
    alike = copy.copy(last)
    alike.generator = torch.Generator()
    if state.sampler_seed is not None:
        alike.generator.manual_seed(state.sampler_seed)
    elif state.global_generator is not None:
        alike.generator.set_state(unpack(state.global_generator))
    else:
        return last  # it has not drawn yet
    return alike


def _restarted(sampler: Any, state: State) -> Iterator[Any]:
    """All that an unknown sampler, or a batch sampler inside another, gives from its beginning."""
    started = _seeded(inner(sampler), state)
    for part in reversed(chain(sampler)[:-1]):
        outer = copy.copy(part)
        outer.sampler = started
        started = outer
    return iter(started)


def _skipped(indices: Iterator[Any], count: int) -> Iterator[Any]:
    collections.deque(itertools.islice(_by_next(indices), count), maxlen=0)
    return indices


def _by_next(indices: Iterator[Any]) -> Iterator[Any]:
    """The same, without a call of iter(), which starts some samplers again that are their own iterators."""
    return map(next, itertools.repeat(indices))
