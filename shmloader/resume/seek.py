"""What a loader's sampler is: torch's, ours or another; which samplers are inside it; from which generators it draws;
whether it has a state of its own.

rest.py continues the order of an epoch from that; refusals.py decides with which samplers a state can be loaded.
"""

from __future__ import annotations

import copy
import os
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

from shmloader.attributes import attribute, length_of, says_where_it_is
from shmloader.resume import iterables
from shmloader.resume.distributed import DistributedSampler
from shmloader.resume.generators import draw_a_seed, pack, seed_drawn_from
from shmloader.resume.order import Order
from shmloader.resume.state import State

_SHARED = torch.utils.data.DistributedSampler
_STRAIGHT = (SubsetRandomSampler, WeightedRandomSampler)  # they draw the samples themselves from their generator
DRAWS = (RandomSampler, *_STRAIGHT)
_SOURCES = {RandomSampler: "data_source", SubsetRandomSampler: "indices", WeightedRandomSampler: "weights"}
_ORDERED = ("list", "tuple", "range", "_InfiniteConstantSampler")  # the last is the sampler of streams
_DEEPEST = 8  # samplers inside each other; a mock contains itself
NO_STATE = {"sampler_state": None, "rank": None}  # fields of State, if a sampler's state_dict() is a stub
KNOWN = (SequentialSampler, *DRAWS, DistributedSampler, _SHARED)


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
        inside = (attribute(parts[-1], name) for name in ("batch_sampler", "sampler"))
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
    drawing = next((part for part in within(last) if is_a(part, *DRAWS, DistributedSampler, _SHARED)), None)
    if drawing is None:
        return Order(name, inside)
    kind = name if drawing is last else f"{name} of {name_of(drawing)}"
    settings = _settings_of(drawing) if drawing is last else ()
    if not attribute(drawing, "shuffle", True):
        return Order(f"{kind} without shuffle", inside, settings=settings)
    if attribute(drawing, "replacement", False):
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
    except Exception:
        return None


def ranks_of(loader: Any) -> tuple[int, int]:
    """This rank, and how many ranks share the samples of a loader, according to its sampler.

    torch's sampler has one pair of attributes for this, and accelerate's shards have another.
    """
    for part in within(loader.batch_sampler if loader.batch_sampler is not None else loader.sampler):
        if isinstance(part, _SHARED):
            return part.rank, part.num_replicas
        rank, ranks = attribute(part, "process_index"), attribute(part, "num_processes")
        if type(rank) is int and type(ranks) is int:
            return rank, ranks
    return 0, 1


def this_rank() -> int:
    """Which of the job's processes this is."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK") or 0)  # torchrun's


def rank_of_state(loader: Any) -> int | None:
    """This rank, if the loader's state is valid for it only."""
    own = keeps_state(sampler_of(loader)) is not None or iterables.workers_of(loader) is not None
    return this_rank() if own else None


def keeps_state(sampler: Any) -> Any:
    """The sampler of this chain that has its own state_dict(); None: none has."""
    return next(filter(says_where_it_is, chain(sampler)), None)


def own_state(sampler: Any, must: bool = True) -> dict[str, Any]:
    """The fields of State that a sampler's own state decides, with a copy of that: NOTE [ Notes ], 3.

    Args:
        sampler: The sampler.
        must: Whether to raise what its state_dict() raises.  If not, it has no state then.
    """
    keeper = keeps_state(sampler)
    if keeper is None:
        return {"sampler_state": None}
    try:
        return {"sampler_state": copy.deepcopy(keeper.state_dict())}
    except Exception as error:
        if must and not isinstance(error, NotImplementedError):
            raise
        return NO_STATE


def has_no_state(keeper: Any) -> bool:
    """Whether the state_dict() of a sampler that has that method raises NotImplementedError."""
    try:
        keeper.state_dict()
    except Exception as error:
        return isinstance(error, NotImplementedError)
    return False


def is_last(sampler: Any, batch: Any) -> bool:
    """Whether a batch of a BatchSampler is not full, which means that the sampler inside has ended."""
    while is_a(sampler, BatchSampler):
        if len(batch) < sampler.batch_size:
            return True
        sampler, batch = sampler.sampler, batch[-1]
    return False


def left_in(sampler: Any, start: State | None) -> int | None:
    """How many indices a sampler gives from this place on, if its length is right; None: it has no length.

    A BatchSampler of torch's takes the rest sample by sample, and its batch size may have changed.
    """
    length = length_of(sampler)
    if length is None or start is None or not start.batches:
        return length
    if not is_a(sampler, BatchSampler):
        return length - start.batches
    samples = length_of(sampler.sampler)
    if samples is None:
        return None
    samples -= start.samples // start.ranks
    return int(samples // sampler.batch_size if sampler.drop_last else -(-samples // sampler.batch_size))


def draws_a_seed(sampler: Any) -> bool:
    """Whether it draws a seed for each epoch from the global generator."""
    last = inner(sampler)
    return is_a(last, RandomSampler) and last.generator is None


def draws_from_global(sampler: Any) -> bool:
    """Whether its samples are drawn, or may be drawn, from the global generator."""
    last = inner(sampler)
    if is_a(last, *KNOWN):
        return is_a(last, *_STRAIGHT) and last.generator is None
    return type(last).__name__ not in _ORDERED


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


def draw_as_if(sampler: Any) -> None:
    """Advance the global generator as this sampler does at its iter().  What it drew is in the state."""
    last = inner(sampler)
    if draws_a_seed(sampler):
        draw_a_seed()
    elif is_a(last, *_STRAIGHT) and last.generator is None:
        next(iter(last), None)  # draws all at once


def draws_for_itself(sampler: Any) -> bool:
    """Whether one of torch's samplers draws its order, from its own generator or the global one."""
    return any(is_a(part, *DRAWS) for part in within(sampler))


def is_guessed(sampler: Any, state: State) -> bool:
    """Whether its order is drawn again after this state, and is not known to be repeatable."""
    if keeps_state(sampler) is not None and state.sampler_state is not None:
        return False
    return draws_from_global(sampler) and not is_a(inner(sampler), *KNOWN)


def generators_of(sampler: Any) -> list[torch.Generator]:
    """The generators named `generator` of a sampler and of those inside it, the innermost first."""
    found = (attribute(part, "generator") for part in reversed(within(sampler)))
    return [each for each in found if isinstance(each, torch.Generator)]
