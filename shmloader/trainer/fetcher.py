"""Takes the place of torch's fetcher in a loader without workers: it counts the batches that are made.
It adds the options that work with num_workers=0: seeds for each sample, replaced bad samples, look_ahead.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import Any

from shmloader.options import Options
from shmloader.resume.epoch import Epoch
from shmloader.resume.generators import further
from shmloader.resume.samplers import samplers_of
from shmloader.system.own_lock import OwnLock
from shmloader.trainer.bad_samples import Tally
from shmloader.trainer.sample_pool import pool_of
from shmloader.worker import random_states
from shmloader.worker.fetch import Fetch, fetch_from
from shmloader.worker.look_ahead import indices_of, prefetch_of
from shmloader.worker.replace_bad_samples import Skips


class OurFetcher:
    """Takes the place of torch's fetcher.  Attributes that other code reads or sets here are those of that fetcher."""

    _fetcher: Any

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        else:
            setattr(self._fetcher, name, value)

    def __getattr__(self, name: str) -> Any:
        if name == "_fetcher":  # it is missing before __init__
            raise AttributeError(name)
        return getattr(self._fetcher, name)


def samples_of(index: Any, batched: bool) -> int:
    """How many samples are made of what the sampler gave, as TrainerSide.samples_of() counts."""
    if type(index) is list:
        return len(index)
    return operator.length_hint(index, 1) if batched and type(index) is not int else 1


def fetcher_of(loader: Any, options: Options, fetcher: Any, epoch: Epoch) -> OurFetcher:
    """What makes the batches of an epoch of a map-style dataset.

    Args:
        loader: The loader, which has no workers.
        options: Its options.
        fetcher: torch's fetcher, or the one that other code has put in its place.
        epoch: Counts the batches.
    """

    def theirs(index: Any) -> Any:
        return fetcher.fetch(index)  # looked up each time, because other code may set another one

    make: Fetch = theirs
    tally = Tally(loader, options) if options.skips_bad_samples else None
    if tally is not None or options.seeds_samples:
        alone = _one_in_process if options.seeds_samples else _one_at_a_time
        make = alone(_with_options(loader, options, fetcher, epoch, tally))
    if options.look_ahead != 0 and (prefetch := prefetch_of(loader.dataset)) is not None:
        make = _prefetching(make, prefetch, loader.batch_sampler is not None)
    return _Counting(loader, fetcher, make, epoch)


class _Counting(OurFetcher):
    """Makes batches by a function, and counts them."""

    def __init__(self, loader: Any, fetcher: Any, make: Fetch, epoch: Epoch) -> None:
        self._fetcher = fetcher
        self._make = make
        self._epoch = epoch
        self._batched = loader.batch_sampler is not None

    def fetch(self, index: Any) -> Any:
        """The batch of what the sampler gave."""
        samples = samples_of(index, self._batched)  # now, because the dataset may change a list of indices
        mine = None
        try:
            mine = self._epoch.make()
            batch = self._make(index)
            self._epoch.hand_out(mine, samples)
        except Exception:
            self._epoch.hand_out(mine, samples)
            raise
        except BaseException:
            self._epoch.leave(mine)
            raise
        return batch


PATIENCE = 30.0  # seconds

_generators = OwnLock()  # held by the thread that makes a batch whose samples it seeds


def _one_at_a_time(make: Fetch) -> Fetch:
    """Makes batches one at a time, also if threads share the iterator."""
    lock = OwnLock()

    def fetch(index: Any) -> Any:
        with lock.here:
            return make(index)

    return fetch


def _one_in_process(make: Fetch) -> Fetch:
    """Makes batches one at a time of all loaders of this process that seed their samples.

    The generators belong to the process.  So of two threads that make such batches at once, each would draw numbers of
    the other one's seeds, and would later restore a state that the other one had set.

    The thread that makes a batch may wait for this one, because its dataset gets its samples from a loader that is
    iterated over here.  So nobody waits for longer than PATIENCE.
    """
    waits = True

    def fetch(index: Any) -> Any:
        nonlocal waits
        if not waits:
            return make(index)
        seeding = _generators.here
        took: list[bool] = []
        try:
            took.extend(map(seeding.acquire, (True,), (PATIENCE,)))  # one call of C, in which no handler can raise
            if not took[0]:
                waits = False
                _warn_of_shared_generators()
            return make(index)
        finally:
            if took and took[0]:
                seeding.release()

    return fetch


def _warn_of_shared_generators() -> None:
    warnings.warn(
        f"a loader with num_workers=0 that seeds its samples has waited for {PATIENCE:.0f} seconds while another "
        "thread made a batch of such a loader, and now no longer waits. Samples of both may draw each other's numbers, "
        "because the generators belong to the process. Give one of the loaders workers.",
        RuntimeWarning,
        stacklevel=3,
    )


def _with_options(loader: Any, options: Options, fetcher: Any, epoch: Epoch, tally: Tally | None) -> Fetch:
    """Makes batches as torch's fetcher does, but seeds each sample, or replaces bad ones.

    It is not torch's fetcher that does it: that would read all indices of a Subset of a Subset first, and reading an
    index seeds its sample.
    """
    skips = None
    if tally is not None:
        skips = Skips(loader.dataset, pool_of(loader))
        skips.begin(epoch.seed)
    make = fetch_from(fetcher.dataset, fetcher.auto_collation, fetcher.collate_fn, fetcher.drop_last, None, skips)
    if skips is not None and tally is not None:
        make = _reporting(make, skips, tally, epoch, loader.batch_sampler is not None)
    if options.seeds_samples:
        make = _seeding(make, epoch, samplers_of(loader).ranks[1], loader.batch_sampler is not None)
    return make


def _reporting(make: Fetch, skips: Skips, tally: Tally, epoch: Epoch, batched: bool) -> Fetch:
    """Notes the bad samples of each batch."""
    delivered = epoch.handed_out

    def fetch(index: Any) -> Any:
        try:
            return make(index)
        finally:
            if report := skips.report():
                tally.note([report], delivered.samples + samples_of(index, batched), delivered.batches)

    return fetch


def _seeding(make: Fetch, epoch: Epoch, stride: int, batched: bool) -> Fetch:
    """Seeds each sample.  After each batch, the trainer's own generators are in the states of before it."""
    seeded = random_states.seed_all if batched else random_states.seed_one

    def fetch(index: Any) -> Any:
        with random_states.untouched():
            seed = further(epoch.sample_seed, epoch.before * stride)
            return make(seeded(index, seed, 0, stride))

    return fetch


def _prefetching(make: Fetch, prefetch: Callable[[list[Any]], Any], batched: bool) -> Fetch:
    """Gives the dataset's `__prefetch__` the indices of each batch first."""

    def fetch(index: Any) -> Any:
        prefetch(indices_of(index, batched))
        return make(index)

    return fetch
