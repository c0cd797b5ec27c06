"""Continues the order of an epoch's samples from a place in it, without loading a sample.
It decides how each sampler does that, also with another number of ranks or another batch size; order.py decides with
which samplers a state can be loaded.

torch's own samplers give the same order again from the same seed or generator, and the delivered part is skipped:
sample by sample where that is possible, so that the batch size may change.  shmloader's DistributedSampler divides the
rest of all ranks' order.  A sampler with its own `state_dict` and `load_state_dict` resumes by these: from its state at
the place, or from the one at the epoch's start (NOTE [ Sampler states ], 2).  Any other sampler starts again, and what
was delivered is skipped.  That is right only if it gives the same order again.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch

from shmloader.protocols.user_objects import by_next, load_state, skip
from shmloader.resume.distributed import DistributedSampler
from shmloader.resume.generators import as_global, draw_a_seed, seed_drawn_from, unpack
from shmloader.resume.sampler_generators import drawing_from
from shmloader.resume.samplers import DRAWS, KNOWN, Samplers, iterates_as, load_sampler, set_epoch_of_samplers
from shmloader.resume.state import State


def rest(samplers: Samplers, state: State, loader_generator: torch.Generator | None = None) -> Iterator[Any]:
    """The rest of a loader's sampler, or batch sampler, after a place in an epoch.

    The loader's and the sampler's own generators must be in their state at the epoch's beginning.  The global one is
    touched only by a first draw that the run that saved the state had not made yet.
    """
    parts, last = samplers.chain, samplers.last
    if state.sampler_state is not None and samplers.keeper is not None:
        return _by_its_state(samplers, state)
    if iterates_as(last, DistributedSampler):
        return _divided(parts, state)
    if not iterates_as(last, *KNOWN) or len(parts) > 2:
        return _drawn_again(parts, state, loader_generator)
    return _in_batches(parts[:-1], skip(iter(_seeded(last, state)), state.samples // state.ranks))


def _by_its_state(samplers: Samplers, state: State) -> Iterator[Any]:
    """The rest of a sampler with a state of its own."""
    keeper = samplers.keeper
    outside = list(itertools.takewhile(lambda part: part is not keeper, samplers.chain))
    if state.draws_again:
        return _drawn_by_its_state(samplers, outside, state)
    load_state(keeper, state.sampler_state)
    return iter(()) if state.used_up else _in_batches(outside, iter(keeper))


def _drawn_by_its_state(samplers: Samplers, outside: list[Any], state: State) -> Iterator[Any]:
    """The rest of a sampler whose state is that of the epoch's start: NOTE [ Sampler states ], 2.  It draws again.

    If that state was the one of its end, the first iterator gives nothing, as in NOTE [ Used up ].
    """
    assert state.global_generator is not None
    left: Iterator[Any]
    number = state.sampler_epoch
    with drawing_from(state.global_generator, samplers.outer, lambda: load_sampler(samplers, state)) as begin:
        for _ in range(2):
            begin()
            left = _in_batches(outside[1:], iter(samplers.keeper))
            if first := list(map(next, (left,))):
                left = Rest(first, left)
                break
            if number is not None:
                set_epoch_of_samplers(number, samplers.outer)
        left = skip(left, state.samples // state.ranks if outside else state.batches)
    return _in_batches(outside[:1], left)


def _divided(parts: list[Any], state: State) -> Iterator[Any]:
    """The rest of the order of our DistributedSampler, also if batch samplers inside each other batch it.

    Then the outermost one gets lists, and the state counts these.  Only the last lists of an epoch are not full.
    """
    size = math.prod(part.batch_size for part in parts[1:-1])
    return _in_batches(parts[:-1], parts[-1].after(state.samples * size))


def _drawn_again(parts: list[Any], state: State, loader_generator: torch.Generator | None) -> Iterator[Any]:
    """The rest of an unknown sampler, or of a batch sampler of a batch sampler, which draws from its beginning again.

    A batch sampler of torch's takes the rest sample by sample (from another batch sampler, list by list), so its batch
    size may change.

    It draws from the global generator of the epoch's beginning, and then that one gets its present state back.  If the
    state was saved before the first batch, the run that saved it may not have made the first draw yet.  Then, if the
    user has restored the global generator, it arrives at its present state before that draw, and moves on with it.
    """
    with as_global(state.global_generator) as stay_if_here:
        if len(parts) == 1:  # otherwise the batch sampler makes the sampler's iterator in the first draw
            left = iter(_seeded(parts[0], state))
            _skip_base_seed_draw(state, loader_generator)
        if not state.batches:
            stay_if_here()
        if len(parts) == 1:
            left = skip(left, state.batches)
        else:
            inner = _in_batches(parts[1:-1], iter(_seeded(parts[-1], state)))
            left = _in_batches(parts[:1], skip(inner, state.samples // state.ranks))
        if state.batches:
            return left
        # inside as_global(), because the first draw may draw all of them
        return Rest(list(map(next, (left,))), left)


def _skip_base_seed_draw(state: State, loader_generator: torch.Generator | None) -> None:
    """Draw the base seed, and drop it, if a sampler that has drawn again in its iter() had drawn there before it.

    A resumed epoch takes that seed from the state.  It is the next draw only if the state is of an iterator of torch's
    without workers, which made the sampler's iterator first: Generators.were_drawn_from().
    """
    now = torch.get_rng_state() if loader_generator is None else loader_generator.get_state()
    if seed_drawn_from(now) == state.base_seed:
        draw_a_seed(loader_generator)


class Rest:
    """The rest of an iterator of which some were drawn already.

    Attributes:
        source: the iterator.
    """

    def __init__(self, drawn: list[Any], source: Iterator[Any]) -> None:
        self.source = source
        self._all = itertools.chain(drawn, by_next(source))

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._all)


def _in_batches(batch_samplers: list[Any], indices: Iterator[Any]) -> Iterator[Any]:
    """What batch samplers inside each other, of which the last one batches these samples, make of them."""
    for part in reversed(batch_samplers):
        batches = copy.copy(part)
        batches.sampler = _Once(indices)
        indices = iter(batches)
    return indices


class _Once:
    """An iterator in a sampler's place."""

    def __init__(self, indices: Iterator[Any]) -> None:
        self._indices = indices

    def __iter__(self) -> Iterator[Any]:
        return by_next(self._indices)  # because torch's BatchSampler calls iter() for each batch


def _seeded(last: Any, state: State) -> Any:
    """A copy of this sampler that draws what it drew in the epoch of this state, without the global generator."""
    if not iterates_as(last, *DRAWS) or last.generator is not None:
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
