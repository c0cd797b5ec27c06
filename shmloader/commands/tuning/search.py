"""The search: which settings are measured, in what order, and which one is picked.

NOTE [ Search ]

One worker is measured first, which gives the time and the size of a batch.  While the consumer waits, settings one step
away are tried: twice the workers, then the other options.  A step that gains GAIN is taken.  If so many workers do not
fit into the memory, they are tried with prefetch_factor=1 or with chunks, because then fewer batches are under way.
Then bisection finds the fewest workers that take at most LOOSELY longer than the best.

The rest of the time goes to the contenders, in turns, so that a disturbance of the machine affects all of them alike.
The default options are among them, because another option must prove that it gains.  The pick is the cheapest setting
whose median is at most TOLERABLY slower than the best, or too close to it for the measurements to tell them apart.

A setting that the memory does not hold is not measured, except one worker at the beginning.  One that turns out too
large later, because workers grow, is not picked.  If all do, the lightest is picked, with a note.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from shmloader.ring.growth import in_units

GAIN = 0.05
TOLERABLY = 0.03
LOOSELY = 0.05  # during the search: one measurement is not exact, and the best of many was lucky
CLOSE, DOUBTFUL = 0.10, 0.3  # slower than the best by at most this: measured again; the same for the default options
UNSURE, MOST_UNSURE = 4, 0.06  # the spread of measurements divided by the first is about the error of their median
IDLE = 0.01  # of its time: if a consumer waits for less, no setting is quicker
RUNS = 5  # of each contender
SHARE_OF_SEARCH = 0.6  # of the time; the rest is for measuring again
TRIALS = 30  # that about fit into the time
MOST_PREFETCH = 16


@dataclass(frozen=True)
class Setting:
    """The options of a loader that `tune` varies, with their values."""

    num_workers: int
    prefetch_factor: int = 2
    schedule: str = "round_robin"
    chunk_size: int | None = None

    def options(self) -> dict[str, Any]:
        """Arguments of the loader, without those that have their defaults."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) != each.default}

    def __str__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.options().items())


VARIED = tuple(each.name for each in fields(Setting))


class Sample(NamedTuple):
    """One measurement of a setting."""

    batch_s: float  # seconds from one batch to the next, including the consumer's own
    input_wait: float  # the share of that time that the consumer spent in next(), 0 to 1
    batches: int  # how many were measured
    failure: str = ""  # why nothing could be measured


@dataclass
class Row:
    """The medians of a setting's measurements, and the memory that it takes in all ranks.

    Once a measurement has failed, the setting has a `failure`, and the figures are worthless.
    """

    setting: Setting
    memory_bytes: int = 0
    runs: int = 0
    batches: int = 0
    batch_s: float = float("inf")
    input_wait: float = 0.0
    spread: float = 0.0  # how far apart the measurements are, as a share of their median
    failure: str = ""
    samples: list[Sample] = field(default_factory=list)

    def add(self, sample: Sample) -> None:
        self.samples.append(sample)
        times, waits, batches, failures = zip(*self.samples, strict=True)
        self.runs, self.batches, self.failure = len(times), sum(batches), next(filter(None, failures), "")
        self.batch_s, self.input_wait = statistics.median(times), statistics.median(waits)
        self.spread = 0.0 if self.failure else (max(times) - min(times)) / self.batch_s

    @property
    def batches_per_s(self) -> float:
        return 1 / self.batch_s

    def to_dict(self) -> dict[str, Any]:
        """The row in JSON types."""
        names = ("failure",) if self.failure else ("batches_per_s", "input_wait", "batches", "spread")
        figures = {name: getattr(self, name) for name in ("memory_bytes", "runs", *names)}
        return {**vars(self.setting), **figures}

    @property
    def cost(self) -> tuple[int, int, int]:
        """The fewest workers are cheapest, then the fewest options that are not the default, then the least memory."""
        return self.setting.num_workers, len(self.setting.options()), self.memory_bytes


