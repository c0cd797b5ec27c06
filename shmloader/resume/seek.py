"""Continues the order of an epoch's samples from a place in it, without loading a sample.

torch's own samplers give the same order again from the same seed or generator, and the delivered part is skipped:
sample by sample where that is possible, so that the batch size may change.  shmloader's DistributedSampler divides the
rest of all ranks' order.  A sampler with its own `state_dict` and `load_state_dict` resumes by these.  Any other
sampler starts again, and what was delivered is skipped.  That is right only if it gives the same order again.
"""

from __future__ import annotations

import collections
import copy
import itertools
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
from shmloader.resume.state import State

_SHARED = torch.utils.data.DistributedSampler
_STRAIGHT = (SubsetRandomSampler, WeightedRandomSampler)  # they draw the samples themselves from their generator
_DRAWS = (RandomSampler, *_STRAIGHT)
_ORDERED = ("list", "tuple", "range", "_InfiniteConstantSampler")  # the last is the sampler of streams
_DEEPEST = 8  # samplers inside each other; a mock contains itself
_KNOWN = (SequentialSampler, *_DRAWS, DistributedSampler, _SHARED)


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
    return is_a(sampler, *_KNOWN, BatchSampler)


def inner(sampler: Any) -> Any:
    """The sampler that orders the samples."""
    return chain(sampler)[-1]


def name_of(sampler: Any) -> str:
    """The name of the ordering sampler in a state.  A loader with another name cannot resume from that state."""
    last = inner(sampler)
    for kind in _KNOWN:
        if is_a(last, kind):
            return kind.__name__
    return type(last).__name__


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
    if is_a(last, *_KNOWN):
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
    return draws_from_global(sampler) and not is_a(inner(sampler), *_KNOWN)


def generator_of(sampler: Any) -> torch.Generator | None:
    """A sampler's own generator, or that of a sampler inside it; None if there is none."""
    found = (getattr(part, "generator", None) for part in reversed(within(sampler)))
    return next((each for each in found if isinstance(each, torch.Generator)), None)


def why_not(sampler: Any, state: State, ranks: int) -> str | None:
    """Why this sampler cannot resume from a state; None if it can."""
    name = name_of(sampler)
    if state.begun and state.sampler != name:
        return (
            f"its samples were ordered by {state.sampler}, and this loader's are by {name}. Use the sampler of the run "
            "that saved it."
        )
    old, new = _early_batch_size(state), _batch_size(sampler)
    if state.begun and old is not None and new not in (None, old):
        return (
            f"batches of {old} samples came early (in_order=False), and now a batch has {new}. Use batch_size={old} "
            "until the epoch is over."
        )
    if not state.begun or state.ranks == ranks:
        return None
    elastic = is_a(inner(sampler), DistributedSampler)
    if elastic and not state.beyond:
        return None
    if elastic:
        remedy = "With in_order=False, use as many ranks until the epoch is over."
    elif any(isinstance(part, DistributedSampler) for part in within(sampler)):
        remedy = (
            f"The rest of an epoch can be divided among any number of ranks if a BatchSampler wraps the "
            f"shmloader.DistributedSampler, and not a {type(sampler).__name__}."
        )
    else:
        remedy = "Use shmloader.DistributedSampler, which divides the rest of an epoch among any number of ranks."
    return f"its epoch is shared by {state.ranks} ranks, and now there are {ranks}. {remedy}"


def _early_batch_size(state: State) -> int | None:
    """The samples of a full batch, if batches came early; None: none did."""
    if not state.beyond:
        return None
    most = max(samples for _, samples in state.beyond)
    return max(most, state.samples // state.ranks // state.batches) if state.batches else most


def _batch_size(sampler: Any) -> int | None:
    """The samples of each batch; None if it is not known."""
    parts = chain(sampler)
    return parts[0].batch_size if len(parts) == 2 else None


def rest(sampler: Any, state: State) -> Iterator[Any]:
    """The rest of a loader's sampler, or batch sampler, after a place in an epoch.

    The loader's and the sampler's own generators must be in their state at the epoch's beginning.  The global one is
    not touched.
    """
    parts = chain(sampler)
    last = parts[-1]
    left: Iterator[Any]
    if (keeper := keeps_state(sampler)) is not None:
        if state.sampler_state is not None:  # otherwise it has its state already: NOTE [ Drawn from ]
            keeper.load_state_dict(state.sampler_state)
        left = iter(()) if state.used_up else iter(sampler)
    elif not is_a(last, *_KNOWN) or len(parts) > 2:
        with as_global(state.global_generator):
            if len(parts) == 2:
                left = _batched(sampler, _skipped(iter(_seeded(last, state)), state.samples // state.ranks))
            else:
                left = _skipped(_restarted(sampler, state), state.batches)
            if not state.batches:  # inside as_global(), because the first draw may draw all of them
                left = Left(list(itertools.islice(left, 1)), left)
    elif len(parts) == 2:
        left = _batched(sampler, _left_of(last, state))
    else:
        left = _left_of(last, state)
    if not state.beyond:
        return left
    beyond = frozenset(number for number, _ in state.beyond)
    return (index for number, index in enumerate(left, state.batches) if number not in beyond)


class Left:
    """The rest of an iterator of which some were drawn already.

    Attributes:
        source: the iterator.
    """

    def __init__(self, drawn: list[Any], source: Iterator[Any]) -> None:
        self.source = source
        self._all = itertools.chain(drawn, source)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._all)


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
        return self._indices


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
    """All that an unknown sampler, or a batch sampler of a batch sampler, gives from its beginning."""
    started = _seeded(inner(sampler), state)
    for part in reversed(chain(sampler)[:-1]):
        outer = copy.copy(part)
        outer.sampler = started
        started = outer
    return iter(started)


def _skipped(indices: Iterator[Any], count: int) -> Iterator[Any]:
    collections.deque(itertools.islice(indices, count), maxlen=0)
    return indices
