"""A generator's state as text of about 3,200 characters, because a checkpoint should hold JSON types."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def pack(state: torch.Tensor) -> str:
    """The state of a generator as text.  Half of it is zeros, because its 32-bit words take 64 bits each."""
    return base64.b85encode(zlib.compress(_columns(state, 8).numpy().tobytes(), 1)).decode()


def unpack(text: str) -> torch.Tensor:
    """The state from which pack() made the text.

    Raises:
        ValueError: pack() has not made this text.
    """
    try:
        data = zlib.decompress(base64.b85decode(text))
    except (ValueError, binascii.Error, zlib.error) as error:
        raise ValueError(f"a generator's state is damaged: {error}") from None
    return _columns(torch.frombuffer(bytearray(data), dtype=torch.uint8), len(data) // 8)


def _columns(data: torch.Tensor, width: int) -> torch.Tensor:
    """The bytes of a table, `width` a row, column by column, so that equal bytes lie together."""
    return data.reshape(-1, width).T.contiguous().reshape(-1) if len(data) % 8 == 0 else data


def seed_drawn_from(state: torch.Tensor) -> int:
    """The seed that torch's RandomSampler draws from a generator in this state.  The state does not change."""
    generator = torch.Generator()
    generator.set_state(state)
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def draw_a_seed() -> None:
    """Move the global generator as a RandomSampler moves it that draws its seed from there."""
    torch.empty((), dtype=torch.int64).random_()


@contextmanager
def as_global(text: str | None) -> Iterator[None]:
    """While this is open, torch's global generator has this state, if one is given; then it gets its own back."""
    now = torch.get_rng_state()
    try:
        if text is not None:
            torch.set_rng_state(unpack(text))
        yield
    finally:
        torch.set_rng_state(now)


@contextmanager
def undrawn_if_it_fails(generator: torch.Generator | None) -> Iterator[None]:
    """Undo the draws from this generator, and from the global one, if an error comes out."""
    of_loader, now = None if generator is None else generator.get_state(), torch.get_rng_state()
    try:
        yield
    except BaseException:
        torch.set_rng_state(now)
        if generator is not None and of_loader is not None:
            generator.set_state(of_loader)
        raise


@contextmanager
def undrawn(generator: torch.Generator | None) -> Iterator[None]:
    """Undo the draws from this generator, and from the global one, at the end."""
    of_loader = None if generator is None else generator.get_state()
    with as_global(None):
        yield
    if generator is not None and of_loader is not None:
        generator.set_state(of_loader)
