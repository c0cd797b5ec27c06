"""DataLoader: torch's, but its batches travel through a ring of shared memory."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from multiprocessing.context import BaseContext
from types import TracebackType
from typing import Any, Generic, TypeVar

import torch
import torch.utils.data
from torch.utils.data import Dataset, Sampler

from shmloader import iterators, off_the_ring, read_elsewhere
from shmloader.measured import Measured, serve_metrics
from shmloader.options import Options
from shmloader.requirements import check_requirements
from shmloader.resume import epochs
from shmloader.resume.place import place_of
from shmloader.trainer import start

if off_the_ring.why_not_here() is None:  # otherwise there are no extensions, or names are missing that these build on
    from shmloader.readers.group import leave
    from shmloader.statistics.account import begun, close_trace
    from shmloader.trainer.replacements import pool_of
    from shmloader.trainer.templates import end_template

T_co = TypeVar("T_co", covariant=True)


# Generic stands beside torch's class and not in its brackets, for torch's may take more parameters one day.
class DataLoader(torch.utils.data.DataLoader, Measured, Generic[T_co]):  # type: ignore[type-arg]
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

        ring_memory: Where the ring lies.  "posix": in /dev/shm.  "memfd": in memory that the size of /dev/shm does not
            limit.  "auto" (default): in /dev/shm, and in a memfd if that is too small.

        max_ring_bytes: The most bytes of memory that the ring's slots may take (default None: what the machine has).  A
            batch that needs more is a MemoryError in its place, before any memory is taken for it.

        on_worker_death: What happens when a worker dies.  "raise" (default): torch's error, which also names the batch
            that the worker held.  "respawn": another process takes its place and makes that batch again, in its place
            in the order and with the same values, for it goes on from the same states of `random`, `numpy.random` and
            `torch`.  A cache or a generator that the dataset keeps by itself begins anew.  The third death in a row
            over one batch raises.  So does any death with an IterableDataset, whose position is lost.  With `timeout`,
            a worker that holds a batch for longer is killed and replaced as well.

        workers_outlive_signals: Whether workers go on when SIGTERM, SIGINT or SIGHUP is sent to the whole process group
            (default True), as torchrun, Slurm, Kubernetes and terminals do, so that you can catch it, take more batches
            and save.  Workers end when the trainer ends, or tells them to.  A handler that `worker_init_fn` or the
            dataset sets in a worker counts.  With False, and off the ring, such a signal ends them, as in torch.

        schedule: Who makes which batch.  "round_robin" (default): as in torch, worker k % num_workers makes batch k, so
            a slow batch holds up the others.  "steal": whoever is free makes the next one; batches still come in order.
            `random`, `numpy.random` and torch's generator are then seeded before each sample, from the loader's seed,
            the epoch and the sample's place in its order (about 6 us a sample).  So batches are the same for any
            number of workers, and for none, but where samples are random they are not torch's.  Small batches are made
            further ahead: up to 4 * num_workers * prefetch_factor of them, while they take 256 MiB or less in all.

        chunk_size: How many samples a worker makes at once (default None: a whole batch).  A batch is cut into chunks
            of so many rows, and several workers write them into the one slot at the same time.  It needs a map-style
            dataset with automatic batching, samples that are alike in structure (the order of keys included), dtype and
            shape, of any classes, and `default_collate` or a collate function that is marked with `shmloader.row_wise`.
            num_workers * prefetch_factor chunks are under way, more if batches are small.  With "steal", chunks change
            no value; with "round_robin", random draws depend on them.  Without workers this does nothing.

        device: Where batches are delivered (default None: on the CPU, without a copy).  With an accelerator ("cuda",
            "cuda:1", a torch.device), a thread copies each batch there on a stream of its own, from page-locked slots,
            whatever `pin_memory` says.  Your current stream waits for the copy; your code does not.  Containers keep
            their types, objects with a `.to()` move themselves, and what is not a tensor stays as it is.  "cpu" is
            plain delivery.

        device_prefetch: How many batches may be on the device and not delivered yet (default 2).  Needs `device`.

        on_device: A function that is called with each batch where it was delivered to, on the stream of the copy and in
            the thread that copies (default None).  What it returns is delivered.  Needs `device`.  See
            `shmloader.transforms`.

        sample_seeds: Whether `random`, `numpy.random` and torch's generator are seeded before each sample, as they are
            with "steal" (default False: workers are seeded once, as in torch).  So augmentation is the same for any
            number of workers, also for none, whose own draws stay what they would be, and goes on to the bit when a
            loader is resumed.  Ranks that draw the same seed do not augment alike: a sample is seeded by its place in
            the order of all ranks.  It needs a map-style dataset.

        prefetch_epochs: Whether the first batches of the next epoch are made while the last of this one are under way
            (default False), so that its first `next()` need not wait.  The sampler draws the next epoch's order when it
            has given the last index of this one, and not at `iter()`.  If `set_epoch` then says something else than it
            said so far (the next number), what is ready is made anew.  It needs `persistent_workers=True` and a
            map-style dataset; without workers it does nothing.  See docs/next-epoch.md.

        on_bad_sample: What happens when a sample's `__getitem__` raises.  "raise" (default): the exception, in place of
            the batch, as in torch.  "skip": another sample that the sampler may give comes in its place, which
            follows from the loader's seed, the epoch and the index.  So batches are the same for any number of workers
            and after a resume.  The first time gives a RuntimeWarning; see `bad_samples`.  Needs a map-style dataset.

        max_bad_samples: How many samples may be skipped in an epoch: an int, or a float, a share of the samples that
            were asked for by then, and 10 at least (default None: 0.001).  More are a RuntimeError with the first
            tracebacks.  Needs `on_bad_sample="skip"`.

        detail: Whether workers look at their own Python stacks while they make one batch of 16 (default False), so that
            `report()` names the function and the line that takes the most.  SHMLOADER_DETAIL=1 has all loaders do it.

        template: Whether one process, the template, imports torch and unpickles the dataset, and forks all workers
            (default False: each spawned worker does both).  It lives as long as the loader, so later epochs and
            replacements start in milliseconds.  Workers share what the dataset opens while it is unpickled: open files
            in `__getitem__` or in `worker_init_fn`.  Where modules start threads in the template, workers start as
            without it, and a RuntimeWarning names the modules.  It needs the start method spawn or forkserver, and
            does nothing without workers.  See docs/how-workers-start.md.

        readers: A process group of torch.distributed whose ranks get the same batches (default None).  The first rank
            conducts: it draws, and has the workers.  The others take the batches from its memory, and what one rank
            writes into a batch no other sees.  All ranks make the loader and iterate over it equally far.  They must be
            on one machine.  See docs/readers.md.

        strict_pinning: With `pin_memory=True`, wait for all streams of all devices before a slot is filled again, and
            not only for those that were current while its batch was lent (default False).  You need it where C++ copies
            a batch on a stream that Python has not made current, and does not wait for the copy.

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

    # for a subclass that has another __init__
    spare_slots = 2
    ring_memory = "auto"
    max_ring_bytes: int | None = None
    on_worker_death = "raise"
    workers_outlive_signals = True
    schedule = "round_robin"
    chunk_size: int | None = None
    device: torch.device | str | None = None
    device_prefetch = 2
    on_device: Callable[[Any], Any] | None = None
    strict_pinning = False
    sample_seeds = False
    prefetch_epochs = False
    on_bad_sample = "raise"
    max_bad_samples: int | float | None = None
    detail = False
    template = False
    readers: Any = None

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
        ring_memory: str = "auto",
        max_ring_bytes: int | None = None,
        on_worker_death: str = "raise",
        workers_outlive_signals: bool = True,
        schedule: str = "round_robin",
        chunk_size: int | None = None,
        device: torch.device | str | None = None,
        device_prefetch: int = 2,
        on_device: Callable[[Any], Any] | None = None,
        strict_pinning: bool = False,
        sample_seeds: bool = False,
        prefetch_epochs: bool = False,
        on_bad_sample: str = "raise",
        max_bad_samples: int | float | None = None,
        detail: bool = False,
        template: bool = False,
        readers: Any = None,
    ) -> None:
        options = Options(
            spare_slots=spare_slots,
            ring_memory=ring_memory,  # type: ignore[arg-type]  # it is checked there
            max_ring_bytes=max_ring_bytes,
            on_worker_death=on_worker_death,
            workers_outlive_signals=workers_outlive_signals,
            schedule=schedule,
            chunk_size=chunk_size,
            device=device,
            device_prefetch=device_prefetch,
            on_device=on_device,
            strict_pinning=strict_pinning,
            sample_seeds=sample_seeds,
            prefetch_epochs=prefetch_epochs,
            on_bad_sample=on_bad_sample,
            max_bad_samples=max_bad_samples,
            detail=detail,
            template=template,
            readers=readers,
        )
        options.give_to(self)
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        check_requirements(self, options)
        if options.skips_bad_samples and off_the_ring.why_not_here() is None:
            pool_of(self)
        epochs.listen(self.dataset)
        if num_workers and (why := off_the_ring.why_not(self)):
            off_the_ring.refuse(self, why)
        read_elsewhere.enrol(self)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Warn at once where a class takes its iterators from another class, so that it will never ride the ring.

        Its `__iter__` may come from there too, and then nothing of ours would run later that could warn.
        """
        super().__init_subclass__(**kwargs)
        if "_get_iterator" not in vars(cls) and (why := off_the_ring.why_not_of(cls)):
            off_the_ring.refuse(cls, why)
            off_the_ring.warn_once(
                f"loaders of the class {cls.__name__} will not ride shmloader's ring. {why}", stacklevel=3
            )

    @property
    def rides_ring(self) -> bool:
        """Whether the batches of this loader's next iterator travel through the ring."""
        return self.why_not_ring() is None

    def why_not_ring(self) -> str | None:
        """Why they do not, with what to do about it; None if they do.

        Example:
            >>> DataLoader(range(4)).why_not_ring()
            'num_workers is 0, so batches are made in this process and nothing carries them'
        """
        return read_elsewhere.why_not(self)

    def __iter__(self) -> Any:
        rides = iterators.rides(self)
        if off_the_ring.why_not_here() is not None:
            return self._begin(rides)
        if self._comes_back():
            iterators.end_workers_that_cannot_go_on(self)
            return super().__iter__()
        iterator = begun(self, lambda: self._begin(rides))
        serve_metrics()
        return iterator

    def _get_iterator(self) -> Any:
        """torch's hook: another iterator, for subclasses that ask for one, and for torch's own `__iter__`."""
        rides = iterators.rides(self)
        if off_the_ring.why_not_here() is not None or off_the_ring.why_not_of(type(self)) is not None:
            return super()._get_iterator()
        if self.num_workers and not rides and self.device is None:
            return super()._get_iterator()
        iterator = begun(self, lambda: iterators.another(self, rides, self._torchs))
        serve_metrics()
        return iterator

    def _comes_back(self) -> bool:
        """Whether torch's `__iter__` leads to our `_get_iterator` through a method of a subclass, which must be called.

        PyTorch Geometric's loaders wrap what super()._get_iterator() gives.
        """
        kind = type(self)
        if off_the_ring.why_not_of(kind) is not None:
            return False
        wraps = kind._get_iterator not in (DataLoader._get_iterator, torch.utils.data.DataLoader._get_iterator)
        behind = getattr(super().__iter__, "__func__", None) is not torch.utils.data.DataLoader.__iter__
        return wraps or (behind and not self.num_workers)

    def _begin(self, rides: bool) -> Any:
        if rides or self.device is not None:
            return iterators.begin_epoch(self, rides, self._torchs)
        if self.num_workers or off_the_ring.why_not_of(type(self)) is not None:
            return iterators.torchs(self, iterators.options_of(self), super().__iter__)
        asked = iterators.Asked(super()._get_iterator)
        make = functools.partial(torch.utils.data.DataLoader.__iter__, asked)  # type: ignore[arg-type]
        return iterators.torchs(self, iterators.options_of(self), make)

    def _torchs(self) -> Any:
        """An iterator of torch's, or of the class from which this one takes its iterators."""
        return self._get_iterator() if off_the_ring.why_not_of(type(self)) else super()._get_iterator()

    def start(self) -> None:
        """Begin the next epoch now: workers start, and make the first batches while you do something else.

        What the next `iter()` would draw is drawn now, and it returns what was begun here.  If by then the sampler or
        the dataset was told another epoch, that is begun anew, with the seeds that were drawn; if a state was loaded,
        from there.  Called twice, or without workers, it does nothing.  `close()` drops what was begun.

        Raises:
            RuntimeError: An iterator of this loader is in the midst of an epoch, or the loader does not ride the ring.

        Example:
            >>> loader.start()
            >>> model = load_model()
            >>> for batch in loader: ...
        """
        if not self.num_workers:
            return
        if self.readers is not None:
            raise RuntimeError(
                "start() begins an epoch before it is asked for, and readers= has all ranks begin it together: call "
                "iter() instead, in all of them"
            )
        if why := off_the_ring.why_not(self):
            raise RuntimeError(f"start() needs a loader that rides shmloader's ring. This one does not: {why}")
        start.start(self, iterators.living(self), lambda: iterators.begin_epoch(self, True, self._torchs))

    def state_dict(self) -> dict[str, Any]:
        """Where the user is: what `load_state_dict` needs to go on from there, in another process too.

        It tells of the batches that you have got, and not of those that are ready.  It can be called at any time:
        before the first epoch, in one, at its end, in a signal handler.  It starts nothing, draws from no generator,
        asks no worker, and takes some microseconds.  The keys are always the same, and the values are what JSON has.

        Where the sampler is Sequential, Random without a generator or Distributed, in batches or not, the state is the
        same for all ranks and less than 1 KB; where a generator of yours is drawn from, less than 8 KB.  A sampler that
        has a `state_dict` of its own makes the state one of this rank's.  docs/resume.md has more.

        Raises:
            RuntimeError: The loader's batches do not ride the ring, and it has workers: nobody counts them.
        """
        place = place_of(self)
        if place.counts_with != self.num_workers:  # else it was asked already whether what it gives is counted
            if self._others("state_dict"):
                return super().state_dict()  # type: ignore[misc,no-any-return]
            place.counts_with = self.num_workers
        return place.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Have the next `iter()` go on where the loader was whose state this is.

        What it has given of the epoch is passed over: no sample of that is loaded.  Where samples are seeded one by one
        (`schedule="steal"`, `sample_seeds=True`) the rest is the same to the bit, for any number of workers, also for
        none.  Otherwise the indices are, and workers are seeded anew from the epoch's seed and the place.  At the end
        of an epoch, the next one comes whole.  Load into a loader with the same dataset and the same kind of sampler.

        Args:
            state_dict: What `state_dict` returned.  It is not changed.

        Raises:
            ValueError: It is of a loader with another kind of sampler, or that other ranks shared, where only
                `shmloader.DistributedSampler` could go on; or of another rank; or it is damaged.
            RuntimeError: As in `state_dict`.
        """
        if self._others("load_state_dict"):
            super().load_state_dict(state_dict)  # type: ignore[misc]
        else:
            place_of(self).load(state_dict)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next `iter()` begins, and tell whoever has a `set_epoch`: the sampler, the dataset.

        A worker's copy of the dataset is told before the first sample of that epoch is made, and never while batches of
        another one are, also if workers persist.  It is told as well if you call the dataset's own `set_epoch`: the
        loader looks at `iter()` what that was called with last.  torch's Subset, ConcatDataset and the like have none;
        those that are wrapped in them are told.

        Without it, epochs are counted from 0.  Say the number of the epoch that a loaded state is in, or nothing; with
        any other, that epoch comes whole, and a RuntimeWarning says so.
        """
        place_of(self).set_epoch(epoch)

    def _others(self, name: str) -> bool:
        """Whether the class from which this one takes its iterators has this method as well, and is to be asked.

        Raises:
            RuntimeError: It has not, and nobody counts what the loader gives.
        """
        why = off_the_ring.why_not_here() or off_the_ring.why_not_of(type(self))
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
        # From a __del__ at the interpreter's end: names of this module may be None, and the workers have ended.
        if sys is None or sys.is_finalizing():
            return
        self._end_workers()
        if off_the_ring.why_not_here() is None:
            close_trace(self)
            end_template(self)
            leave(self)

    def _end_workers(self) -> None:
        """The same, where we do so by ourselves: what records this loader goes on with its next workers."""
        for iterator in iterators.living(self):
            iterator.close()
        self._iterator = None
        start.drop(self)

    def __enter__(self) -> DataLoader[T_co]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
