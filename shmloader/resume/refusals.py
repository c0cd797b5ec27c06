"""Why a sampler cannot resume from a state: another order, or another number of ranks.
Why nothing is left of a state's epoch.  It decides which attributes of a sampler are compared.
"""

from __future__ import annotations

from torch.utils.data import BatchSampler

from shmloader.protocols.attributes import length_of
from shmloader.resume.distributed import DistributedSampler
from shmloader.resume.order import order_in, why_not_order
from shmloader.resume.seek import KNOWN, Samplers, is_a
from shmloader.resume.state import State


def why_not(samplers: Samplers, state: State) -> str | None:
    """Why this sampler cannot resume from a state; None if it can."""
    if state.begun:
        is_under_way = state.batches > 0  # if not, another order loses no sample
        batches, samples = _what_stays(samplers) if is_under_way else (False, False)
        if why := why_not_order(order_in(str(state.sampler)), samplers.order, batches, samples):
            return why
    ranks = samplers.ranks[1]
    if not state.begun or state.ranks == ranks or is_a(samplers.last, DistributedSampler):
        return None
    if (own := next((part for part in samplers.all if isinstance(part, DistributedSampler)), None)) is None:
        remedy = "Use shmloader.DistributedSampler, which divides the rest of an epoch among any number of ranks."
    elif not is_a(own, DistributedSampler):
        remedy = (
            f"{type(own).__name__} has its own __iter__(), so the loader cannot divide the rest of its order. Use as "
            "many ranks until the epoch is over, or use shmloader.DistributedSampler itself."
        )
    else:
        remedy = (
            f"The rest of an epoch can be divided among any number of ranks if a BatchSampler wraps the "
            f"shmloader.DistributedSampler, and not a {type(samplers.outer).__name__}."
        )
    return f"its epoch is shared by {state.ranks} ranks, and now there are {ranks}. {remedy}"


def why_past_end(samplers: Samplers, state: State) -> str | None:
    """Why nothing is left of a state's epoch, because this sampler gives fewer samples; None: something may be left.

    A state from behind the epoch's last batch is no such state.  A sampler with its own state knows its end.
    """
    if samplers.keeper is not None and state.sampler_state is not None:
        return None
    parts = samplers.chain
    counts_batches = len(parts) == 1 and not is_a(samplers.outer, *KNOWN)
    unit, got = ("batches", state.batches) if counts_batches else ("samples", state.samples)
    length = length_of(parts[min(1, len(parts) - 1)])
    if length is None:
        return None
    if not counts_batches:
        length *= samplers.ranks[1]
        got -= state.ranks - 1  # as many at most have come twice, because each rank has as many
    if got <= length:
        return None
    return (
        f"the loaded place, after {state.batches if counts_batches else state.samples} {unit} of epoch {state.epoch}, "
        f"is past the end. The sampler has {length} {unit} now, so nothing is left of this epoch. Use the dataset of "
        "the run that saved the state until the epoch is over, or begin the epoch again."
    )


def _what_stays(samplers: Samplers) -> tuple[bool, bool]:
    """Whether the batch samplers, and the sampler that they batch, are now as they will be when the epoch begins.

    The user's set_epoch() and iter() come after the load.  In these, a subclass, or a sampler of the user's own, may
    change its attributes or make the sampler inside it.  So what such a class decides is not compared.  torch's own
    classes and ours change nothing there.
    """
    *batches, samples = (type(part) in (*KNOWN, BatchSampler) for part in samplers.chain)
    return all(batches), all(batches) and samples
