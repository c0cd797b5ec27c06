"""A loader's stats(), report(), trace() and bad_samples, which report its measurements: docs/statistics.md.
Most scripts call none of them, so these methods import what they need.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from shmloader.checks import read_elsewhere, requirements

if TYPE_CHECKING or requirements.why_not_here() is None:
    from shmloader.protocols.user_objects import with_parts
    from shmloader.resume.place import place_of
    from shmloader.statistics.account import Since, account_of, measured_loaders, traced
    from shmloader.trainer.bad_samples import BadSamples, bad_samples_of

if TYPE_CHECKING:
    from shmloader.statistics.report import Report
    from shmloader.statistics.stats import Stats
    from shmloader.statistics.trace import Trace


def _lines_of_dataset(loader: Any) -> list[tuple[str, str]]:
    """The lines that a loader's dataset, and the datasets inside it, add to the report: docs/caching.md."""
    found: list[tuple[str, str]] = []
    for part in with_parts(loader.dataset):
        if (lines := getattr(type(part), "__report_lines__", None)) is not None:
            found += [line for line in lines(part) if line not in found]
    return found


def all_stats() -> Iterator[tuple[str, Stats]]:
    """The name of each loader of this process, and its stats."""
    # A user's class may have its own `stats`, and loaders that are not of our class have accounts too.
    return ((name, Measured.stats(loader)) for name, loader in measured_loaders() if isinstance(loader, Measured))


def _need_extensions(what: str) -> None:
    if why := requirements.why_not_here():
        raise RuntimeError(f"{what} needs shmloader's extensions, and they cannot be used here: {why}")


class Measured:
    """The methods of a DataLoader that report its measurements."""

    def stats(self, since: Since = "start") -> Stats:
        """The loader's measurements: waits, steps, each worker's work, slots, memory.

        They are always on, for less than a microsecond a batch, and can be read at any time, also within an epoch.
        docs/statistics.md explains each figure.

        Args:
            since: "start" (default): since the loader was made.  "epoch": since the last iter().  "last": since the
                last call with "last".

        Raises:
            ValueError: `since` is something else.
            RuntimeError: shmloader's extensions cannot be used here, so nothing is measured.

        Example:
            >>> for batch in loader: ...
            >>> stats = loader.stats("epoch")
            >>> print(f"{stats.input_wait:.0%} of the time went into waiting for batches")
        """
        _need_extensions("stats()")
        return self._stats(since)

    def report(self, since: Since = "start", ranks: bool = False) -> Report:
        """Whether your loop waits for its batches, why, what to change, and what the change would gain.

        Print it: the verdict comes first, then the cause, the change and its effect, computed from the measurements,
        then the figures.  rich prints it in colour, `plot()` draws the last batches.  It takes some milliseconds.

        Args:
            since: As in `stats`.
            ranks: Whether to compare all ranks of torch.distributed.  Then all of them must call it, because it gathers
                one number from each.  It waits for them up to the timeout of init_process_group().

        Raises:
            ValueError: `since` is something else.
            RuntimeError: shmloader's extensions cannot be used here.
            Exception: With `ranks`, what torch.distributed raises if it is not initialised, or not all ranks call this.

        Example:
            >>> print(loader.report())
            input-bound (sure): 64.8% of the loop's time went into next(), 13.6 ms of 21.0 ms per batch
            cause:   a batch takes 84.0 ms of a worker's time, 92% of it for the samples, on a core
            change:  num_workers=8, and make a sample cheaper: ...
            effect:  12 workers would feed this loop (7.4 ms a step); this machine has 8 cores, ...
        """
        _need_extensions("report()")
        from shmloader.statistics.evidence import Evidence, settings_of, shares_of, with_ranks
        from shmloader.statistics.report import Report
        from shmloader.statistics.verdict import verdict_of
        from shmloader.system.limits import available_memory, cores, ranks_here

        stats = self._stats(since)
        log = account_of(self).meter.log.since()
        began_at = time.monotonic_ns() - int(stats.elapsed_s * 1e9)
        usable = cores().usable / ranks_here()
        evidence = Evidence(
            stats,
            settings_of(self),
            max(1.0, usable),
            shares_of([taken for taken in log if taken.asked_at >= began_at]),
            memory_bytes=available_memory() / ranks_here(),
            without_batch=place_of(self).without_batch(),
        )
        if ranks:
            evidence = with_ranks(evidence)
        return Report(verdict_of(evidence), stats, log, _lines_of_dataset(self))

    def trace(self, path: str | os.PathLike[str], batches: int = 200) -> Trace:
        """Record what happens to the next batches, and write it as a file for Perfetto (ui.perfetto.dev) or Chrome.

        The file is written after the last of them, at the trace's `close()` or the end of its `with`, when this loader
        is closed, or at the interpreter's end, whichever comes first.  docs/trace.md describes it.

        Args:
            path: The file, which is replaced.
            batches: How many, of this epoch and the next ones (default 200).

        Raises:
            ValueError: `batches` is not positive.
            OSError: No file can be made there.
            RuntimeError: Another trace of this loader is being recorded, or shmloader's extensions cannot be used here.

        Example:
            >>> loader.trace("t.json", batches=200)
            >>> for batch in loader: ...
        """
        _need_extensions("trace()")
        if isinstance(batches, bool) or not isinstance(batches, int) or batches < 1:
            raise ValueError(f"batches should be a positive integer, but got batches={batches!r}. The default is 200.")
        return traced(self, path, batches)

    def _stats(self, since: Since) -> Stats:
        from shmloader.statistics.figures import stats_of

        loader: Any = self
        account = account_of(self)
        elapsed, figures = account.figures(since)
        why_not_ring = read_elsewhere.why_not(self)
        now: dict[str, Any] = {}
        if why_not_ring is None:
            for name in ("lent_slots", "ring_bytes", "moved_slots"):
                now[name] = sum(getattr(turns, name) for turns in account.meter.living())
            now["hot"] = account.hot()
        now |= {"num_workers": loader.num_workers, "bad_samples": bad_samples_of(self).count}
        return stats_of(figures, since, elapsed, account.nodes_now(), why_not_ring=why_not_ring, **now)

    @property
    def bad_samples(self) -> BadSamples:
        """The samples that raised and were replaced, in all batches that were made ready for you.

        It has the `count`, and the `first` ten with `index`, `instead` (the index of the replacement) and `error` (the
        traceback, a str).  A loaded state does not change it.

        Example:
            >>> DataLoader(range(4), on_bad_sample="skip").bad_samples
            BadSamples(count=0, first=())
        """
        if why := requirements.why_not_here():
            raise RuntimeError(f"on_bad_sample='skip' cannot replace a sample in this loader: {why}")
        return bad_samples_of(self)
