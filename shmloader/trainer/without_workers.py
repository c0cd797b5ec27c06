"""A loader without workers: torch's iterator makes its batches, and the epoch counts the batches handed out.

A batch counts when it is made, or when an exception of the dataset comes in its place.  A Ctrl-C is neither: the index
stays pending, and the next call makes that batch.  Between the count and the return of next() there are lines of
torch's, and a Ctrl-C there loses the batch, as it does in torch.

Threads may share the iterator.  They draw one after the other, and each makes the batch of the index that it has drawn.
While a batch is made, the dataset or the collate function may ask for the next one: some replace a batch in which no
sample is left.  So an index of which a batch is being made is not given again.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import IterableDataset

from shmloader.options import Options
from shmloader.private import of_torch, replaced
from shmloader.protocols.user_objects import load_state
from shmloader.resume.dataset_epochs import follow, set_epoch_again
from shmloader.resume.epoch import Epoch, Source, next_epoch_of
from shmloader.resume.place import place_of
from shmloader.resume.sampler_generators import Generators
from shmloader.resume.sampler_states import Answer
from shmloader.resume.samplers import Samplers, is_known, sampler_of
from shmloader.resume.state import State
from shmloader.system.own_lock import OwnLock
from shmloader.trainer.conductor import begin_iterator, left_of_streams
from shmloader.trainer.fetcher import OurFetcher, fetcher_of, samples_of
from shmloader.trainer.schedule import warn_if_all_dropped
from shmloader.worker.fetch import Left, pass_over, restore_stream, state_of_stream, state_when_fresh
from shmloader.worker.their_fetcher import TheirStream


def without_workers(loader: Any, options: Options, make: Callable[[], Any]) -> Any:
    """Begin torch's iterator of a loader without workers, at the place that was loaded.

    Args:
        loader: The loader.
        options: Its options.
        make: Makes the iterator.
    """
    first = _First(loader, make)
    place = place_of(loader)
    streams = isinstance(loader.dataset, IterableDataset)
    left = next(iter(left_of_streams(place) or []), None)
    if streams and place.current is not None and place.current.fresh is not None:
        load_state(loader.dataset, place.current.fresh)
        set_epoch_again(loader.dataset)  # because the state may have another epoch
    carried, fresh = _state_before(loader.dataset) if streams else [], None
    if streams and (left is None or not left.ended):
        fresh = state_when_fresh(loader.dataset, left)
        restore_stream(loader.dataset, left)
    base_seed, epochs_before = begin_iterator(place, first.make)
    iterator, returned = first.iterator, first.returned
    if not isinstance(iterator, of_torch._SingleProcessDataLoaderIter):  # of a class with iterators of its own
        return iterator
    if base_seed is not None:
        iterator._base_seed = base_seed
    start = place.loaded if place.loaded is not None and place.loaded.begun else None
    epoch = next_epoch_of(place, iterator._base_seed, epochs_before, int(streams))
    iterator.epoch = epoch
    if streams:
        epoch.carried, epoch.fresh = carried, fresh
        iterator._dataset_fetcher = _Streaming(loader, iterator._dataset_fetcher, epoch, left)
        place.begin(epoch)
        return returned
    epoch.follows = follow(epoch, loader.dataset)
    if base_seed is not None and start is None:  # the state was loaded after torch had made the sampler's iterator
        first.make_again(place.loaded)
    iterator._sampler_iter = _Indices(loader, iterator._sampler_iter, epoch, start, first.before)
    iterator._dataset_fetcher = fetcher_of(loader, options, iterator._dataset_fetcher, epoch)
    place.begin(epoch)
    return returned


class _First:
    """Makes torch's iterator, which makes the sampler's, and sees whether that has drawn already.

    torch's samplers draw when they are asked for the first index.  But a sampler whose `__iter__` is no generator may
    draw there.  If it has a state of its own, it does not matter, because it does not draw the same again.  Only if it
    has drawn is it asked whether its state_dict() is a stub: NOTE [ Sampler states ], 3.

    Args:
        loader: The loader.
        make: Makes the iterator.

    Attributes:
        iterator: torch's iterator.
        returned: The iterator for the user: torch's, or what other code has wrapped around it.
        before: The states of the generators before the sampler has drawn; None: it has not drawn.
    """

    iterator: Any
    returned: Any

    def __init__(self, loader: Any, make: Callable[[], Any]) -> None:
        self._loader = loader
        self._make_returned = make
        self.before: Generators | None = None

    def make(self) -> None:
        """Make it."""
        loader, sampler = self._loader, sampler_of(self._loader)
        if is_known(sampler):
            self._make()
            return
        samplers = Samplers(sampler)
        before = Generators(samplers, loader.generator)
        self._make()
        if before.were_drawn_from(getattr(self.iterator, "_base_seed", None)):
            keeper = samplers.keeper
            self.before = before if keeper is None or Answer(keeper).is_none else None

    def _make(self) -> None:
        with replaced.noting(self._loader) as made:
            self.iterator = self.returned = self._make_returned()
        if made and not isinstance(self.returned, of_torch._SingleProcessDataLoaderIter):
            self.iterator = made[-1]

    def make_again(self, loaded: State | None) -> None:
        """Make the sampler's iterator once more, if it depends on what was restored since.

        It has drawn from generators, or a state was loaded into the sampler, which may read that in its `__iter__`.
        """
        sampler = sampler_of(self._loader)
        if self.before is not None:
            self.before = Generators(Samplers(sampler), self._loader.generator)
        elif loaded is None or loaded.sampler_state is None:
            return
        self.iterator._sampler_iter = iter(sampler)


class _Indices:
    """The sampler's indices, which the epoch records.

    Args:
        loader: The loader.
        indices: torch's iterator over the sampler.
        epoch: The epoch.  It keeps an index until the index's batch is counted.
        start: Where in the epoch to begin; None: at its beginning.
        before: The states of the generators before the sampler drew in its iter(); None: it has not drawn yet.
    """

    def __init__(
        self,
        loader: Any,
        indices: Iterator[Any],
        epoch: Epoch,
        start: State | None,
        before: Generators | None,
    ) -> None:
        self._loader = weakref.ref(loader)
        self._epoch = epoch
        self._failed = False
        self._batched = loader.batch_sampler is not None
        self._drawing = OwnLock()
        place = place_of(loader)
        begun = (indices, before) if start is None else (None, None)
        given = sampler_of(loader), loader.generator, start, *begun, place.another(), place.saving
        self._source = functools.partial(Source, *given)
        if before is not None or (start is not None and start.batches):
            self._begin()

    def _begin(self) -> None:
        """Record the generators' states, and begin to draw.  As in torch, that is when the first batch is needed.

        If the sampler draws in its iter(), or batches are skipped, it is at iter().
        """
        self._source().belongs_to(self._epoch)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self._drawing.here:
            if self._epoch.source is None:
                self._try_to_begin()
            try:
                return self._epoch.index(self._count)
            except StopIteration:
                warn_if_all_dropped(self._loader(), self._epoch)
                raise

    def _count(self, index: Any) -> int:
        return samples_of(index, self._batched)

    def _try_to_begin(self) -> None:
        """Begin.  If that raises, the next call tries once more, because a signal's handler may have raised.

        If it raises again, the sampler has failed.  Then it counts as ended, as in torch.  Otherwise a loop that
        continues after errors would get the sampler's error for ever.
        """
        try:
            self._begin()
        except Exception:
            if self._failed:
                raise StopIteration from None
            self._failed = True
            raise


class _Streaming(OurFetcher):
    """Makes batches as torch's fetcher does, of a stream, and counts them."""

    def __init__(self, loader: Any, fetcher: Any, epoch: Epoch, left: Left | None) -> None:
        self._fetcher, self._loader, self._epoch = fetcher, weakref.ref(loader), epoch
        self._size = loader.batch_size or 1
        dataset = loader.dataset
        ended = left is not None and left.ended
        if ended:
            restore_stream(dataset, left)  # after iter(), because a dataset may count its epochs there
        self._theirs: TheirStream | None = None
        if replaced.fetcher(streams=True) is not None:
            self._theirs = stream = TheirStream(dataset, fetcher, left)
            epoch.states = lambda: [stream.state() or None]
            return
        fetcher.ended = ended
        samples = fetcher.dataset_iter
        given = fetcher.dataset_iter = _Given(iter(()) if ended else pass_over(dataset, samples, left), left)
        epoch.states = lambda: [
            state_of_stream(dataset, samples, fetcher.ended or given.ended, given.count, given.errors) or None
        ]

    def fetch(self, index: Any) -> Any:
        """The next batch."""
        try:
            batch = self._fetcher.fetch(index) if self._theirs is None else self._theirs(index)
        except StopIteration:
            self._epoch.stopped = True
            warn_if_all_dropped(self._loader(), self._epoch)
            raise
        except Exception:
            self._epoch.handed_out.add(self._size)
            raise
        self._epoch.handed_out.add(self._size)
        return batch


class _Given:
    """A stream's iterator that counts the samples that it gives, and the errors between them.

    Args:
        samples: The dataset's iterator.
        start: The place from which it continues; None: its beginning.

    Attributes:
        count: How many samples it has given in this epoch.
        errors: For each exception, how many samples came before it.
        ended: Whether the last next() found its end.
    """

    def __init__(self, samples: Iterator[Any], start: Left | None) -> None:
        self._samples = samples
        self.count = 0 if start is None else start.samples
        self.errors = [] if start is None else list(start.errors)
        self.ended = start is not None and start.ended

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            sample = next(self._samples)
        except StopIteration:
            self.ended = True
            raise
        except Exception:
            self.errors.append(self.count)
            raise
        self.count += 1
        return sample


def _state_before(dataset: Any) -> list[bytes | None]:
    """A stream's state before it begins; None if it has none yet."""
    with contextlib.suppress(Exception):
        return [state_of_stream(dataset, None, False, 0, ()) or None]
    return [None]
