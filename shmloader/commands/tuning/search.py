"""The search: which settings are measured, in what order, and which one is picked.

NOTE [ Search ]

    1. One worker is measured first, which gives the time and the size of a batch.
    2. The number of workers is doubled while three things hold: the consumer waits, the workers fit into the memory,
       and the last doubling has gained GAIN or more.  If more workers do not fit, prefetch_factor=1 and chunks are
       tried, because fewer batches are under way then.
    3. Then the other options are tried: one at a time is added to the best setting so far.  An option that gains is
       kept, and more workers are tried with it.
    4. Then fewer workers are tried, by bisection, to find the fewest that take at most LOOSELY (5 %) longer than the
       best.
    5. The rest of the time goes to the contenders, in turns, so that a disturbance of the machine affects all of them
       alike.  The default options with the best number of workers are among them, because another option must prove
       that it gains.  The pick is the cheapest setting whose median is at most TOLERABLY slower than the best median,
       or too close to the best median for the measurements to tell them apart.  The cheapest has the fewest workers,
       then the fewest options that are not the default, then the least memory.

`untried` lists the settings for which there was no time.  A setting that does not fit into the memory is not measured,
except one worker at the beginning.  A setting that turns out too large only later is not picked, unless all are too
large.  Then the one that needs least memory is picked, with a note.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from shmloader.commands.tuning.setting import Row, Sample, Setting
from shmloader.ring.growth import in_units

GAIN = 0.05  # doubled workers must gain this much, or they do not help
TOLERABLY = 0.03
LOOSELY = 0.05  # during the search: one measurement is not exact, and the best of many was lucky
DOUBTFUL = 0.3  # slower than the best by at most this: the usual options are measured again beside unusual ones
CLOSE = 0.10  # slower than the best by at most this: measured again
UNSURE = 4  # the spread of measurements divided by this is about the error of their median
MOST_UNSURE = 0.06
IDLE = 0.01  # of its time: if a consumer waits for less, no setting is quicker
RUNS = 5  # of each contender
SHARE_OF_SEARCH = 0.6  # of the time; the rest is for measuring again
TRIALS = 30  # that about fit into the time
MOST_PREFETCH = 16


@dataclass(frozen=True)
class Space:
    """What the search may vary.

    Attributes:
        most_workers: The limit in one rank.
        batch_size: The samples of a batch that can be cut into chunks; 0: it cannot be cut.
        steals: Whether work can be stolen.
        fixed: Options that are not varied, with their values.
    """

    most_workers: int
    batch_size: int = 0
    steals: bool = True
    fixed: dict[str, Any] = field(default_factory=dict)

    def at(self, setting: Setting) -> Setting:
        """The setting, with the fixed options."""
        return replace(setting, **{name: value for name, value in self.fixed.items() if name in vars(setting)})

    def chunk_for(self, workers: int) -> int | None:
        """The chunk size with which all workers make a batch together; None if it cannot be cut."""
        return -(-self.batch_size // workers) if self.batch_size > 1 < workers else None


class Search:
    """Measures settings until it knows the best one, or the time is over.  See NOTE [ Search ].

    Args:
        space: What may be varied.
        measure: Measures a setting for this many seconds.
        weigh: The bytes that a setting takes in all ranks; called after something was measured.
        budget_bytes: The most that it may take.
        seconds: The time for the whole search.
        clock: Returns seconds.
        tell: Called with each setting before it is measured.
    """

    def __init__(
        self,
        space: Space,
        measure: Callable[[Setting, float], Sample],
        weigh: Callable[[Setting], int],
        budget_bytes: int,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        tell: Callable[[Setting], None] = lambda setting: None,
    ) -> None:
        self._space, self._measure, self.weigh, self._budget = space, measure, weigh, budget_bytes
        self._clock, self._tell = clock, tell
        self._begun, self._seconds = clock(), seconds
        self._trial = seconds / TRIALS
        self._beside = 0.0  # seconds of the latest trial beside its measurement: starting and ending workers
        self.rows: dict[Setting, Row] = {}
        self.untried: list[Setting] = []  # no time was left for them
        self.too_heavy: list[Setting] = []  # there is no memory for them

    def run(self) -> Row:
        """Search; returns the pick.

        Raises:
            RuntimeError: Nothing could be measured.
            MemoryError: The memory does not hold one worker.
        """
        first = self._space.at(Setting(1))
        self._try(first)
        row = self.rows[first]
        if row.failure:
            raise RuntimeError(f"not even one worker could be measured: {row.failure}")
        self._trial = min(max(self._trial, 3 * row.batch_s), self._seconds / 6)
        if not self._holds(first):
            lighter = self._lightened(first)
            if lighter is None or not self._try(lighter):
                raise MemoryError(
                    f"one worker for each rank and its ring need {in_units(self.weigh(first))}. memory_bytes allows "
                    f"{in_units(self._budget)}. Raise it, or use smaller batches."
                )
            first = lighter
        self._double(first)
        self._vary()
        self._fewer()
        self._run_contenders()
        return self.pick()

    def pick(self) -> Row:
        """The cheapest setting that is about as quick as the best."""
        rows = self._usable()
        unsure = min(MOST_UNSURE, rows[0].spread / UNSURE) if len(rows[0].samples) > 2 else 0.0
        enough = rows[0].batch_s * (1 + max(TOLERABLY, unsure))
        return min((row for row in rows if row.batch_s <= enough), key=_cost)

    def _usable(self) -> list[Row]:
        """The settings that work, the quickest first.  One may turn out too heavy, because workers grow over time.

        If all of them do, it is the lightest one, and notes.py adds a note.

        Raises:
            RuntimeError: None works.
        """
        rows = sorted((row for row in self.rows.values() if not row.failure), key=lambda row: row.batch_s)
        if not rows:
            failures = "; ".join(dict.fromkeys(row.failure for row in self.rows.values()))
            raise RuntimeError(f"every setting failed while it was measured: {failures}")
        return [row for row in rows if row.memory_bytes <= self._budget] or [
            min(rows, key=lambda row: row.memory_bytes)
        ]

    # --------------------------------------------------------------------------------------------------- the steps

    def _double(self, best: Setting) -> None:
        """Double the workers, as long as that helps."""
        while not self._idle(best) and best.num_workers < self._space.most_workers:
            twice = min(2 * best.num_workers, self._space.most_workers)
            self._holds(self._recut(replace(best, num_workers=twice)))  # this records it if the memory does not hold it
            ways = (self._lightened(replace(best, num_workers=many)) for many in range(twice, best.num_workers, -1))
            more = next((way for way in ways if way is not None), None)
            if more is None or more in self.rows or not self._try(more):
                return
            if self._time(more) > self._time(best) * (1 - GAIN):
                return
            best = more

    def _vary(self) -> None:
        """Try the other options, one at a time."""
        best = self._best()
        while not self._idle(best):
            for other in self._beside_it(best):
                if not self._try(other):
                    return
            better = self._best()
            if self._time(better) > self._time(best) * (1 - TOLERABLY):
                return
            best = better
            self._double(best)
            best = self._best()

    def _beside_it(self, setting: Setting) -> list[Setting]:
        """Settings that differ from this one in one option."""
        others = [replace(setting, prefetch_factor=min(MOST_PREFETCH, 2 * setting.prefetch_factor))]
        if self._space.steals:
            schedule = "steal" if setting.schedule == "round_robin" else "round_robin"
            others.insert(0, replace(setting, schedule=schedule))
        chunk = self._space.chunk_for(setting.num_workers)
        if setting.chunk_size is None:
            others += [replace(setting, chunk_size=chunk)] if chunk else []
        else:
            others.append(replace(setting, chunk_size=None))
            others += [replace(setting, chunk_size=-(-setting.chunk_size // 2))] if setting.chunk_size > 1 else []
        found = [self._space.at(other) for other in others]
        return [other for other in found if other not in self.rows and self._holds(other)]

    def _fewer(self) -> None:
        """The fewest workers that are enough, with the best options."""
        best = self.pick().setting
        if "num_workers" in self._space.fixed:
            return
        enough = self._time(self._best()) * (1 + LOOSELY)
        too_few = [
            row.setting.num_workers
            for row in self.rows.values()
            if row.setting.num_workers < best.num_workers
            and row.batch_s > enough
            and (row.setting.schedule, row.setting.prefetch_factor) == (best.schedule, best.prefetch_factor)
        ]
        few, many = max(too_few, default=0), best.num_workers
        while many - few > max(1, many // 8):
            between = self._recut(replace(best, num_workers=(few + many) // 2))
            if not self._holds(between):
                few = between.num_workers
                continue
            if not self._try(between):
                return
            if self._time(between) <= enough:
                many = between.num_workers
            else:
                few = between.num_workers

    def _recut(self, setting: Setting) -> Setting:
        """The setting with chunks for its number of workers, if it has chunks."""
        if setting.chunk_size is None or "chunk_size" in self._space.fixed:
            return setting
        return replace(setting, chunk_size=self._space.chunk_for(setting.num_workers))

    def _run_contenders(self) -> None:
        """The contenders once more, in turns."""
        while True:
            due = min(self._contenders(), key=lambda row: len(row.samples))
            if len(due.samples) >= RUNS or not self._has_time(1.0):
                return
            self._run(due.setting)

    def _contenders(self) -> list[Row]:
        rows = self._usable()
        close = [row for row in rows if row.batch_s <= rows[0].batch_s * (1 + CLOSE)]
        chosen = [*close[:3], *sorted(close, key=_cost)[:2]]
        many = self.pick().setting.num_workers
        chosen += [
            row
            for row in rows
            if row.setting == self._space.at(Setting(many)) and row.batch_s <= rows[0].batch_s * (1 + DOUBTFUL)
        ]
        return [row for row in rows if row in chosen]

    # ------------------------------------------------------------------------------------------------- one setting

    def _try(self, setting: Setting) -> bool:
        """Measure a setting; false if no time is left for it."""
        if setting in self.rows:
            return True
        if self.rows and not self._has_time(SHARE_OF_SEARCH):
            self.untried.append(setting)
            return False
        self._run(setting)
        return True

    def _run(self, setting: Setting) -> None:
        self._tell(setting)
        began = self._clock()
        left = self._begun + self._seconds - began
        sample = self._measure(setting, max(0.0, min(self._trial, left)))
        self._beside = max(0.0, self._clock() - began - self._trial)
        row = self.rows.setdefault(setting, Row(setting))
        row.samples.append(sample)
        for known in self.rows.values():  # each measurement shows better how much memory workers take
            known.memory_bytes = self.weigh(known.setting)

    def _has_time(self, share: float) -> bool:
        """Whether another measurement fits into this share of the time."""
        return self._clock() - self._begun + self._trial + self._beside <= self._seconds * share

    def _holds(self, setting: Setting) -> bool:
        """Whether the memory holds a setting.  Records it if not."""
        if self._fits(setting):
            return True
        if setting not in self.too_heavy:
            self.too_heavy.append(setting)
        return False

    def _fits(self, setting: Setting) -> bool:
        return self.weigh(setting) <= self._budget

    def _lightened(self, setting: Setting) -> Setting | None:
        """The setting, or one with fewer batches under way that the memory holds; None if it holds none."""
        chunk = self._space.chunk_for(setting.num_workers)
        setting = self._recut(setting)
        ways = [setting, replace(setting, prefetch_factor=1)]
        ways += (
            [replace(setting, chunk_size=chunk), replace(setting, chunk_size=chunk, prefetch_factor=1)] if chunk else []
        )
        return next((way for way in map(self._space.at, ways) if self._fits(way)), None)

    def _time(self, setting: Setting) -> float:
        return self.rows[setting].batch_s

    def _idle(self, setting: Setting) -> bool:
        """Whether the loader waits for the consumer, so that no setting is quicker."""
        return self.rows[setting].input_wait < IDLE

    def _best(self) -> Setting:
        return self._usable()[0].setting


def _cost(row: Row) -> tuple[int, int, int]:
    return row.setting.num_workers, row.setting.unusual, row.memory_bytes
