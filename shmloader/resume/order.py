"""The order of an epoch's samples: what a state records of it, as the text in its `sampler`, and why a loader cannot
continue it.  Another order or another number of ranks is an error, and another number of samples a warning.

The order is part of that text, and not a key of its own, because torch.distributed.checkpoint expects the same keys in
a checkpoint as in a new loader's state.

    SequentialSampler alone
    RandomSampler of 60 samples
    RandomSampler with replacement of 60 samples
    DistributedSampler with seed=3, drop_last=False of 60 samples
    DistributedSampler without shuffle with drop_last=True
    BatchSampler(3) of RandomSampler of 60 samples      a batch sampler inside the loader's
    BatchSamplerShard of RandomSampler of 60 samples    a sampler that is not torch's, and torch's inside it
    Mine                                                it resumes by its own state, whatever its order is
"""

from __future__ import annotations

import re

from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from shmloader.protocols.user_objects import attribute, length_of
from shmloader.resume.distributed import DistributedSampler
from shmloader.resume.samplers import DRAWS, KNOWN, SHARED, Samplers, iterates_as, name_of, within
from shmloader.resume.state import State

_SOURCES = {RandomSampler: "data_source", SubsetRandomSampler: "indices", WeightedRandomSampler: "weights"}
# the batch samplers inside the loader's, the class of the sampler, what else decides the order, the number of samples
_TEXT = re.compile(r"((?:BatchSampler\(\d+(?:, drop_last)?\) of )*)(\S*)(.*?)(?: of (\d+) samples| alone)?", re.DOTALL)
_AGAIN = "until the epoch is over, or begin the epoch again."


def order_of(samplers: Samplers) -> str:
    """The text for the order of a loader's samplers, as they are now."""
    last = samplers.last
    if samplers.keeper is not None:
        return samplers.name
    inside = [f"BatchSampler({part.batch_size}{', drop_last' * bool(part.drop_last)})" for part in samplers.chain[1:-1]]
    order, number = samplers.name, None
    drawing = next((part for part in within(last) if iterates_as(part, *DRAWS, DistributedSampler, SHARED)), None)
    if drawing is not None:
        order += f" of {name_of(drawing)}" * (drawing is not last)
        if not attribute(drawing, "shuffle", True):
            order += " without shuffle"
        else:
            order += " with replacement" * bool(attribute(drawing, "replacement", False))
            source = next((name for kind, name in _SOURCES.items() if iterates_as(drawing, kind)), "dataset")
            number = length_of(attribute(drawing, source))
        if iterates_as(last, DistributedSampler, SHARED):
            seed = f"seed={last.seed}, " * bool(last.shuffle)
            order += f" with {seed}drop_last={bool(last.drop_last)}"
    text = " of ".join([*inside, order, *([] if number is None else [f"{number} samples"])])
    return text if " " in text else f"{text} alone"


# ------------------------------------------------------------------------------------------- whether it can continue


def why_not(samplers: Samplers, state: State) -> str | None:
    """Why this sampler cannot resume from a state; None if it can."""
    return _why_not_order(samplers, state) or _why_not_ranks(samplers, state) if state.begun else None


def _why_not_order(samplers: Samplers, state: State) -> str | None:
    was, now = state.sampler, order_of(samplers)
    (inner, name, order, _), (inner_now, name_now, order_now, _) = map(_parts, (was, now))
    # without a batch, another order loses no sample; of a sampler that resumes by its own state there is only the name
    if name == name_now and (not state.batches or " " not in was or " " not in now):
        return None
    # The user's set_epoch() and iter() come after the load.  In these, a subclass, or a sampler of the user's own, may
    # change its attributes or make the sampler inside it.  So what such a class decides is not compared.
    *batches, samples = (type(part) in (*KNOWN, BatchSampler) for part in samplers.chain)
    if name == name_now and (not all(batches) or (inner == inner_now and (not samples or order == order_now))):
        return None
    return (
        f"its samples were ordered by {was}, and this loader's are by {now}. From another order samples would come "
        f"twice or never. Use the sampler of the run that saved it {_AGAIN}"
    )


def _parts(text: str) -> tuple[str | None, ...]:
    found = _TEXT.fullmatch(text)
    assert found is not None  # it matches any text
    return found.groups()


def _why_not_ranks(samplers: Samplers, state: State) -> str | None:
    ranks = samplers.ranks[1]
    if state.ranks == ranks or iterates_as(samplers.last, DistributedSampler):
        return None
    return (
        f"its epoch is shared by {state.ranks} ranks, and now there are {ranks}. Use as many ranks until the epoch is "
        "over, or shmloader.DistributedSampler, alone or in a BatchSampler: it divides the rest of an epoch among any "
        "number of ranks."
    )


def why_doubtful(samplers: Samplers, state: State) -> str | None:
    """Why the rest of the order may be another one; None: it is not.

    This is no error, because each rank may have samples of its own, of which some have one more than others.
    """
    was, now = (_parts(text)[-1] for text in (state.sampler, order_of(samplers)))
    if was is None or now is None or was == now:
        return None
    return (
        f"the loaded state's order was drawn from {was} samples, and now there are {now}. From another number another "
        "order is drawn, so samples may come twice or never in this epoch. Use the dataset and the sampler of the run "
        f"that saved it {_AGAIN}"
    )


def why_past_end(samplers: Samplers, state: State) -> str | None:
    """Why nothing is left of a state's epoch, because this sampler gives fewer samples; None: something may be left.

    A state after the epoch's last batch is no such state.  A sampler with its own state knows its end.
    """
    left = samplers.left(state)
    if left is None or left >= 0 or (samplers.keeper is not None and state.sampler_state is not None):
        return None
    return (
        f"the loaded place, after {state.batches} batches of epoch {state.epoch}, is past the end. The sampler gives "
        "fewer now, so nothing is left of this epoch. Use the dataset of the run that saved the state until the epoch "
        "is over, or begin the epoch again."
    )
