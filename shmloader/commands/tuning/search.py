"""The search: which settings are measured, in what order, and which one is picked.

NOTE [ Search ]

One worker is measured first, which gives the time and the size of a batch.  While the consumer waits, settings one step
away are tried: twice the workers, then the other options.  A step that gains GAIN is taken.  If so many workers do not
fit into the memory, they are tried with prefetch_factor=1 or with chunks, because then fewer batches are under way.
Then a quarter of the workers is left out, again and again, while that costs at most LOOSELY.

The rest of the time goes to those close to the best, in turns, so that a disturbance of the machine affects all of them
alike.  The default options are among them, because another option must prove that it gains.  The pick is the cheapest
whose median is at most TOLERABLY slower than the best, or too close to it for the measurements to tell them apart.
What turns out too large for the memory later, because workers grow, is not picked, unless all do.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from shmloader.commands.tuning.measure import Sample, Setting
from shmloader.ring.growth import in_units

GAIN = LOOSELY = 0.05  # during the search: one measurement is not exact, and the best of many was lucky
TOLERABLY = 0.03
CLOSE, DOUBTFUL = 0.10, 0.3  # slower than the best by at most this: measured again; the same for the default options
UNSURE, MOST_UNSURE = 4, 0.06  # the spread of measurements divided by the first is about the error of their median
IDLE = 0.01  # of its time: if a consumer waits for less, no setting is quicker
RUNS = 5  # of each that is measured again
SEARCH = 0.6  # of the time; the rest is for measuring again
TRIALS = 30  # that about fit into the time
MOST_PREFETCH = 16
CUT: dict[str, Any] = {"chunk_size": 1}  # into chunks


@dataclass
class Row:
    """The medians of a setting's measurements, and the memory that it takes in all ranks.

    Once a measurement has failed, the setting has a `failure`, and the figures are worthless.
    """

    setting: Setting
    memory_bytes: int = 0
    runs: int = 0
    batches: int = 0
    batches_per_s: float = 0.0
    input_wait: float = 0.0
    spread: float = 0.0  # how far apart the measurements are, as a share of their median
    failure: str = ""
    samples: list[Sample] = field(default_factory=list)

    def add(self, sample: Sample) -> None:
        self.samples.append(sample)
        rates, waits, batches, failures = zip(*self.samples, strict=True)
        self.runs, self.batches, self.failure = len(rates), sum(batches), next(filter(None, failures), "")
        self.batches_per_s, self.input_wait = statistics.median(rates), statistics.median(waits)
        self.spread = 0.0 if self.failure else (max(rates) - min(rates)) / self.batches_per_s

    def to_dict(self) -> dict[str, Any]:
        """The row in JSON types."""
        figures = {name: value for name, value in vars(self).items() if name not in ("setting", "samples")}
        return self.setting._asdict() | figures

    @property
    def cost(self) -> tuple[int, int, int]:
        """The fewest workers are cheapest, then the fewest options that are not the default, then the least memory."""
        return self.setting.num_workers, len(self.setting.options()), self.memory_bytes

    @property
    def rate(self) -> str:
        """Its batches a second, in three digits."""
        return f"{self.batches_per_s:,.0f}" if self.batches_per_s >= 100 else f"{self.batches_per_s:.3g}"

    def __str__(self) -> str:
        workers, prefetch, schedule, chunk = self.setting
        rate = "failed" if self.failure else self.rate
        line = f"{workers:>7}  {prefetch:>8}  {schedule:>11}  {chunk or '-':>5}  {rate:>9}  {self.input_wait:>10.0%}"
        return f"{line}  {in_units(self.memory_bytes):>9}  {self.runs:>4}  {self.failure}".rstrip()


@dataclass
class Search:
    """Measures settings until it knows the best one, or the time is over.  See NOTE [ Search ]."""

    measure: Callable[[Setting, float], Sample]  # measures a setting for so many seconds
    weigh: Callable[[Setting], int]  # the bytes that a setting takes in all ranks; called after a measurement
    budget: int  # the most bytes that it may take
    seconds: float  # for the whole search
    most_workers: int  # in one rank
    batch_size: int = 0  # the samples of a batch that can be cut into chunks; 0: it cannot be cut
    fixed: dict[str, Any] = field(default_factory=dict)  # the options that are not varied
    clock: Callable[[], float] = time.monotonic
    rows: dict[Setting, Row] = field(default_factory=dict)
    untried: list[Setting] = field(default_factory=list)  # no time was left for them
    too_heavy: list[Setting] = field(default_factory=list)  # there is no memory for them

    def run(self) -> Row:
        """Search; returns the pick.

        Raises:
            RuntimeError: Nothing could be measured.
            MemoryError: The memory does not hold one worker.
        """
        # _beside: seconds of the latest trial beside its measurement, in which workers started and ended
        self._began, self._trial, self._beside = self.clock(), self.seconds / TRIALS, 0.0
        first = self._with(Setting(1))
        self._run(first)
        if why := self.rows[first].failure:
            raise RuntimeError(f"not even one worker could be measured: {why}")
        self._trial = min(max(self._trial, 3 / self.rows[first].batches_per_s), self.seconds / 6)
        if (best := self._lightened(first)) is None or not self._run(best):
            raise MemoryError(
                f"one worker for each rank and its ring need {in_units(self.weigh(first))}. memory_bytes allows "
                f"{in_units(self.budget)}. Raise it, or use smaller batches."
            )
        steps = self._steps(best)
        while self.rows[best].input_wait >= IDLE and (other := next(steps, None)) and self._run(other):
            if self.rows[other].batches_per_s >= self.rows[best].batches_per_s * (1 + GAIN):
                best, steps = other, self._steps(other)
        fewer, many, enough = self.pick().setting, 0, self._usable()[0].batches_per_s / (1 + LOOSELY)
        while fewer.num_workers not in (0, many) and self._holds(fewer) and self._run(fewer):
            if self.rows[fewer].batches_per_s < enough:
                break
            many = fewer.num_workers
            fewer = self._with(fewer, num_workers=many - max(1, many // 4))
        while (due := self._due()).runs < RUNS and self._run(due.setting, again=True):
            pass
        return self.pick()

    def pick(self) -> Row:
        """The cheapest setting that is about as quick as the best."""
        best = self._usable()[0]
        return self._near(max(TOLERABLY, min(MOST_UNSURE, best.spread / UNSURE) if best.runs > 2 else 0.0))[0]

    def _near(self, slower: float) -> list[Row]:
        """The settings that are at most so much slower than the best, the cheapest first."""
        enough = self._usable()[0].batches_per_s / (1 + slower)
        return sorted((row for row in self._usable() if row.batches_per_s >= enough), key=lambda row: row.cost)

    def _steps(self, at: Setting) -> Iterator[Setting]:
        """Twice the workers, or as many as the memory holds; and the settings that differ in one other option."""
        more = range(min(2 * at.num_workers, self.most_workers), at.num_workers, -1)
        wider = (self._lightened(self._with(at, num_workers=workers)) for workers in more)
        further = min(MOST_PREFETCH, 2 * at.prefetch_factor)
        others = [self._with(at, **change) for change in ({"schedule": "steal"}, {"prefetch_factor": further}, CUT)]
        yield from [way for way in (next(filter(None, wider), None),) if way]
        yield from (other for other in others if other != at and self._holds(other))

    def _due(self) -> Row:
        """The one that was measured least of the best, the cheapest of those close to it, and the default options."""
        usual = self._with(Setting(self.pick().setting.num_workers))
        usual_ones = [row for row in self._near(DOUBTFUL) if row.setting == usual]
        return min([self._usable()[0], *self._near(CLOSE)[:4], *usual_ones], key=lambda row: row.runs)

    def _usable(self) -> list[Row]:
        """The settings that work and fit, the quickest first; only the lightest if, by now, none fits."""
        rows = sorted((row for row in self.rows.values() if not row.failure), key=lambda row: -row.batches_per_s)
        if not rows:
            failures = "; ".join(dict.fromkeys(row.failure for row in self.rows.values()))
            raise RuntimeError(f"every setting failed while it was measured: {failures}")
        return [row for row in rows if row.memory_bytes <= self.budget] or [min(rows, key=lambda row: row.memory_bytes)]

    def _run(self, setting: Setting, again: bool = False) -> bool:
        """Measure a setting, if it was not, or once more; false if no time is left for it."""
        began, share = self.clock(), 1.0 if again else SEARCH
        if setting in self.rows and not again:
            return True
        if self.rows and began + self._trial + self._beside > self._began + share * self.seconds:
            self.untried += [] if again else [setting]
            return False
        sample = self.measure(setting, max(0.0, min(self._trial, self._began + self.seconds - began)))
        self._beside = max(0.0, self.clock() - began - self._trial)
        if sample.failure and setting in self.rows and self.clock() >= self._began + self.seconds:
            return False  # the end of the time cut it short
        self.rows.setdefault(setting, Row(setting)).add(sample)
        for row in self.rows.values():  # each measurement shows better how much memory workers take
            row.memory_bytes = self.weigh(row.setting)
        return True

    def _holds(self, setting: Setting) -> bool:
        """Whether the memory holds a setting.  Records it if not."""
        if not (holds := self.weigh(setting) <= self.budget):
            self.too_heavy.append(setting)
        return holds

    def _lightened(self, setting: Setting) -> Setting | None:
        """The setting, or one with fewer batches under way that the memory holds; None if it holds none."""
        ways: list[dict[str, Any]] = [{}, {"prefetch_factor": 1}, CUT, {"prefetch_factor": 1, **CUT}]
        return next(filter(self._holds, (self._with(setting, **way) for way in ways)), None)

    def _with(self, setting: Setting, **changes: Any) -> Setting:
        """The setting with these changes, a chunk of a batch for each worker if there are chunks, and what is fixed."""
        made = setting._replace(**changes)
        can_cut = made.chunk_size and self.batch_size > 1 < made.num_workers
        chunk = -(-self.batch_size // made.num_workers) if can_cut else None
        return made._replace(**{"chunk_size": chunk, **self.fixed})
