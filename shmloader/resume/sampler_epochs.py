"""Calls set_epoch() of the samplers that a loader finds, and warns of one that it does not find."""

from __future__ import annotations

import warnings
from typing import Any

from torch.utils.data import Sampler

from shmloader.protocols.attributes import attribute
from shmloader.protocols.states import load_state
from shmloader.resume.samplers import Samplers, has_set_epoch, within
from shmloader.resume.state import State
from shmloader.system.user_line import caller


def set_epoch_of_samplers(number: int, *samplers: Any) -> None:
    """Call set_epoch() of samplers and of the samplers inside them, of each once."""
    called: list[Any] = []
    for part in [part for sampler in samplers for part in within(sampler)]:
        method = attribute(part, "set_epoch")
        if callable(method) and not any(part is other for other in called):
            called.append(part)
            method(number)


def load_sampler(samplers: Samplers, state: State) -> None:
    """Load a sampler's own state, and call set_epoch() if that state has another epoch than the loader's."""
    load_state(samplers.keeper, state.sampler_state)
    number = state.sampler_epoch
    if number is not None and Samplers(samplers.outer).epoch != number:
        set_epoch_of_samplers(number, samplers.outer)


_LOOKED_AT = 16  # samplers in a list
_unreached: set[tuple[str, str]] = set()


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
    if any(has_set_epoch(part) for part in parts):
        return
    for part in parts:
        for name, value in list(attribute(part, "__dict__", {}).items()):
            held = value[:_LOOKED_AT] if isinstance(value, (list, tuple)) else [value]
            inside = (inner for each in held if isinstance(each, Sampler) for inner in within(each))
            found = next(filter(_needs_epoch, inside), None)
            if name != "data_source" and found is not None and attribute(found, "epoch") not in (number, coming):
                _warn_of_unreached(type(part).__name__, name, type(found).__name__, number)


def _needs_epoch(sampler: Any) -> bool:
    return has_set_epoch(sampler) and attribute(sampler, "shuffle", True) is not False


def _warn_of_unreached(outer: str, name: str, inner: str, number: int) -> None:
    if (outer, name) in _unreached:
        return
    _unreached.add((outer, name))
    warnings.warn(
        f"set_epoch({number}) does not reach the {inner} in {outer}.{name}. The loader looks only at attributes named "
        "sampler and batch_sampler. So this one keeps its epoch, and may give the same order in every epoch. Give "
        f"{outer} a set_epoch(epoch) that calls that of {name}, or name the attribute sampler.",
        RuntimeWarning,
        stacklevel=caller()[1],
    )
