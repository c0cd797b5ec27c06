"""Generators of random numbers that belong to a sample: `shmloader.sample_generator()`."""

from __future__ import annotations

import random
from contextvars import ContextVar
from typing import Any, Literal, overload

import numpy
import torch

__all__ = ["AT_HAND", "UNSEEDED", "Draws", "sample_generator"]


class Draws:
    """The generators of one sample, each made when it is first asked for.

    Args:
        seed: The sample's; None: it has none, and must not draw from the process's generators either.
    """

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self._made: dict[str, Any] = {}

    def generator(self, kind: str) -> Any:
        """See sample_generator()."""
        if self.seed is None:
            raise RuntimeError(
                "sample_generator() needs sample_seeds=True where samples are loaded side by side. Without it a sample "
                "has no seed, and its draws would depend on which sample is quicker. Give the loader sample_seeds=True."
            )
        if kind not in self._made:
            self._made[kind] = _seeded(kind, self.seed)
        return self._made[kind]


UNSEEDED = Draws(None)

# Of the sample that this thread, or this coroutine, makes; None: samples have no seeds of their own.
AT_HAND: ContextVar[Draws | None] = ContextVar("shmloader_sample", default=None)


@overload
def sample_generator(kind: Literal["torch"] = "torch") -> torch.Generator: ...
@overload
def sample_generator(kind: Literal["numpy"]) -> numpy.random.Generator: ...
@overload
def sample_generator(kind: Literal["random"]) -> random.Random: ...
def sample_generator(kind: str = "torch") -> Any:
    """The generator of random numbers of the sample that is being made.

    With `sample_seeds=True` (or `schedule="steal"`) each sample has a seed, which depends on the loader's seed, the
    epoch and the sample's place in the epoch's order.  So the draws are the same for any number of workers and threads,
    in whatever order samples are made, and after a resume.  A second call for one sample returns the same generator.

    Without seeds, and outside a loader, it is a new generator, seeded by a draw of torch's own.

    Args:
        kind: "torch" (default): a torch.Generator.  "numpy": a numpy.random.Generator.  "random": a random.Random.

    Raises:
        ValueError: There is no such kind.
        RuntimeError: Samples are loaded side by side (`worker_threads`, `async def __getitem__`) and have no seeds.

    Example:
        >>> class Flipped(Dataset):
        ...     def __getitem__(self, index):
        ...         image = read(index)
        ...         return image.flip(-1) if torch.rand((), generator=sample_generator()) < 0.5 else image
    """
    if kind not in ("torch", "numpy", "random"):
        raise ValueError(f"sample_generator() knows 'torch', 'numpy' and 'random', but got {kind!r}. Name one of them.")
    draws = AT_HAND.get()
    if draws is not None:
        return draws.generator(kind)
    return _seeded(kind, int(torch.randint(1 << 62, (), dtype=torch.int64, device="cpu")))


def _seeded(kind: str, seed: int) -> Any:
    if kind == "torch":
        return torch.Generator().manual_seed(seed)
    return numpy.random.default_rng(seed) if kind == "numpy" else random.Random(seed)
