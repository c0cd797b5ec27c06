"""What a state records of the order of an epoch's samples, as the text in its `sampler`.
It decides whether another order of the loader is an error, and another number of samples a warning.

The order is part of that text, and not a key of its own, because torch.distributed.checkpoint expects the same keys in
a checkpoint as in a new loader's state.  Older versions recorded the name and no more, also of an order that depends on
more.  So a text of which the name is all says that.

    SequentialSampler alone
    RandomSampler of 60 samples
    RandomSampler with replacement of 60 samples
    DistributedSampler with seed=3, drop_last=False of 60 samples
    DistributedSampler without shuffle with drop_last=True
    DistributedSampler of 60 samples                of an older version, which recorded no seed and no drop_last
    BatchSampler(3) of RandomSampler of 60 samples      a batch sampler inside the loader's
    BatchSamplerShard of RandomSampler of 60 samples    a sampler that is not torch's, and torch's inside it
    Mine                                                of an older version; or it resumes by its own state
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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
        settings: The arguments of a DistributedSampler that decide the order, as texts, such as "seed=3".  Older
            versions recorded none.
        is_name_only: Whether only the name is known, and not that nothing else decides the order.
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


def why_not_order(was: Order, now: Order, inner: bool, kind: bool) -> str | None:
    """Why a loader cannot continue an order; None if it can.

    Args:
        was: The order in the state.
        now: The order of the loader.
        inner, kind: Whether to compare the batch samplers, and the kind and its settings.  The name is always compared.
    """
    if was.name != now.name:
        return _ordered_by(was, now)
    if was.is_name_only or now.is_name_only:
        return None
    if inner and was.inner != now.inner:
        return _inner(was, now)
    if kind and was.kind != now.kind:
        return _ordered_by(was, now)
    if kind and was.settings and now.settings and was.settings != now.settings:
        return _set_to(was, now)
    return None


def why_doubtful(was: Order, now: Order) -> str | None:
    """Why the rest of an order may be another one; None: it is not.

    This is no error, because each rank may have samples of its own, of which some have one more than others.
    """
    if was.number is None or now.number is None or was.number == now.number:
        return None
    return (
        f"the loaded state's order was drawn from {was.number} samples, and now there are {now.number}. From another "
        "number another order is drawn, so samples may come twice or never in this epoch. Use the dataset and the "
        f"sampler of the run that saved it {_AGAIN}"
    )


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
