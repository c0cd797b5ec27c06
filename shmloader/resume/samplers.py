"""What a loader's sampler is: torch's, ours or another; which samplers are inside it; from which generators it draws;
whether it has a state of its own.  Sets the epoch and the own state of samplers, and warns of one that has missed it.

NOTE [ Used up ]

A sampler with a state_dict() may keep in it that it has given all of an epoch.  torchdata's samplers do, and lhotse's.
After such a state is loaded, the sampler's first iterator gives nothing, and the next one gives a whole epoch.  If the
state was saved between two epochs, or before the first batch of one, the user needs that second iterator: the first
epoch after the load is a whole one.  If it was saved after the last batch, the epoch under way is over
(State.used_up), and its rest is empty without a question to the sampler.  So the question comes in the epoch after it.

Other samplers start over at their end.  Their state is that of the next epoch, and their first iterator gives it.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.data
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from shmloader.protocols.user_objects import attribute, length_of, load_state, says_where_it_is
from shmloader.resume.distributed import DistributedSampler
from shmloader.resume.generators import draw_a_seed, pack, seed_drawn_from
from shmloader.resume.state import State
from shmloader.resume.stream_states import workers_of
from shmloader.system.user_line import caller, warn_once

SHARED = torch.utils.data.DistributedSampler
_STRAIGHT = (SubsetRandomSampler, WeightedRandomSampler)  # they draw the samples themselves from their generator
DRAWS = (RandomSampler, *_STRAIGHT)
_ORDERED = ("list", "tuple", "range", "_InfiniteConstantSampler")  # the last is the sampler of streams
_DEEPEST = 8  # samplers inside each other; a mock contains itself
NO_STATE = {"sampler_state": None, "used_up": False, "rank": None}  # fields of State, if state_dict() is a stub
KNOWN = (SequentialSampler, *DRAWS, DistributedSampler, SHARED)


def sampler_of(loader: Any) -> Any:
    """What the loader draws from: batches, or samples if there is no automatic batching."""
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def within(sampler: Any) -> Iterator[Any]:
    """A sampler and all samplers inside it, also inside classes that are not torch's, such as accelerate's shards."""
    for _ in range(_DEEPEST):
        yield sampler
        inside = (attribute(sampler, name) for name in ("batch_sampler", "sampler"))
        sampler = next((part for part in inside if part is not None), None)
        if sampler is None:
            return


def iterates_as(sampler: Any, *kinds: type) -> bool:
    """Whether a sampler gives its samples as one of these classes does, also if it is of a subclass."""
    own = type(sampler)
    return own in kinds or (isinstance(sampler, kinds) and own.__iter__ in [kind.__iter__ for kind in kinds])  # type: ignore[attr-defined]


def is_known(sampler: Any) -> bool:
    """Whether it is torch's or ours: its draws change none of its attributes and ask a dataset only for its length."""
    return iterates_as(sampler, *KNOWN, BatchSampler)


