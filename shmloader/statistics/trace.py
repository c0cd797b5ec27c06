"""loader.trace(): records the next batches of a loader into a file that Perfetto and Chrome show.
It decides when the file is written, and refuses a folder where no file can be made.

The ring records the times of each sequence in any case (NOTE [ Figures ]).  A trace has it keep as many records as the
trace needs, and reads them at the end.  The user's next() is timed here.  The ring's step reports each of its calls to
an observer.  In another iterator, a method that next() calls is replaced, and in no other iterator.
"""

from __future__ import annotations

import atexit
import errno
import json
import os
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from shmloader.options import Options
from shmloader.protocols.user_objects import attribute
from shmloader.statistics.chrome import Recorded, Span, trace_of
from shmloader.system.cleanup import ClosedByWith
from shmloader.system.signals import held


class Trace(ClosedByWith):
    """Records the batches that a loader hands out, and writes them into a file.

    The file is written once: after the last batch; at `close()` or the end of a `with`; when the loader is closed; or
    at the interpreter's end, whichever comes first.

    Args:
        path: The file.
        batches: How many to record.
        log: The loader's log, which the ring fills.
        label: Its dataset's name.
        sequences: How many sequences to keep: those of the batches, and those that are under way.

    Raises:
        OSError: No file can be made at this path.
        MemoryError, OverflowError: The log cannot keep that many.

    Attributes:
        written: Whether the file is written.
    """

    def __init__(self, path: str | os.PathLike[str], batches: int, log: Any, label: str, sequences: int) -> None:
        self.path, self.batches = Path(path).resolve(), batches  # resolved, because the current folder may change
        tempfile.TemporaryFile(dir=self.path.parent).close()  # raises now if no file can be made there
        if self.path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "a trace is a file, and there is a folder", os.fspath(self.path))
        self._log = log
        self._from: int = log.count
        self._recorded = Recorded(label, os.getpid(), time.monotonic_ns())
        self._observed: list[weakref.ref[Any]] = []  # iterators over the ring
        self._replaced: list[tuple[weakref.ref[Any], str, Any]] = []
        self.nodes: Callable[[], dict[int, str]] = dict  # the machines of far workers
        self._writing = threading.Lock()
        self.written = False
        log.keep(sequences)
        atexit.register(self.close_or_warn)

    def attach(self, iterator: Any) -> None:
        """Trace an iterator of the loader.  A second call for the same iterator does nothing."""
        if self.written or not hasattr(iterator, "__dict__"):
            return
        recorded = self._recorded
        recorded.workers = [worker.pid or 0 for worker in list(getattr(iterator, "_workers", ()))] or recorded.workers
        recorded.by_thread = recorded.by_thread or getattr(iterator, "_run", None) is not None
        with held():  # an interrupt between replacing a method and noting it would leave it replaced
            if "_steps" in vars(iterator):
                iterator._steps.observer = lambda *times: self._returned(Span(*times))
                self._observed.append(weakref.ref(iterator))
            else:
                self._time(iterator, "_arrived" if hasattr(iterator, "_arrived") else "_next_data", self._returned)
            stage = vars(iterator).get("_stage")
            if stage is not None:
                self._time(stage, "send", recorded.sent.append)

    def _time(self, owner: Any, name: str, report: Callable[[Span], None]) -> None:
        """Time the calls of a method of this object, and of no other."""
        if not hasattr(owner, name) or any(one() is owner for one, _, _ in self._replaced):
            return
        before = vars(owner).get(name)  # the statistics may have replaced it as well
        vars(owner)[name] = _timed(owner, getattr(type(owner), name), before, report)
        self._replaced.append((weakref.ref(owner), name, before))

    def _returned(self, span: Span) -> None:
        self._recorded.turns.append(span)
        if len(self._recorded.turns) >= self.batches:
            self.close_or_warn()

    def close(self) -> None:
        """End recording, and write the batches recorded so far.  A second call does nothing.

        Raises:
            OSError: The file cannot be written.
        """
        if self._recorded.trainer != os.getpid():  # in a forked child, whose copy of the lock may stay locked for ever
            return
        with held():  # Ctrl-C in here would leave methods replaced, and no file
            with self._writing:
                if self.written:
                    return
                self.written = True
            self._write()

    def _write(self) -> None:
        atexit.unregister(self.close_or_warn)
        for iterator in filter(None, (one() for one in self._observed)):
            iterator._steps.observer = None
        for one, name, before in self._replaced:
            if (owner := one()) is not None:
                vars(owner).pop(name, None)
                vars(owner).update({} if before is None else {name: before})
        recorded = replace(self._recorded, taken=self._log.since(self._from), nodes=self.nodes())
        self._log.keep(0)  # frees the memory, which may have been a gigabyte
        self.path.write_text(json.dumps(trace_of(recorded)), encoding="utf-8")

    def close_or_warn(self) -> None:
        """close() with a warning in place of an error, because a training must not fail because of its trace."""
        try:
            self.close()
        except OSError as error:
            warnings.warn(f"the trace {self.path} cannot be written: {error}.", RuntimeWarning, stacklevel=3)


def sequences_of(loader: Any, batches: int) -> int:
    """How many sequences a trace of these batches needs at most, with those that are under way."""
    size = attribute(loader.batch_sampler, "batch_size")
    options = Options.of(loader)
    chunk_size = 1 if options.group_by is not None else options.chunk_size  # at worst each row is a task of its own
    cut = -(-size // chunk_size) if chunk_size is not None and isinstance(size, int) else 1
    return int((batches + 4 * loader.num_workers * (loader.prefetch_factor or 1)) * cut)  # 4: as many as "steal" opens


def _timed(value: Any, method: Callable[..., Any], before: Any, report: Callable[[Span], None]) -> Callable[..., Any]:
    """A method that reports each call.  It does not keep its object alive."""
    weakly = weakref.ref(value)

    def timed(*arguments: Any) -> Any:
        given = list(arguments)  # one at most, taken out of the list, because a stage drops its batch early
        del arguments
        began_at = time.monotonic_ns()
        if before is not None:
            result = before(given.pop()) if given else before()
        else:  # no partial, because that would keep the batch during the call
            result = method(weakly(), given.pop()) if given else method(weakly())
        report(Span(began_at, time.monotonic_ns()))
        return result

    return timed
