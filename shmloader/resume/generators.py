"""A generator's state as text: some 3,200 characters, for what goes into a checkpoint should be JSON."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def pack(state: torch.Tensor) -> str:
    """The state of a generator as text.  Half of it is zero: the words of 32 bits in it take 64 each."""
    return base64.b85encode(zlib.compress(_columns(state, 8).numpy().tobytes(), 1)).decode()


def unpack(text: str) -> torch.Tensor:
    """The state that pack() was given.

    Raises:
        ValueError: It was not given this.
    """
    try:
        data = zlib.decompress(base64.b85decode(text))
    except (ValueError, binascii.Error, zlib.error) as error:
        raise ValueError(f"a generator's state is damaged: {error}") from None
    return _columns(torch.frombuffer(bytearray(data), dtype=torch.uint8), len(data) // 8)


def _columns(data: torch.Tensor, width: int) -> torch.Tensor:
    """The bytes of a table, `width` a row, column by column, so that equal ones lie together."""
    return data.reshape(-1, width).T.contiguous().reshape(-1) if len(data) % 8 == 0 else data


def seed_drawn_from(state: torch.Tensor) -> int:
    """The seed that torch's RandomSampler draws from a generator in this state, which stays as it is."""
    generator = torch.Generator()
    generator.set_state(state)
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def draw_a_seed() -> None:
    """Leave the global generator where a RandomSampler leaves it that draws its seed from there."""
    torch.empty((), dtype=torch.int64).random_()


@contextmanager
def as_global(text: str | None) -> Iterator[None]:
    """Meanwhile, torch's global generator is in this state, if one is given; then it is where it was."""
    now = torch.get_rng_state()
    try:
        if text is not None:
            torch.set_rng_state(unpack(text))
        yield
    finally:
        torch.set_rng_state(now)


@contextmanager
def undrawn_if_it_fails(generator: torch.Generator | None) -> Iterator[None]:
    """What was drawn meanwhile from this generator, and from the global one, was not, where an error comes out."""
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
    """Whatever is drawn meanwhile from this generator, and from the global one, was not."""
    of_loader = None if generator is None else generator.get_state()
    with as_global(None):
        yield
    if generator is not None and of_loader is not None:
        generator.set_state(of_loader)
