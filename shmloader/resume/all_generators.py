"""All generators from which a sampler of the user's may draw, as text in a state: torch's, Python's and NumPy's global
ones, and those in the attributes of the sampler and of the samplers inside it.

A sampler that has a state of its own may draw its order from any of them when its epoch starts.  So they belong to a
state from which that epoch is drawn again: NOTE [ Notes ].
"""

from __future__ import annotations

import base64
import json
import random
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy.random  # here, because NumPy imports it at its first use
import torch

from shmloader.protocols.attributes import attribute
from shmloader.resume.seek import within


class _Kind(NamedTuple):
    """How the state of a generator is read and set."""

    get: Callable[[Any], Any]
    set: Callable[[Any, Any], Any]


def _torchs_state(of: Any) -> Any:
    state = of.get_state().numpy()
    return state.view("u8") if len(state) % 8 == 0 else state  # numbers of 64 bits take the least text


def _set_torchs(of: Any, state: Any) -> None:
    of.set_state(torch.from_numpy(state.view("u1")))


def _set_pythons(of: Any, state: Any) -> None:
    version, words, gauss = state
    of.setstate((version, tuple(words), gauss))


def _set_numpys(of: Any, state: Any) -> None:
    of.bit_generator.state = state


_KINDS: dict[type, _Kind] = {
    torch.Generator: _Kind(_torchs_state, _set_torchs),
    random.Random: _Kind(lambda of: of.getstate(), _set_pythons),
    numpy.random.Generator: _Kind(lambda of: of.bit_generator.state, _set_numpys),
    numpy.random.RandomState: _Kind(lambda of: of.get_state(legacy=False), lambda of, state: of.set_state(state)),
}
_GLOBAL: dict[str, tuple[type, Any]] = {
    "torch": (torch.Generator, torch.default_generator),
    "random": (random.Random, random),
    "numpy": (numpy.random.RandomState, numpy.random),
}


class AllGenerators:
    """The states of all generators from which a sampler may draw, as they are now.

    Args:
        sampler: The sampler.
    """

    def __init__(self, sampler: Any) -> None:
        self._global = _states_of_global()
        self._own = [(place, name, _KINDS[kind].get(each)) for place, name, each, kind in _own(sampler)]
        self._drawn_from: set[str] = set()

    def look(self) -> None:
        """See which of the global ones were drawn from."""
        now = _states_of_global()
        self._drawn_from |= {name for name, state in self._global.items() if not _is_same(state, now[name])}

    def text(self) -> str:
        """Them as text for a state, without the global ones from which nobody was seen to draw."""
        self.look()
        own = [(place, name, _squeezed(state)) for place, name, state in self._own]
        return json.dumps({"own": own, **{name: _squeezed(self._global[name]) for name in sorted(self._drawn_from)}})


@contextmanager
def drawing_from(text: str, sampler: Any) -> Iterator[Callable[[], None]]:
    """Inside the `with`, draw from the generators of such a text.  Then the global ones get their present states back.

    The `with` gets a function, which sets all of them to the states of the text.  An own generator that this sampler
    does not have is left out.  The sampler's own ones stay where the draws have left them.
    """
    given: dict[str, Any] = json.loads(text)
    own = {(place, name): state for place, name, state in given.pop("own")}

    def begin() -> None:
        _set_global({name: _unsqueezed(state) for name, state in given.items()})
        for place, name, each, kind in list(_own(sampler)):
            if (place, name) in own:
                _KINDS[kind].set(each, _unsqueezed(own[place, name]))

    now = _states_of_global()
    try:
        yield begin
    finally:
        _set_global(now)


def _states_of_global() -> dict[str, Any]:
    return {name: _KINDS[kind].get(of) for name, (kind, of) in _GLOBAL.items()}


def _set_global(states: dict[str, Any]) -> None:
    for name, state in states.items():
        kind, of = _GLOBAL[name]
        _KINDS[kind].set(of, state)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two states of one generator are the same."""
    if isinstance(one, dict):
        return all(_is_same(one[name], other[name]) for name in one)
    return bool(numpy.array_equal(one, other)) if isinstance(one, numpy.ndarray) else bool(one == other)


def _own(sampler: Any) -> Iterator[tuple[int, str, Any, type]]:
    """Each generator in an attribute: of which sampler, the attribute's name, the generator, and its kind."""
    for place, part in enumerate(within(sampler)):
        for name, value in list(attribute(part, "__dict__", {}).items()):
            kind = next((kind for kind in _KINDS if isinstance(value, kind)), None)
            if kind is not None and not isinstance(value, random.SystemRandom):  # it has no state
                yield place, name, value, kind


def _squeezed(state: Any) -> str:
    """A generator's state as text: JSON, zlib, base85."""
    return base64.b85encode(zlib.compress(json.dumps(state, default=_as_json).encode(), 1)).decode()


def _as_json(value: Any) -> Any:
    # NumPy's own numbers are items of a state, too
    return {"dtype": value.dtype.str, "items": value.tolist()} if isinstance(value, numpy.ndarray) else value.item()


def _unsqueezed(text: str) -> Any:
    """The state from which _squeezed() made the text.

    Raises:
        ValueError: It has not made this text.
    """
    try:
        return json.loads(zlib.decompress(base64.b85decode(text)), object_hook=_from_json)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"a generator's state is damaged ({error}). Load an earlier state.") from None


def _from_json(given: dict[str, Any]) -> Any:
    return numpy.array(given["items"], given["dtype"]) if given.keys() == {"dtype", "items"} else given