class Samplers:
    """What a loader draws from, as it is now: its sampler, or batch sampler, and the samplers inside it.

    Args:
        outer: The loader's sampler, or batch sampler.

    Attributes:
        chain: A batch sampler, and the sampler that it batches.
        last: The sampler that orders the samples.
        all: All samplers, also inside classes that are not torch's, such as accelerate's shards.
        keeper: The sampler of the chain that has its own state_dict(); None: none has.
    """

    def __init__(self, outer: Any) -> None:
        self.chain = [outer]
        while iterates_as(self.chain[-1], BatchSampler):
            self.chain.append(self.chain[-1].sampler)
        self.outer, self.last = outer, self.chain[-1]
        self.all = list(within(outer))
        self.keeper: Any = next(filter(says_where_it_is, self.chain), None)

    @property
    def name(self) -> str:
        """The name of the sampler that orders the samples."""
        return name_of(self.last)

    @property
    def epoch(self) -> int | None:
        """The epoch that set_epoch() gave one of them; None if none of them has one."""
        for part in self.all:
            if has_set_epoch(part):
                number = attribute(part, "epoch")
                if type(number) is int:
                    return number
        return None

    @property
    def ranks(self) -> tuple[int, int]:
        """This rank, and how many ranks share the samples.

        torch's sampler has one pair of attributes for this, and accelerate's shards have another.
        """
        for part in self.all:
            if isinstance(part, SHARED):
                return part.rank, part.num_replicas
            rank = attribute(part, "process_index")
            if type(rank) is int and type(ranks := attribute(part, "num_processes")) is int:
                return rank, ranks
        return 0, 1

    @property
    def generators(self) -> list[torch.Generator]:
        """The generators named `generator` of all of them, the innermost first."""
        found = (attribute(part, "generator") for part in reversed(self.all))
        return [each for each in found if isinstance(each, torch.Generator)]

    @property
    def draws_a_seed(self) -> bool:
        """Whether a seed is drawn for each epoch from the global generator."""
        return iterates_as(self.last, RandomSampler) and self.last.generator is None

    @property
    def draws_from_global(self) -> bool:
        """Whether the samples are drawn, or may be drawn, from the global generator."""
        if iterates_as(self.last, *KNOWN):
            return iterates_as(self.last, *_STRAIGHT) and self.last.generator is None
        return type(self.last).__name__ not in _ORDERED

    @property
    def draws_for_itself(self) -> bool:
        """Whether one of torch's samplers draws its order, from its own generator or the global one."""
        return any(iterates_as(part, *DRAWS) for part in self.all)

    def is_guessed(self, state: State) -> bool:
        """Whether the order is drawn again after this state, and is not known to be repeatable."""
        if self.keeper is not None and state.sampler_state is not None:
            return False
        return self.draws_from_global and not iterates_as(self.last, *KNOWN)

    def own_state(self) -> dict[str, Any]:
        """The fields of State that a sampler's own state decides, with a copy of that: NOTE [ Sampler states ], 3."""
        if self.keeper is None:
            return {"sampler_state": None}
        try:
            return {"sampler_state": copy.deepcopy(self.keeper.state_dict())}
        except NotImplementedError:
            return NO_STATE

    def seeds(self, start: State | None, of_global: torch.Tensor) -> dict[str, Any]:
        """The fields of State for the draws from the global generator in an epoch.

        Args:
            start: The state from which the epoch began, if one was loaded.
            of_global: The state of the global generator before the sampler draws.
        """
        if start is not None:
            return {"sampler_seed": start.sampler_seed, "global_generator": start.global_generator}
        return {
            "sampler_seed": seed_drawn_from(of_global) if self.draws_a_seed else None,
            "global_generator": pack(of_global) if self.draws_from_global else None,
        }

    def draw_as_if(self) -> None:
        """Advance the global generator as the sampler does at its iter().  What it drew is in the state."""
        if self.draws_a_seed:
            draw_a_seed()
        elif iterates_as(self.last, *_STRAIGHT) and self.last.generator is None:
            next(iter(self.last), None)  # draws all at once

    def left(self, start: State | None) -> int | None:
        """How many indices are given from this place on, if the length is right; None: it is not known.

        A BatchSampler of torch's takes the rest sample by sample, and its batch size may have changed.
        """
        sampler = self.outer
        length = length_of(sampler)
        if length is None or start is None or not start.batches:
            return length
        if start.ranks != self.ranks[1]:  # they divide the rest of all ranks' order
            return None
        if not iterates_as(sampler, BatchSampler):
            return length - start.batches
        samples = length_of(sampler.sampler)
        if samples is None:
            return None
        samples -= start.samples // start.ranks
        down = sampler.drop_last or samples < 0  # one sample too few is already past the end
        return int(samples // sampler.batch_size if down else -(-samples // sampler.batch_size))


def samplers_of(loader: Any) -> Samplers:
    """What the loader draws from, as it is now."""
    return Samplers(sampler_of(loader))


def has_set_epoch(sampler: Any) -> bool:
    """Whether a sampler can be given the number of an epoch."""
    return callable(attribute(sampler, "set_epoch"))


def set_epoch_of_samplers(number: int, *samplers: Any) -> None:
    """Call set_epoch() of samplers and of the samplers inside them, of each once."""
    called: list[Any] = []
    for part in [part for sampler in samplers for part in within(sampler)]:
        method = attribute(part, "set_epoch")
        if callable(method) and not any(part is other for other in called):
            called.append(part)
            method(number)


_LOOKED_AT = 16  # samplers in a list


def warn_of_unreached(loader: Any, number: int, coming: int) -> None:
    """Warn once for each class of samplers whose set_epoch() the loader does not find.

    That is a sampler in an attribute with another name than `sampler` and `batch_sampler`.  A sampler around it that
    has a set_epoch() of its own may pass the number on.  Others pass it on in their __iter__(), and the user may do it
    after the loader's set_epoch().  So this looks after an epoch, and one that had the epoch's number missed nothing.

    Args:
        loader: The loader.
        number: What set_epoch() was given before the epoch that has begun last.
        coming: The number of the next epoch.  The user may have given it to the sampler already.
    """
    parts = [*within(loader.sampler), *within(loader.batch_sampler)]
    if any(map(has_set_epoch, parts)):
        return
    for part in parts:
        for name, value in list(attribute(part, "__dict__", {}).items()):
            held = value[:_LOOKED_AT] if isinstance(value, (list, tuple)) else [value]
            inside = (inner for each in held if isinstance(each, Sampler) for inner in within(each))
            found = next(filter(_needs_epoch, inside), None)
            if name != "data_source" and found is not None and attribute(found, "epoch") not in (number, coming):
                outer = type(part).__name__
                warn_once(
                    f"set_epoch({number}) does not reach the {type(found).__name__} in {outer}.{name}. The loader "
                    "looks only at attributes named sampler and batch_sampler. So this one keeps its epoch, and may "
                    f"give the same order in every epoch. Give {outer} a set_epoch(epoch) that calls that of {name}, "
                    "or name the attribute sampler.",
                    key=(outer, name),
                )


def _needs_epoch(sampler: Any) -> bool:
    return has_set_epoch(sampler) and attribute(sampler, "shuffle", True) is not False


class Another:
    """Makes another iterator of a sampler whose first one gave nothing: NOTE [ Used up ].

    Args:
        sampler: The sampler.
        epoch: The number that set_epoch() gave it, which the loaded state may have replaced; None: there is none.
    """

    def __init__(self, sampler: Any, epoch: int | None) -> None:
        self._sampler = sampler
        self._epoch = epoch
        self.iterator: Iterator[Any] | None = None

    def made(self) -> Iterator[Any]:
        """Another iterator of the sampler; an empty one if the sampler's length is 0."""
        if length_of(self._sampler) == 0:
            return iter(())
        if self._epoch is not None:
            set_epoch_of_samplers(self._epoch, self._sampler)
        self.iterator = iter(self._sampler)
        return self.iterator

    def warn_if_empty(self, drawn: Any) -> None:
        """Warn if nothing was drawn from that iterator either."""
        if drawn or self.iterator is None:
            return
        length = length_of(self._sampler)
        given = "no length" if length is None else f"length {length}"
        warnings.warn(
            f"{type(self._sampler).__name__}, of {given}, gave nothing after its state was loaded, in two attempts. So "
            "this epoch is empty. Let its iter() begin an epoch again after a load_state_dict() of its end's state.",
            RuntimeWarning,
            stacklevel=caller()[1],
        )


def load_sampler(samplers: Samplers, state: State) -> None:
    """Load a sampler's own state, and call set_epoch() if that state has another epoch than the loader's."""
    load_state(samplers.keeper, state.sampler_state)
    number = state.sampler_epoch
    if number is not None and Samplers(samplers.outer).epoch != number:
        set_epoch_of_samplers(number, samplers.outer)


def name_of(sampler: Any) -> str:
    """The name of torch's class, or of ours, as which a sampler gives its samples; otherwise of its own."""
    return next((kind.__name__ for kind in KNOWN if iterates_as(sampler, kind)), type(sampler).__name__)


def this_rank() -> int:
    """Which of the job's processes this is."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK") or 0)  # torchrun's


def rank_of_state(loader: Any, samplers: Samplers) -> int | None:
    """This rank, if the loader's state is valid for it only."""
    return this_rank() if samplers.keeper is not None or workers_of(loader) is not None else None


def is_last(sampler: Any, batch: Any) -> bool:
    """Whether a batch of a BatchSampler is not full, which means that the sampler inside has ended."""
    while iterates_as(sampler, BatchSampler):
        if len(batch) < sampler.batch_size:
            return True
        sampler, batch = sampler.sampler, batch[-1]
    return False
