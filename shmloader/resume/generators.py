"""A generator's state as text, because a checkpoint should hold JSON types.  One of torch's takes 3,200 characters.
It also undoes draws from generators, at the end of a `with`, and derives seeds from other seeds.
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


def pack(state: torch.Tensor) -> str:
    """The state of a generator as text.  It compresses well: half of it is zeros, as each 32-bit word takes 64 bits."""
    return _compressed(_columns(state, 8).numpy().tobytes())


def unpack(text: str) -> torch.Tensor:
    """The state from which pack() made the text."""
    data = _read(text)
    return _columns(torch.frombuffer(bytearray(data), dtype=torch.uint8), len(data) // 8)


def _columns(data: torch.Tensor, width: int) -> torch.Tensor:
    """The bytes of a table, `width` a row, column by column, so that equal bytes lie together."""
    return data.reshape(-1, width).T.contiguous().reshape(-1) if len(data) % 8 == 0 else data


def _compressed(data: bytes) -> str:
    return base64.b85encode(zlib.compress(data, 1)).decode()


def _read(text: str) -> bytes:
    return zlib.decompress(base64.b85decode(text))


class Kind(NamedTuple):
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


KINDS: dict[type, Kind] = {
    torch.Generator: Kind(_torchs_state, _set_torchs),
    random.Random: Kind(lambda of: of.getstate(), _set_pythons),
    numpy.random.Generator: Kind(lambda of: of.bit_generator.state, _set_numpys),
    numpy.random.RandomState: Kind(lambda of: of.get_state(legacy=False), lambda of, state: of.set_state(state)),
}


def kind_of(value: Any) -> Kind | None:
    """Its kind; None: it is no generator, or has no state."""
    if isinstance(value, random.SystemRandom):
        return None
    return next((KINDS[kind] for kind in KINDS if isinstance(value, kind)), None)


def is_same(one: Any, other: Any) -> bool:
    """Whether two states of one generator are the same."""
    if isinstance(one, dict):
        return all(is_same(one[name], other[name]) for name in one)
    return bool(numpy.array_equal(one, other)) if isinstance(one, numpy.ndarray) else bool(one == other)


def as_text(state: Any) -> str:
    """A state of any kind as text."""
    return _compressed(json.dumps(state, default=_as_json).encode())


def from_text(text: str) -> Any:
    """The state from which as_text() made the text."""
    return json.loads(_read(text), object_hook=_from_json)


def _as_json(value: Any) -> Any:
    # NumPy's own numbers are items of a state, too
    return {"dtype": value.dtype.str, "items": value.tolist()} if isinstance(value, numpy.ndarray) else value.item()


def _from_json(given: dict[str, Any]) -> Any:
    return numpy.array(given["items"], given["dtype"]) if given.keys() == {"dtype", "items"} else given


def seed_drawn_from(state: torch.Tensor) -> int:
    """The seed that torch's RandomSampler draws from a generator in this state.  The state does not change."""
    generator = torch.Generator()
    generator.set_state(state)
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator).item())


def draw_a_seed(generator: torch.Generator | None = None) -> None:
    """Advance a generator, or the global one, by one draw of a seed, as a RandomSampler without a generator does."""
    torch.empty((), dtype=torch.int64).random_(generator=generator)


@contextmanager
def as_global(text: str | None) -> Iterator[Callable[[], None]]:
    """Give torch's global generator this state, if it is not None, inside the `with`; then restore the former state.

    The `with` gets a function.  Call it when draws should count: they stay if the generator is where it was before the
    `with`.
    """
    former = torch.get_rng_state()
    stays = False

    def stay_if_here() -> None:
        nonlocal stays
        stays = torch.equal(former, torch.get_rng_state())

    try:
        if text is not None:
            torch.set_rng_state(unpack(text))
        yield stay_if_here
    except BaseException:
        stays = False
        raise
    finally:
        if not stays:
            torch.set_rng_state(former)


@contextmanager
def undrawn(generator: torch.Generator | None) -> Iterator[None]:
    """At the end, undo the draws from this generator and from the global one."""
    before = None if generator is None else generator.get_state()
    with as_global(None):
        yield
    if generator is not None and before is not None:
        generator.set_state(before)


def mix(seed: int, number: int) -> int:
    """A seed of 64 bits for the `number`-th of those that share `seed`.

    This is the generator SplitMix64, begun at `seed` and asked for its output number `number`: G. L. Steele Jr.,
    D. Lea and C. H. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    z = (seed + (number + 1) * _STEP) & _64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _64
    return z ^ (z >> 31)


_64 = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15


def further(seed: int, places: int) -> int:
    """The seed that is `places` steps after `seed`: mix(further(s, n), k) == mix(s, n + k)."""
    return (seed + places * _STEP) & _64
