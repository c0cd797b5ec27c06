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
from dataclasses import dataclass
from typing import Any

from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from shmloader.protocols.attributes import attribute, length_of
from shmloader.resume.distributed import DistributedSampler
from shmloader.resume.samplers import DRAWS, KNOWN, SHARED, Samplers, iterates_as, name_of, within
from shmloader.resume.state import State

_SOURCES = {RandomSampler: "data_source", SubsetRandomSampler: "indices", WeightedRandomSampler: "weights"}
_INNER = re.compile(r"BatchSampler\(\d+(, drop_last)?\)")
_SETTINGS = re.compile(r"(.+?) with ((?:seed=-?\d+, )?drop_last=(?:True|False))")
_NUMBER = re.compile(r"(\d+) samples")
_ALONE = " alone"
_AGAIN = "until the epoch is over, or begin the epoch again."


@dataclass(frozen=True)
class Order:
    """The order of an epoch's samples.

    Attributes:
        kind: The name of the sampler that orders them, and what else decides the order.
        inner: The batch samplers between the loader's and that one, each with its batch size.
        number: From how many samples the order is drawn; None: it is not drawn, or the number is not known.
        settings: The arguments of a DistributedSampler that decide the order, as texts, such as "seed=3".
        is_name_only: Whether nothing but the name is recorded, because the sampler resumes by its own state.
    """

    kind: str
    inner: tuple[str, ...] = ()
    number: int | None = None
    is_name_only: bool = False
    settings: tuple[str, ...] = ()

    def __str__(self) -> str:
        number = () if self.number is None else (f"{self.number} samples",)
        settings = f" with {', '.join(self.settings)}" if self.settings else ""
        text = " of ".join((*self.inner, self.kind + settings, *number))
        return text + _ALONE if text == self.name and not self.is_name_only else text

    @property
    def name(self) -> str:
        """The class of the sampler."""
        return self.kind.split(" ", 1)[0]


def order_of(samplers: Samplers) -> Order:
    """The order of a loader's samplers, as they are now."""
    last, name = samplers.last, samplers.name
    if samplers.keeper is not None:
        return Order(name, is_name_only=True)
    inside = tuple(
        f"BatchSampler({part.batch_size}{', drop_last' * bool(part.drop_last)})" for part in samplers.chain[1:-1]
    )
    drawing = next((part for part in within(last) if iterates_as(part, *DRAWS, DistributedSampler, SHARED)), None)
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
    if not iterates_as(sampler, DistributedSampler, SHARED):
        return ()
    seed, drop_last = sampler.seed, f"drop_last={bool(sampler.drop_last)}"
    if not sampler.shuffle:
        return (drop_last,)
    return (f"seed={int(seed)}", drop_last) if isinstance(seed, int) else ()


def _drawn_from(sampler: Any) -> int | None:
    """From how many samples one of torch's samplers draws its order; None if it cannot be asked."""
    try:
        for kind, name in _SOURCES.items():
            if iterates_as(sampler, kind):
                return len(getattr(sampler, name))
        return len(sampler.dataset)
    except Exception:
        return None


def order_in(text: str) -> Order:
    """The Order in a state's text."""
    if " " not in text:
        return Order(text, is_name_only=True)
    parts = text.split(" of ")
    inner = []
    while len(parts) > 1 and _INNER.fullmatch(parts[0]):
        inner.append(parts.pop(0))
    number = _NUMBER.fullmatch(parts[-1]) if len(parts) > 1 else None
    kind = " of ".join(parts if number is None else parts[:-1]).removesuffix(_ALONE)
    settings: tuple[str, ...] = ()
    if found := _SETTINGS.fullmatch(kind):
        kind, settings = found[1], tuple(found[2].split(", "))
    return Order(kind, tuple(inner), None if number is None else int(number[1]), settings=settings)


# ------------------------------------------------------------------------------------------- whether it can continue


def why_not(samplers: Samplers, state: State) -> str | None:
    """Why this sampler cannot resume from a state; None if it can."""
    return _why_not_order(samplers, state) or _why_not_ranks(samplers, state) if state.begun else None


def _why_not_order(samplers: Samplers, state: State) -> str | None:
    was, now = order_in(str(state.sampler)), order_of(samplers)
    if was.name != now.name:
        return _ordered_by(was, now)
    if was.is_name_only or now.is_name_only or not state.batches:  # without a batch, another order loses no sample
        return None
    batches_stay, samples_stay = _what_stays(samplers)
    if batches_stay and was.inner != now.inner:
        return _inner(was, now)
    if samples_stay and was.kind != now.kind:
        return _ordered_by(was, now)
    if samples_stay and was.settings and now.settings and was.settings != now.settings:
        return _set_to(was, now)
    return None


def _what_stays(samplers: Samplers) -> tuple[bool, bool]:
    """Whether the batch samplers, and the sampler that they batch, are now as they will be when the epoch begins.

    The user's set_epoch() and iter() come after the load.  In these, a subclass, or a sampler of the user's own, may
    change its attributes or make the sampler inside it.  So what such a class decides is not compared.  torch's own
    classes and ours change nothing there.
    """
    *batches, samples = (type(part) in (*KNOWN, BatchSampler) for part in samplers.chain)
    return all(batches), all(batches) and samples


def _ordered_by(was: Order, now: Order) -> str:
    return (
        f"its samples were ordered by {was.kind}, and this loader's are by {now.kind}. Use the sampler of the run that "
        "saved it."
    )


def _set_to(was: Order, now: Order) -> str:
    differing = [pair for pair in zip(was.settings, now.settings, strict=True) if pair[0] != pair[1]]
    old, new = (" and ".join(texts) for texts in zip(*differing, strict=True))
    return (
        f"its {was.name} had {old}, and this loader's has {new}. From another order samples would come twice or never. "
        f"Give it {old} {_AGAIN}"
    )


def _inner(was: Order, now: Order) -> str:
    old, new = (" of ".join(order.inner) or "none" for order in (was, now))
    return (
        f"the batch sampler inside the loader's was {old}, and now it is {new}. Use the samplers of the run that saved "
        f"it {_AGAIN}"
    )


def _why_not_ranks(samplers: Samplers, state: State) -> str | None:
    ranks = samplers.ranks[1]
    if state.ranks == ranks or iterates_as(samplers.last, DistributedSampler):
        return None
    if (own := next((part for part in samplers.all if isinstance(part, DistributedSampler)), None)) is None:
        remedy = "Use shmloader.DistributedSampler, which divides the rest of an epoch among any number of ranks."
    elif not iterates_as(own, DistributedSampler):
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


def why_doubtful(samplers: Samplers, state: State) -> str | None:
    """Why the rest of the order may be another one; None: it is not.

    This is no error, because each rank may have samples of its own, of which some have one more than others.
    """
    was, now = order_in(state.sampler), order_of(samplers)
    if was.number is None or now.number is None or was.number == now.number:
        return None
    return (
        f"the loaded state's order was drawn from {was.number} samples, and now there are {now.number}. From another "
        "number another order is drawn, so samples may come twice or never in this epoch. Use the dataset and the "
        f"sampler of the run that saved it {_AGAIN}"
    )


def why_past_end(samplers: Samplers, state: State) -> str | None:
    """Why nothing is left of a state's epoch, because this sampler gives fewer samples; None: something may be left.

    A state after the epoch's last batch is no such state.  A sampler with its own state knows its end.
    """
    if samplers.keeper is not None and state.sampler_state is not None:
        return None
    parts = samplers.chain
    counts_batches = len(parts) == 1 and not iterates_as(samplers.outer, *KNOWN)
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
