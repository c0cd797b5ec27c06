"""The seeds of an iterator and its workers: drawn, or taken from a loaded state.

They are drawn where torch draws them: begin_iterator() in of_torch.py runs torch's own __init__, which first begins the
sampler, and then draws the base seed.

A worker seeds Python, NumPy and torch by the base seed and its number when it starts: seed_worker() in
worker/random_states.py.  Persistent workers start once, and draw on in later epochs.  If each sample has its own seed,
_seed() there sets it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shmloader.resume.generators import mix, undrawn
from shmloader.resume.place import Place
from shmloader.resume.sampler_generators import restore_sampling
from shmloader.resume.samplers import samplers_of
from shmloader.worker.fetch import Left

_MOST_SEED = (1 << 63) - 1


def begin_iterator(place: Place, begin: Callable[[], Any]) -> tuple[int | None, int]:
    """Begin an iterator of torch's class.  It draws a base seed, unless the loaded state has one.

    Args:
        place: The place of the loader whose iterator it is.
        begin: Begins it.

    Returns:
        The base seed of the state, None if it was drawn; and how many epochs began with it before this one.
    """
    loader, start = place.loader, place.starting()
    if start is None:
        begin()
        return None, 0
    if start.base_seed is None:
        restore_sampling(loader, start)
        begin()
        return None, 0
    with undrawn(loader.generator):
        begin()
    restore_sampling(loader, start)
    return start.base_seed, start.served


def seed_of_workers(place: Place, base_seed: int) -> int:
    """The seed of the workers that start now, to which each adds its number: the base seed, as in torch.

    A small state cannot record what the workers have drawn.  So after the first batch the seed follows from the base
    seed, the place and the rank.
    """
    start = place.loaded
    if start is None or start.base_seed is None or not (start.served or start.batches):
        return base_seed
    rank, _ = samplers_of(place.loader).ranks
    return mix(mix(mix(base_seed, start.served), start.samples), rank) & _MOST_SEED


def left_of_streams(place: Place) -> list[Left] | None:
    """The place of each worker's stream in the epoch that is about to begin; None: they start at the beginning."""
    start = place.loaded
    if start is None or not start.streams:
        return None
    return [
        Left(stream["samples"], stream["ended"], stream["state"], tuple(stream["errors"]), stream["batches"] > 0)
        for stream in start.streams
    ]
