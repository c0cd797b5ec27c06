"""DataLoader: torch's, but its batches travel through a ring of shared memory."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from multiprocessing.context import BaseContext
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

import torch
import torch.utils.data
from torch.utils.data import Dataset, Sampler

from shmloader import iterators
from shmloader.checks import read_elsewhere, requirements
from shmloader.checks.requirements import check_requirements
from shmloader.far_workers import with_far
from shmloader.measured import Measured, all_stats
from shmloader.options import DEFAULTS, Options, OptionsOf
from shmloader.private import replaced
from shmloader.resume.dataset_epochs import listen
from shmloader.resume.place import place_of
from shmloader.system.cleanup import ClosedByWith, take_all
from shmloader.system.limits import have_other_cores, hides_cores
from shmloader.system.user_line import warn_once

if requirements.why_not_here() is None:  # otherwise there are no extensions, or a private name is missing
    from shmloader.statistics.account import begun, close_trace
    from shmloader.statistics.metrics import PORT, serve_once
    from shmloader.trainer.sample_pool import pool_of

T_co = TypeVar("T_co", covariant=True)


def _measured(loader: Any, make: Callable[[], Any]) -> Any:
    """Begin an epoch with what this makes, measure it, and serve the metrics: NOTE [ Metrics ]."""
    iterator = begun(loader, make)
    if PORT in os.environ:
        serve_once(all_stats)
    return iterator


# Generic is a separate base, because torch's class may gain type parameters.
class DataLoader(torch.utils.data.DataLoader, Measured, ClosedByWith, Generic[T_co]):  # type: ignore[type-arg]
    """Loads batches in worker processes, through a ring of shared memory.

    A drop-in replacement for `torch.utils.data.DataLoader`: the same arguments, and from the same seed the same batches
    in the same order, bit for bit.  Each batch is made of tensors over the slot that a worker collated it into, without
    a copy.

    A loader with workers that cannot ride the ring (DataPipes, another platform, a torch that lacks a name) loads as
    torch's does and gives a RuntimeWarning.  See `rides_ring` and `why_not_ring`.

    Args:
        dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, pin_memory, drop_last, timeout,
        worker_init_fn, multiprocessing_context, generator, prefetch_factor, persistent_workers, pin_memory_device,
        in_order: As in torch.

        spare_slots: How many delivered batches may lie in the ring at once (default 2: the one in use and the one
            before it).  Further ones are handed out as copies.  Each costs one slot of shared memory.

        max_ring_bytes: The most bytes of memory that the ring's slots may take (default None: what the machine has).  A
            batch that needs more is a MemoryError in its place, before any memory is taken for it.

        on_worker_death: What happens when a worker dies.  "raise" (default): torch's error, which also has the batch
            that the worker held.  "respawn": another process replaces it and makes that batch again, in its place in
            the order.  The values are the same, because it continues from the same states of `random`, `numpy.random`
            and `torch`.  A cache or a generator that the dataset keeps starts from the beginning.  The third death in a
            row over one batch raises.  So does any death with an IterableDataset, whose place is lost.  With `timeout`,
            a worker that holds a batch for longer is killed and replaced as well.

        workers_outlive_signals: Whether workers survive SIGTERM, SIGINT and SIGHUP to the whole process group (default
            True).  torchrun, Slurm, Kubernetes and terminals send these, and you can catch them, take more batches and
            save.  Workers end with the trainer, or when it ends them.  A handler that `worker_init_fn` or the dataset
            sets in a worker counts.  With False, and off the ring, such a signal ends workers, as in torch.

        schedule: Which worker makes which batch.  "round_robin" (default): as in torch, worker k % num_workers makes
            batch k, so a slow batch holds up the others.  "steal": a free worker makes the next one; batches still come
            in order.  `random`, `numpy.random` and torch's generator are then seeded before each sample, from the
            loader's seed, the epoch and the sample's place in its order (about 6 us a sample).  So batches are the same
            for any number of workers, and for none, but random samples differ from torch's.  More small batches are
            under way: up to 4 * num_workers * prefetch_factor, while they take 256 MiB or less in all.

        chunk_size: How many samples a worker makes at once (default None: a whole batch).  A batch is cut into chunks
            of this many rows, and several workers write them into the one slot at the same time.  It needs a map-style
            dataset with automatic batching, samples that are alike in structure (the order of keys included), dtype and
            shape, of any classes, and `default_collate` or a collate function that is marked with `shmloader.row_wise`.
            num_workers * prefetch_factor chunks are under way, more if batches are small.  With "steal", chunks change
            no value; with "round_robin", random draws depend on them.  Without workers this does nothing.

        group_by: Lets one worker read all samples that lie in one place of the storage (default None: no grouping).
            "place": the dataset's `__place__(index)` returns the place of a sample; or give a function of an index.
            The loader cuts num_workers * prefetch_factor batches at a time, and a worker gets the places that it had
            before, unless the others would wait for it.  Values and order stay the same.  It needs what `chunk_size`
            needs, and has twice as many batches under way as without it.  See docs/places.md.

        device: Where batches are delivered (default None: on the CPU, without a copy).  With an accelerator ("cuda",
            "cuda:1", a torch.device), a thread copies each batch there on its own stream, from page-locked slots, also
            without `pin_memory`.  Your current stream waits for the copy; your code does not.  Containers keep their
            types, objects with a `.to()` move themselves, and everything else stays as it is.  "cpu" is plain delivery.

        on_device: A function of a batch, called on the device after the copy, on the stream and in the thread that
            copies (default None).  Its result is delivered.  Needs `device`.  See `shmloader.transforms`.

        sample_seeds: Whether `random`, `numpy.random` and torch's generator are seeded before each sample, as with
            "steal" (default False: workers are seeded once, as in torch).  So augmentation is the same for any number
            of workers and for none, and continues to the bit when a loader is resumed.  Without workers, the trainer's
            own draws do not change.  Ranks with the same seed do not augment alike, because a sample is seeded by its
            place in the order of all ranks.  It needs a map-style dataset.

        on_bad_sample: What happens when a sample's `__getitem__` raises.  "raise" (default): the exception, in place of
            the batch, as in torch.  "skip": the sample is replaced by another one that the sampler may give.  The
            choice depends only on the loader's seed, the epoch and the index, so batches are the same for any number of
            workers and after a resume.  The first time gives a RuntimeWarning; see `bad_samples`.  "skip:20" lets an
            epoch skip 20 samples.  "skip:0.05" lets it skip this share of the samples that it has asked for until then,
            and at least 10; "skip" stands for "skip:0.001".  One more is a RuntimeError with the first tracebacks.
            Needs a map-style dataset.

        look_ahead: How many batches' indices a worker reads before it makes them: the one that it makes now, and those
            that follow it, up to `prefetch_factor` (default None: 2 for a dataset with `__prefetch__`).  The dataset's
            `__prefetch__(indices)` is called with each batch's indices once, and starts to read them.  0 never calls
            it.  `Shards`, `images.ImageFolder` and `images.fuse` over files have that method.  With "steal", and
            without workers, only the indices of the batch that is made now are known.  Needs a map-style dataset.  See
            docs/look-ahead.md.

        far_workers: Workers on other machines, beside the `num_workers` local ones (default None): a
            `shmloader.ray.Workers`.  They make batches as local workers do, bit for bit, and `num_workers` then says
            how many there are in all.  Local workers, and the processes that receive far batches, start by a fork
            server unless `multiprocessing_context` is spawn.  Needs a map-style dataset that can be pickled.  See
            docs/far-workers.md.

    Raises:
        ValueError: An argument is out of its range; in torch's words if the argument is torch's.
        RuntimeError: You gave an option that only the ring can honour, and this loader cannot ride it.

    Example:
        >>> dataset = TensorDataset(torch.arange(10).float())
        >>> with DataLoader(dataset, batch_size=4, num_workers=2, on_worker_death="respawn") as loader:
        ...     for (batch,) in loader:
        ...         print(batch.tolist())
        [0.0, 1.0, 2.0, 3.0]
        [4.0, 5.0, 6.0, 7.0]
        [8.0, 9.0]
    """

    options: Options = OptionsOf()  # type: ignore[assignment]
    _shmloader_options = Options()  # of a subclass that does not call our __init__

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        spare_slots: int = 2,
        max_ring_bytes: int | None = None,
        on_worker_death: str = "raise",
        workers_outlive_signals: bool = True,
        schedule: str = "round_robin",
        chunk_size: int | None = None,
        group_by: Callable[[Any], Any] | str | None = None,
        device: torch.device | str | None = None,
        on_device: Callable[[Any], Any] | None = None,
        sample_seeds: bool = False,
        on_bad_sample: str = "raise",
        look_ahead: int | None = None,
        far_workers: Any = None,
    ) -> None:
        options = Options(**{name: value for name, value in locals().items() if name in DEFAULTS})  # no other local yet
        options.give_to(self)
        num_workers = with_far(num_workers, far_workers)
        if far_workers is not None or (num_workers and hides_cores()):
            vars(self)["check_worker_number_rationality"] = have_other_cores
        super().__init__(  # by name, because others replace torch's __init__ by one that gives some of them itself
            dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            drop_last=drop_last,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        check_requirements(self, options)
        if options.skips_bad_samples and requirements.why_not_here() is None:
            pool_of(self)
        listen(self.dataset)
        if num_workers and (why := requirements.why_not(self)):
            requirements.refuse(self, why)
        read_elsewhere.enrol(self)
        self._goes_through_others()  # other code's method may be called before iter() is

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Warn at once if a class takes its iterators from another class, because it will never ride the ring.

        Its `__iter__` may come from there too, and then no code of ours would run later that could warn.
        """
        super().__init_subclass__(**kwargs)
        if "_get_iterator" not in vars(cls) and (why := requirements.why_not_of(cls)):
            warn_once(f"loaders of the class {cls.__name__} will not ride shmloader's ring. {why}")

    def __setattr__(self, attr: str, val: Any) -> None:
        """Refuse another value for an option.  In a class derived from ours, the attribute is its own."""
        if attr in DEFAULTS and type(self) is DataLoader and vars(self).get(attr, val) is not val:
            raise ValueError(
                f"{attr} cannot be set on a loader that is made already, but got {attr}={val!r}. Make another loader: "
                f"DataLoader(..., {attr}={val!r})."
            )
        super().__setattr__(attr, val)

    @property
    def rides_ring(self) -> bool:
        """Whether the batches of this loader's next iterator travel through the ring."""
        return self.why_not_ring() is None

    def why_not_ring(self) -> str | None:
        """The reason and a remedy if they do not; None if they do.

        Example:
            >>> DataLoader(range(4)).why_not_ring()
            'num_workers is 0, so this process makes the batches and needs no ring'
        """
        return read_elsewhere.why_not(self)

    # ------------------------------------------------------------------- where iterators come from: NOTE [ Iterators ]

    def __iter__(self) -> Any:
        rides = iterators.rides(self)
        if self._goes_through_others() and requirements.why_never(type(self)) is None:
            iterators.end_workers_that_cannot_go_on(self)
            return super().__iter__()
        if rides or Options.of(self).device is not None:
            return self._begin(functools.partial(iterators.begin_epoch, self, rides, self._ask_torch))
        make: Callable[[], Any] = super().__iter__
        if not self.num_workers and requirements.why_not_of(type(self)) is None:
            # torch's profiler knows such a loader by its __iter__ that calls _get_iterator, without ours between them
            asked = SimpleNamespace(persistent_workers=False, num_workers=0, _get_iterator=super()._get_iterator)
            make = functools.partial(torch.utils.data.DataLoader.__iter__, asked)  # type: ignore[arg-type]
        return self._begin(functools.partial(iterators.torchs, self, make))

    def _get_iterator(self) -> Any:
        """torch's hook: another iterator, for subclasses that ask for one, and for torch's own `__iter__`."""
        rides = iterators.rides(self)
        is_torchs = self.num_workers and not rides and Options.of(self).device is None
        if is_torchs or requirements.why_never(type(self)) is not None:
            return super()._get_iterator()
        if replaced.is_replaced("_get_iterator"):
            replaced.come_back(_asked_by_torchs)
            if rides:
                return read_elsewhere.comes_back(self, super()._get_iterator)
        return self._begin(functools.partial(iterators.another, self, rides, self._ask_torch))

    def _goes_through_others(self) -> bool:
        """Whether other code's method makes iterators: a subclass's, this loader's own, or one that replaces torch's.

        torch's `__iter__` leads to it.  If it stands for a `_get_iterator`, torch's own returns ours from now on.
        PyTorch Geometric's loaders wrap the result of super()._get_iterator().
        """
        hooked = (
            "_get_iterator" in vars(self)
            or type(self)._get_iterator is not _GET_ITERATOR
            or replaced.is_replaced("_get_iterator")
        )
        if hooked:
            replaced.come_back(_asked_by_torchs)
        above = getattr(super().__iter__, "__func__", None)
        return hooked or above is not torch.utils.data.DataLoader.__iter__ or replaced.is_replaced("__iter__")

    def _ask_torch(self) -> Any:
        """An iterator of torch's, or of the class from which this one takes its iterators."""
        return self._get_iterator() if requirements.why_not_of(type(self)) else super()._get_iterator()

    def _begin(self, make: Callable[[], Any]) -> Any:
        """Begin an epoch with what this makes.  Without a ring in this process, nothing is measured."""
        if requirements.why_not_here() is not None:
            return make()
        return iterators.keep_loaded_state(self, functools.partial(_measured, self, make))

    def state_dict(self) -> dict[str, Any]:
        """The user's place: what `load_state_dict` needs to resume there, also in another process.

        It counts the batches that you have received, and not those that are ready.  You may call it at any time: before
        the first epoch, in one, at its end, in a signal handler.  It starts nothing, draws from no generator, asks no
        worker, and takes some microseconds.  The keys are always the same, and the values are JSON types.

        With a sampler that is Sequential, Random without a generator or Distributed, in batches or not, the state is
        the same for all ranks and less than 1 KB; with a generator of yours, less than 8 KB.  With a sampler that has
        its own `state_dict`, the state belongs to this rank.  docs/resume.md has more.

        Raises:
            RuntimeError: The loader has workers and does not ride the ring, so nothing counts its batches.
        """
        place = place_of(self)
        if place.counts_with != self.num_workers:  # otherwise it was checked already that its batches are counted
            if self._is_for_super("state_dict"):
                return super().state_dict()  # type: ignore[misc,no-any-return]
            place.counts_with = self.num_workers
        return place.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Have the next `iter()` resume from a state.

        The part of the epoch that was delivered is skipped without loading a sample.  If each sample is seeded
        (`schedule="steal"`, `sample_seeds=True`), the rest is the same to the bit, for any number of workers, also for
        none.  Otherwise only the indices are, and workers get new seeds from the epoch's seed and the place.  After the
        end of an epoch, the next one starts.  Load into a loader with the same dataset and the same kind of sampler.

        Args:
            state_dict: The result of `state_dict`.  It is not changed.

        Raises:
            ValueError: It is from a loader with another kind of sampler, or from another number of ranks without
                `shmloader.DistributedSampler`, or from another rank; or it is damaged.
            RuntimeError: As in `state_dict`.
        """
        if self._is_for_super("load_state_dict"):
            super().load_state_dict(state_dict)  # type: ignore[misc]
        else:
            place_of(self).load(state_dict)

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch that the next `iter()` begins, and call `set_epoch` of the sampler and dataset.

        A worker's copy of the dataset has it before the first sample of that epoch is made, also if workers persist.
        The same happens if you call the dataset's own `set_epoch`.  Batches keep the number that the dataset had when
        their indices were drawn.  So in mid-epoch, only batches that are drawn later get another one; a stream keeps
        its number to its end.  torch's Subset, ConcatDataset and other wrappers have no `set_epoch`, so it is called on
        the datasets inside them, once on each.  docs/resume.md has more.

        Without it, epochs are counted from 0.  After loading a state, call it with the state's epoch, or not at all.
        With another number, that epoch starts at its beginning, with a RuntimeWarning.
        """
        place_of(self).set_epoch(epoch)

    def _is_for_super(self, name: str) -> bool:
        """Whether to call super()'s method: batches come from another class's iterators.

        Raises:
            RuntimeError: Nothing counts the batches.
        """
        why = requirements.why_never(type(self))
        if why is not None and hasattr(super(), name):
            return True
        if why is None and self.num_workers:
            why = read_elsewhere.why_not(self)
        if why is not None:
            raise RuntimeError(
                f"{name}() needs a loader that rides shmloader's ring, or one without workers. Otherwise nothing "
                f"counts the batches that you receive. This loader does not ride it: {why}"
            )
        return False

    def close(self) -> None:
        """End the workers of all iterators of this loader and give their memory back.

        Delivered batches stay as they are.  Iterating again starts new workers.
        """
        # It may be called from a __del__ at exit: names of this module may be None, and the workers have ended.
        if sys is None or sys.is_finalizing():
            return
        steps: list[Callable[[Any], object]] = [type(self)._end_workers]
        if requirements.why_not_here() is None:
            steps += [close_trace]
        take_all(functools.partial(step, self) for step in steps)

    def _end_workers(self) -> None:
        """End the workers because the loader itself needs others.  A trace continues with those."""
        try:
            take_all([iterator.close for iterator in iterators.living(self)])
        finally:
            self._iterator = None


_GET_ITERATOR = DataLoader._get_iterator  # other code may set hooks on our class, too


def _asked_by_torchs(loader: Any) -> Any:
    """The iterator of a loader with workers for which torch's own `_get_iterator` was called; None: torch makes it."""
    if not isinstance(loader, DataLoader) or requirements.why_not(loader) is not None:
        return None
    return loader._begin(functools.partial(iterators.another, loader, iterators.rides(loader), loader._ask_torch))