@dataclass
class Search:
    """Measures settings until it knows the best one, or the time is over.  See NOTE [ Search ]."""

    measure: Callable[[Setting, float], Sample]  # measures a setting for so many seconds
    weigh: Callable[[Setting], int]  # the bytes that a setting takes in all ranks; called after a measurement
    budget: int  # the most bytes that it may take
    seconds: float  # for the whole search
    most_workers: int  # in one rank
    batch_size: int = 0  # the samples of a batch that can be cut into chunks; 0: it cannot be cut
    steals: bool = True  # whether work can be stolen
    fixed: dict[str, Any] = field(default_factory=dict)  # the options that are not varied
    clock: Callable[[], float] = time.monotonic
    rows: dict[Setting, Row] = field(default_factory=dict)
    untried: list[Setting] = field(default_factory=list)  # no time was left for them
    too_heavy: list[Setting] = field(default_factory=list)  # there is no memory for them

    def __post_init__(self) -> None:
        self._end, self._trial = self.clock() + self.seconds, self.seconds / TRIALS
        self._beside = 0.0  # seconds of the latest trial beside its measurement: starting and ending workers

    def run(self) -> Row:
        """Search; returns the pick.

        Raises:
            RuntimeError: Nothing could be measured.
            MemoryError: The memory does not hold one worker.
        """
        first = self._with(Setting(1), 1)
        self._try(first)
        if why := self.rows[first].failure:
            raise RuntimeError(f"not even one worker could be measured: {why}")
        self._trial = min(max(self._trial, 3 * self.rows[first].batch_s), self.seconds / 6)
        lightest = self._lightened(first)
        if lightest is None or not self._try(lightest):
            raise MemoryError(
                f"one worker for each rank and its ring need {in_units(self.weigh(first))}. memory_bytes allows "
                f"{in_units(self.budget)}. Raise it, or use smaller batches."
            )
        self._climb(lightest)
        self._use_fewer()
        while (due := min(self._contenders(), key=lambda row: row.runs)).runs < RUNS and self._has_time(1.0):
            self._run(due.setting)
        return self.pick()

    def pick(self) -> Row:
        """The cheapest setting that is about as quick as the best."""
        best, *_ = rows = self._usable()
        unsure = min(MOST_UNSURE, best.spread / UNSURE) if best.runs > 2 else 0.0
        enough = best.batch_s * (1 + max(TOLERABLY, unsure))
        return min((row for row in rows if row.batch_s <= enough), key=lambda row: row.cost)

    def _climb(self, best: Setting) -> None:
        """Take steps that gain, until none does, or the loader waits for the consumer."""
        while self.rows[best].input_wait >= IDLE:
            for other in self._steps(best):
                if not self._try(other):
                    return
                if self.rows[other].batch_s <= self.rows[best].batch_s * (1 - GAIN):
                    best = other
                    break
            else:
                return

    def _steps(self, at: Setting) -> list[Setting]:
        """Twice the workers, or as many as the memory holds; and the settings that differ in one other option."""
        many, chunk = at.num_workers, at.chunk_size
        wider = (self._lightened(self._with(at, more)) for more in range(min(2 * many, self.most_workers), many, -1))
        others = [
            replace(at, schedule="steal" if self.steals and at.schedule == "round_robin" else "round_robin"),
            replace(at, prefetch_factor=min(MOST_PREFETCH, 2 * at.prefetch_factor)),
            replace(at, chunk_size=None if chunk else self._chunk_for(many)),
            replace(at, chunk_size=-(-chunk // 2) if chunk else None),
        ]
        others = [other for other in (replace(other, **self.fixed) for other in others) if other != at]
        return [*[way for way in wider if way][:1], *filter(self._holds, others)]

    def _use_fewer(self) -> None:
        """Find the fewest workers that are enough, with the options of the best."""
        best, enough = self.pick().setting, self._usable()[0].batch_s * (1 + LOOSELY)
        many = best.num_workers
        few = many - 1 if "num_workers" in self.fixed else 0
        while many - few > max(1, many // 8):
            between = self._with(best, (few + many) // 2)
            fits = self._holds(between)
            if fits and not self._try(between):
                return
            if fits and self.rows[between].batch_s <= enough:
                many = between.num_workers
            else:
                few = between.num_workers

    def _contenders(self) -> list[Row]:
        """The settings that are measured again: the quickest, the cheapest of those close to it, and the default."""
        rows = self._usable()
        best_s, usual = rows[0].batch_s, self._with(Setting(1), self.pick().setting.num_workers)
        close = [row for row in rows if row.batch_s <= best_s * (1 + CLOSE)]
        usual_ones = [row for row in rows if row.setting == usual and row.batch_s <= best_s * (1 + DOUBTFUL)]
        return [*close[:3], *sorted(close, key=lambda row: row.cost)[:2], *usual_ones]

    def _usable(self) -> list[Row]:
        """The settings that work and fit, the quickest first; only the lightest if, by now, none fits."""
        rows = sorted((row for row in self.rows.values() if not row.failure), key=lambda row: row.batch_s)
        if not rows:
            failures = "; ".join(dict.fromkeys(row.failure for row in self.rows.values()))
            raise RuntimeError(f"every setting failed while it was measured: {failures}")
        return [row for row in rows if row.memory_bytes <= self.budget] or [min(rows, key=lambda row: row.memory_bytes)]

    def _try(self, setting: Setting) -> bool:
        """Measure a setting, if it was not; false if no time is left for it."""
        if setting not in self.rows:
            if self.rows and not self._has_time(SHARE_OF_SEARCH):
                self.untried.append(setting)
                return False
            self._run(setting)
        return True

    def _run(self, setting: Setting) -> None:
        began = self.clock()
        sample = self.measure(setting, max(0.0, min(self._trial, self._end - began)))
        self._beside = max(0.0, self.clock() - began - self._trial)
        self.rows.setdefault(setting, Row(setting)).add(sample)
        for row in self.rows.values():  # each measurement shows better how much memory workers take
            row.memory_bytes = self.weigh(row.setting)

    def _has_time(self, share: float) -> bool:
        """Whether another measurement fits into this share of the time."""
        return self.clock() + self._trial + self._beside <= self._end - (1 - share) * self.seconds

    def _holds(self, setting: Setting) -> bool:
        """Whether the memory holds a setting.  Records it if not."""
        holds = self.weigh(setting) <= self.budget
        if not holds and setting not in self.too_heavy:
            self.too_heavy.append(setting)
        return holds

    def _lightened(self, setting: Setting) -> Setting | None:
        """The setting, or one with fewer batches under way that the memory holds; None if it holds none."""
        cut = replace(setting, chunk_size=self._chunk_for(setting.num_workers) or setting.chunk_size)
        ways = [setting, replace(setting, prefetch_factor=1), cut, replace(cut, prefetch_factor=1)]
        return next(filter(self._holds, (replace(way, **self.fixed) for way in ways)), None)

    def _with(self, setting: Setting, workers: int) -> Setting:
        """The setting with so many workers, its chunks cut for these, and with the options that are not varied."""
        chunk = setting.chunk_size and self._chunk_for(workers)
        return replace(setting, **{"num_workers": workers, "chunk_size": chunk, **self.fixed})

    def _chunk_for(self, workers: int) -> int | None:
        """The chunk size with which all workers make a batch together; None if it cannot be cut."""
        return -(-self.batch_size // workers) if self.batch_size > 1 < workers else None
