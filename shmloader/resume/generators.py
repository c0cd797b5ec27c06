"""A generator's state as text of about 3,200 characters, because a checkpoint should hold JSON types.
It also undoes draws from generators, at the end of a `with`, and derives seeds from other seeds.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


def pack(state: torch.Tensor) -> str:
    """The state of a generator as text.  It compresses well: half of it is zeros, as each 32-bit word takes 64 bits."""
    return base64.b85encode(zlib.compress(_columns(state, 8).numpy().tobytes(), 1)).decode()


def unpack(text: str) -> torch.Tensor:
    """The state from which pack() made the text.

    Raises:
        ValueError: pack() has not made this text.
    """
    try:
        data = zlib.decompress(base64.b85decode(text))
    except (ValueError, binascii.Error, zlib.error) as error:
        raise ValueError(f"a generator's state is damaged ({error}). Load an earlier state.") from None
    return _columns(torch.frombuffer(bytearray(data), dtype=torch.uint8), len(data) // 8)


def _columns(data: torch.Tensor, width: int) -> torch.Tensor:
    """The bytes of a table, `width` a row, column by column, so that equal bytes lie together."""
    return data.reshape(-1, width).T.contiguous().reshape(-1) if len(data) % 8 == 0 else data


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

    The `with` gets a function.  If the generator has come to its former state again when that is called, it keeps what
    it draws from then on.
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
