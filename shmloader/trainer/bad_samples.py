"""How many samples of a loader raised and were replaced, and if these are too many: NOTE [ Bad samples ]."""

from __future__ import annotations

import pickle
import threading
import warnings
from dataclasses import dataclass
from typing import Any

from shmloader.options import Options
from shmloader.protocols.user_objects import ByIdentity
from shmloader.system.signals import held

AT_LEAST = 10  # bad samples that any share allows; otherwise the first of an epoch could be too many
KEPT = 10
_SHOWN = 3  # tracebacks in an error


@dataclass(frozen=True)
class BadSample:
    """A sample that raised.

    Attributes:
        index: Its index.
        instead: The index of the sample that came in its place.
        error: Its traceback as text; only the end of a long one.
    """

    index: int
    instead: int
    error: str


@dataclass(frozen=True)
class BadSamples:
    """Samples that raised and were replaced, in the batches that a loader has given in this process.

    Attributes:
        count: How many there were.
        first: The first ten of them.
    """

    count: int = 0
    first: tuple[BadSample, ...] = ()

    def more(self, count: int, first: list[Any], most: int = KEPT) -> BadSamples:
        return BadSamples(self.count + count, (self.first + tuple(BadSample(*each) for each in first))[:most])


class _Account:
    """The bad samples of one loader so far, and whether it has warned of them."""

    def __init__(self) -> None:
        self.all = BadSamples()
        self.warned = False


_lock = threading.Lock()  # two iterators of one loader may be in two threads
_accounts: ByIdentity[_Account] = ByIdentity()  # see NOTE [ Place ], 2


def bad_samples_of(loader: Any) -> BadSamples:
    """The bad samples of this loader so far."""
    account = _accounts.get(loader)
    return BadSamples() if account is None else account.all


class Tally:
    """Counts the bad samples that an iterator's batches report.

    Args:
        loader: The loader.
        options: Its options.
    """

    def __init__(self, loader: Any, options: Options) -> None:
        self._account = _accounts.setdefault(loader, _Account())
        self._given, self._limit = options.on_bad_sample, options.most_bad_samples
        self.begin()

    def begin(self) -> None:
        """Start from zero for another epoch, or the rest of one, because the limit is for each epoch."""
        self._here = BadSamples()
        self._noted: int | None = None

    def note(self, report: list[bytes], asked: int, number: int) -> None:
        """Count the samples that were replaced in a batch.

        Args:
            report: The workers' report on the batch, or on each of its chunks.
            asked: How many samples were asked for in this epoch, up to and with this batch.
            number: The batch's.  After a signal this may be called again for the same batch, which counts once.

        Raises:
            RuntimeError: There were too many in this epoch.
        """
        with held(), _lock:
            if self._noted != number:
                for pickled in filter(None, report):
                    count, first = pickle.loads(pickled)
                    self._here = self._here.more(count, first)
                    self._account.all = self._account.all.more(count, first)
                self._noted = number
            first_time, self._account.warned = not self._account.warned, True
        self._check(asked)
        if first_time:
            bad = self._here.first[0]
            warnings.warn(
                f"sample {bad.index} raised, and sample {bad.instead} came in its place (on_bad_sample='skip'). This "
                f"warning comes once. loader.bad_samples has the count and the first errors. This is one:\n{bad.error}",
                RuntimeWarning,
                stacklevel=5,
            )

    def _check(self, asked: int) -> None:
        most = self._limit if isinstance(self._limit, int) else max(AT_LEAST, int(self._limit * asked))
        if self._here.count > most:
            shown = "\n".join(f"sample {bad.index}: {bad.error}" for bad in self._here.first[:_SHOWN])
            raise RuntimeError(
                f"{self._here.count} of the {asked} samples asked for in this epoch raised, and "
                f"on_bad_sample={self._given!r} allows {most}. Repair the samples, or allow more, as 'skip:0.05' does. "
                f"The first errors were\n\n{shown}"
            )
