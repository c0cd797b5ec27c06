"""`shmloader.Crew`, with which several loaders share workers: checks its arguments, and ends the workers at close().

`shared_by()` in trainer/shared_workers.py starts the processes when a loader of the crew is first iterated.  The crew
keeps them for its other loaders.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import weakref
from types import TracebackType
from typing import Any

_made: weakref.WeakValueDictionary[tuple[int, int], Crew] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


class Crew:
    """Workers that several loaders share, such as training and validation.

    Each loader has its own dataset, sampler, collate function, batch size and options, and gives the batches that it
    would give alone with as many workers, bit for bit.  The loader that is iterated gets the workers.  If several are
    iterated at once, a worker makes the batch that is wanted first.  While one loader is iterated, those that have
    finished their epoch give the memory of their rings back.

    The processes start when a loader of the crew is first iterated.  They end with `close()`, at the end of a `with`
    block, or when the crew and its loaders are gone.  Iterating after `close()` starts new ones.

    A loader's dataset is pickled for the workers, once for all of them: at each `iter()`, or only at the first one with
    `persistent_workers=True`.  Forked workers inherit the datasets of loaders with `persistent_workers=True` that exist
    when they start, as they are at that moment, and nothing is pickled.

    Args:
        num_workers: How many worker processes there are.  Each loader of the crew has that many.
        multiprocessing_context: How they are started, as in torch's loader.
        template: Whether one process imports torch, unpickles the datasets of the loaders that are there, and forks all
            workers: see `DataLoader`.
        workers_outlive_signals: Whether workers continue when a signal is sent to the whole process group: see
            `DataLoader`.

    Raises:
        ValueError: An argument is out of its range.

    Example:
        >>> crew = Crew(num_workers=8)
        >>> train = DataLoader(train_set, batch_size=64, shuffle=True, crew=crew, persistent_workers=True)
        >>> validation = DataLoader(validation_set, batch_size=256, crew=crew, persistent_workers=True)
    """

    def __init__(
        self,
        num_workers: int,
        *,
        multiprocessing_context: Any = None,
        template: bool = False,
        workers_outlive_signals: bool = True,
    ) -> None:
        if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 1:
            raise ValueError(
                f"num_workers should be a positive integer, but got num_workers={num_workers!r}. A loader without "
                "workers needs no crew."
            )
        if isinstance(multiprocessing_context, str):
            methods = multiprocessing.get_all_start_methods()
            if multiprocessing_context not in methods:
                raise ValueError(
                    f"multiprocessing_context should be a start method in {methods} or a context, but got "
                    f"multiprocessing_context={multiprocessing_context!r}"
                )
            multiprocessing_context = multiprocessing.get_context(multiprocessing_context)
        for name, value in {"template": template, "workers_outlive_signals": workers_outlive_signals}.items():
            if not isinstance(value, bool):
                raise ValueError(f"{name} should be True or False, but got {name}={value!r}")
        if template:
            context = multiprocessing if multiprocessing_context is None else multiprocessing_context
            if (method := context.get_start_method()) not in ("spawn", "forkserver"):
                raise ValueError(
                    f"template=True needs the start method 'spawn' or 'forkserver', but workers are started by "
                    f"{method!r}. Leave template out, or give multiprocessing_context='spawn'."
                )
        self.num_workers = num_workers
        self.multiprocessing_context = multiprocessing_context
        self.template = template
        self.workers_outlive_signals = workers_outlive_signals
        self._workers: Any = None  # SharedWorkers, once a loader was iterated
        self._closing: set[tuple[int, object]] = set()  # for each close() that runs, its process, and what is its own
        self._loaders: list[weakref.ref[Any]] = []  # a loader may have no hash
        self._key = os.getpid(), next(_numbers)
        _made[self._key] = self

    def enrol(self, loader: Any) -> None:
        """Register a loader of this crew, which calls this when it is made."""
        self._loaders = [*(known for known in self._loaders if known() is not None), weakref.ref(loader)]
        if self._workers is not None and self._workers.is_usable:
            self._workers.number_of(loader)

    def loaders(self) -> list[Any]:
        """The crew's living loaders."""
        return [loader for known in self._loaders if (loader := known()) is not None]

    def close(self) -> None:
        """End the iterators of all its loaders, and the workers.  Iterating again starts new workers.

        Delivered batches stay valid.  A second call does nothing.
        """
        workers = self._workers
        if workers is None:
            return
        me = os.getpid(), object()
        try:
            self._closing.add(me)  # in here, because a signal's handler may raise after any call
            if workers.refuse():
                workers.end_with(self.loaders())
        finally:
            self._closing.discard(me)

    def finish_close(self) -> None:
        """Finish a close() that was broken off, by Ctrl-C for example.  Otherwise its workers would stay.

        Nothing is done while a close() runs: in another thread, or in the code that a signal's handler has interrupted.
        """
        workers = self._workers
        if workers is not None and workers.is_refused and os.getpid() not in dict(self._closing):
            self.close()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Crew(num_workers={self.num_workers})"

    # A crew stands for child processes of this process, so a copy is the crew itself.  Loaders that were sent to
    # another process share a crew there, whose workers have not started.

    def __copy__(self) -> Crew:
        return self

    def __deepcopy__(self, memo: Any) -> Crew:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        method = None if self.multiprocessing_context is None else self.multiprocessing_context.get_start_method()
        return _same, (self._key, self.num_workers, method, self.template, self.workers_outlive_signals)


def _same(key: tuple[int, int], num_workers: int, method: str | None, template: bool, outlives: bool) -> Crew:
    """The crew of this process for an unpickled one, made if there is none."""
    found = _made.get(key)
    if found is None:
        found = Crew(num_workers, multiprocessing_context=method, template=template, workers_outlive_signals=outlives)
        found._key = key
        _made[key] = found
    return found
