"""Looks up what torch's loader would not look up in a user's sampler, dataset or stream: `state_dict`, `set_epoch`, ...
Loads their states.

NOTE [ Look-ups ]

Most samplers and datasets lack these attributes.  Some have them as properties that raise until something is set up, or
have a `__getattr__` that raises KeyError.  Under torch's loader their users never meet that exception.

    1. An attribute whose look-up raises an Exception counts as absent.  The next look-up may find it.
    2. Each look-up really asks the object.  So an attribute that a property or a `__getattr__` passes on from another
       object is found like any other.
    3. The exception may be that of a signal's handler, which must come through.  It may be an AttributeError, too, and
       that is why getattr() gets no default.
    4. torch looks up some attributes too, such as `__getitems__`.  Those we look up in the same way as torch.
"""

from __future__ import annotations

import copy
import signal
import traceback
from typing import Any

import torch


def attribute(of: Any, name: str, unless: Any = None) -> Any:
    """An attribute of a user's object; `unless` if it has none, or if it cannot be looked up: NOTE [ Look-ups ]."""
    try:
        return getattr(of, name)
    except Exception as error:
        if _is_handlers(error):
            raise
        return unless


def length_of(of: Any) -> int | None:
    """The length that a sampler or a dataset declares; None if it declares none, or cannot be asked."""
    try:
        return len(of)
    except Exception as error:
        if _is_handlers(error):
            raise
        return None


def _is_handlers(error: Exception) -> bool:
    """Whether the handler of a signal, written in Python, has raised this.

    Most objects just lack the attribute, and no Python code has run.  Asking for all handlers would take 250 us, for
    each of a dozen look-ups an epoch.
    """
    if error.__traceback__ is None or error.__traceback__.tb_next is None:
        return False
    handlers = map(signal.getsignal, signal.valid_signals())
    codes = {getattr(getattr(each, "__func__", each), "__code__", None) for each in handlers} - {None}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def says_where_it_is(what: Any) -> bool:
    """Whether a sampler, a stream or its iterator has a state_dict() and a load_state_dict() for its place.

    Those that it has from nn.Module are for its parameters, and do not have its place.
    """
    return all(_has_own(what, name) for name in ("state_dict", "load_state_dict"))


def _has_own(what: Any, name: str) -> bool:
    found = attribute(what, name)
    return callable(found) and attribute(found, "__func__") is not getattr(torch.nn.Module, name)


def load_state(of: Any, state: Any) -> None:
    """Call load_state_dict() with a copy.  Some objects empty what they get (lhotse's), and it may be loaded again."""
    of.load_state_dict(copy.deepcopy(state))
