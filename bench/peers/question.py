"""All loaders beside one another, and beside the limits of the machine: each in its own process, in turns, in rounds.

A ratio, and the part of a limit that is reached, are always of one round: of measurements that are neighbours in time.
Who goes first changes from round to round.  A peer that is missing, crashes or hangs is named with its reason, and not
tried again in that case.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.core import jpegs
from bench.core.against import add_against
from bench.core.cases import CASES
from bench.core.loaders import OURS, PREFETCH, missing
from bench.core.question import Question, Turn, add_choice, add_data, add_start_method, add_workers, seconds
from bench.core.results import versions
from bench.core.spread import Spread, spread
from bench.core.throughput import IN_ALL
from bench.peers import show
from bench.peers.loaders import LOADERS
from bench.peers.measure import EPOCH, HANDOVER, LIMIT, SPAWN, TIMES, label

# of `dict`, `detections` is the harder kind; what becomes of a `subclass` is between torch and us
# What is of one image and something beside it is asked by `transport`, which compares it with the image alone.
RACED = tuple(
    name for name, case in CASES.items() if name not in ("dict", "subclass", "image") and not case.image_alone
) + tuple(TIMES)
SPAWN_WORKERS, SPAWN_MEGABYTES = 4, 128
EPOCH_BATCHES, EPOCH_RESTARTS = 8, 3
MADE_JPEGS = 64
LONGER = 3  # times, is measured what decodes: of some ten batches a second, those that were ahead at first would count
FIGURES = (
    "batches_per_second",
    "bytes_per_second",
    "trainer_cpu",
    "tree_cpu",
    "tree_seconds",
    "trainer_faults",
    "tree_faults",
    "next_p50",
    "next_p99",
    "next_max",
    "shared_peak",
    "start_up",
)
TIME_OF = {SPAWN: "first", EPOCH: "gap"}  # which of its figures the time is
TIME_FIGURES = ("seconds", "tree_seconds", "shared_peak")
SECONDS = {SPAWN: 5.0, EPOCH: 1.0, HANDOVER: 0.5}  # seconds, about, of what has no length of its own


class Peers(Question):
    name = "peers"
    asks = "shmloader beside all other loaders that are installed, and beside the machine's limits"
    more = (
        "A loader that is missing, crashes or hangs is named and skipped.  Writes peers.json and peers.png.  Cases: "
        + "; ".join(f"{case}: {label(case)}" for case in RACED)
    )

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        add_choice(parser, "--cases", RACED, "which to measure")
        add_choice(parser, "--loaders", tuple(LOADERS), "which to measure")
        parser.add_argument("--seconds", type=seconds, default=1.0, help="length of one measurement, after its warm-up")
        add_data(parser)
        add_workers(parser)
        add_start_method(parser)
        add_against(parser)

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__(given)
        self._data = ""  # the folder of JPEG files, where some are wanted
        self._jpegs = ""  # what they are, in words

    def settings(self) -> dict[str, Any]:
        given = self.given
        return {
            "seconds": given.seconds,
            "workers": given.workers,
            "prefetch_factor": PREFETCH,
            "start_method": given.start_method,
            "spawn_workers": SPAWN_WORKERS,
            "jpegs": self._jpegs,
            "batch_bytes": {case: CASES[case].batch_bytes for case in given.cases if case in CASES},
        }

    @contextmanager
    def prepared(self, out: Console) -> Iterator[None]:
        """Make the JPEG files, where some are wanted and none are given."""
        if not any(CASES[case].decoder for case in self.given.cases if case in CASES):
            yield
            return
        with jpegs.given_or_made(self.given.data, MADE_JPEGS) as (self._data, found):
            self._jpegs = jpegs.described(found, self.given.data)
            yield

    def turns(self, at: int) -> list[Turn]:
        subjects = [*self.given.loaders, LIMIT]
        return [
            Turn(
                {"case": HANDOVER, "subject": HANDOVER},
                "bench.peers.measure:handover",
                {"workers": self.given.workers},
                SECONDS[HANDOVER],
                self.given.timeout,
            ),
            *(
                self._turn(case, subject)
                for case in self.given.cases
                for subject in (subjects if at % 2 == 0 else subjects[::-1])
            ),
        ]

    def _turn(self, case: str, subject: str) -> Turn:
        given, loader = self.given, LOADERS.get(subject)
        arguments: dict[str, Any] = {"workers": given.workers}
        length, timeout = SECONDS.get(case, 0.0), given.timeout
        if case == SPAWN:
            function, arguments = "bench.peers.measure:processes", {"workers": SPAWN_WORKERS, "start_method": "spawn"}
            if loader:
                function = "bench.peers.measure:first_batch"
                arguments |= {"loader": subject, "megabytes": SPAWN_MEGABYTES}
        elif case == EPOCH:
            function = "bench.peers.measure:handover"
            if loader:
                function = "bench.peers.measure:restart"
                arguments |= {"loader": subject, "start_method": given.start_method}
                arguments |= {"batches": EPOCH_BATCHES, "epochs": EPOCH_RESTARTS}
        else:
            measured = given.seconds * (LONGER if CASES[case].decoder else 1)
            length, timeout = IN_ALL * measured, timeout + 4 * measured
            arguments |= {"case": case, "seconds": measured}
            if loader:
                function = "bench.peers.measure:throughput"
                arguments |= {"loader": subject, "start_method": given.start_method, "data": self._data}
            elif CASES[case].has_work:
                function, arguments["data"] = "bench.peers.measure:work", self._data
            else:
                function, arguments["kind"] = "bench.core.ceiling:ceiling", "memcpy"
        return Turn(
            {"case": case, "subject": subject},
            function,
            arguments,
            length,
            timeout,
            python=str((loader and loader.python) or sys.executable),
            gives_up=loader is not None,
            failure=(case in CASES and missing(CASES[case].needs)) or (loader.why_not(case) if loader else ""),
        )

    def also(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "versions": versions(name for each in self.given.loaders for name in LOADERS[each].distributions),
            "limits": {
                name: spread(each[name] for each in measurements if each["subject"] == HANDOVER and name in each)
                for name in ("verbs", "calls", "wake_up")
            },
        }

    def summary(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        return {case: summary(case, measurements) for case in self.given.cases}

    def failed(self, result: dict[str, Any]) -> bool:
        """Whether ours failed, or a limit: what becomes of a peer is a result."""
        return any("failure" in each for each in result["measurements"] if each["subject"] in (OURS, LIMIT, HANDOVER))

    def show(self, out: Console, result: dict[str, Any]) -> None:
        show.print_tables(out, result)

    def draw(self, result: dict[str, Any], path: Path) -> None:
        show.draw(result, path)


def summary(case: str, measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of one case over all rounds, each as median, min and max (None where no round has it).

    Returns:
        for each loader its FIGURES (of a case in TIMES: TIME_FIGURES), `of_limit`, the part of the limit that it
        reaches, and `ours`, how many times as quick shmloader is; or `failure`, why there are none;
        limit: batches_per_second, or seconds;
        best: the quickest peer that loads the dataset itself, by its median; None where there is none.
    """
    rounds: dict[int, dict[str, Any]] = {}
    reasons: dict[str, str] = {}
    subjects: list[str] = []
    for each in measurements:
        if each["case"] not in (case, HANDOVER):
            continue
        if each["subject"] in LOADERS and each["subject"] not in subjects:
            subjects.append(each["subject"])
        if "failure" in each:
            reasons[each["subject"]] = each["failure"]
        else:
            rounds.setdefault(each["round"], {})[each["subject"]] = each
    timed = case in TIMES

    def speed(by: dict[str, Any], subject: str) -> float:
        """Batches, or beginnings, a second: of the limit and of the loaders, the quicker the more."""
        if subject not in by:
            return 0.0
        if timed:
            took: float = by[subject]["wake_up" if case == EPOCH and subject == LIMIT else TIME_OF[case]]
            return 1 / took
        rate: float = by[subject]["batches_per_second"]
        if subject == LIMIT and not CASES[case].has_work and HANDOVER in by:
            rate = 1 / (1 / rate + by[HANDOVER]["verbs"])
        return rate

    def ratio(subject: str, to: str) -> Spread | None:
        both = [(speed(by, subject), speed(by, to)) for by in rounds.values()]
        return spread(one / other for one, other in both if one and other)

    result: dict[str, Any] = {}
    for subject in sorted(subjects, key=list(LOADERS).index):
        if subject in reasons:
            result[subject] = {"failure": reasons[subject]}
            continue
        values = {
            figure: spread(by[subject][figure] for by in rounds.values() if subject in by and figure in by[subject])
            for figure in (TIME_FIGURES if timed else FIGURES)
        }
        if timed:
            values["seconds"] = spread(by[subject][TIME_OF[case]] for by in rounds.values() if subject in by)
        result[subject] = values | {"of_limit": ratio(subject, LIMIT), "ours": ratio(OURS, subject)}
    known = [speed(by, LIMIT) for by in rounds.values() if LIMIT in by]
    result[LIMIT] = {
        "seconds" if timed else "batches_per_second": spread(1 / each if timed else each for each in known)
    }
    peers = [peer for peer in result if peer in LOADERS and peer != OURS and not LOADERS[peer].own_data]
    medians = {peer: _median(result[peer], timed) for peer in peers if "failure" not in result[peer]}
    result["best"] = max(medians, key=lambda peer: medians[peer]) if medians else None
    return result


def _median(figures: dict[str, Any], timed: bool) -> float:
    """The median speed; of times, their negative, so that more is better."""
    median: float = figures["seconds" if timed else "batches_per_second"]["median"]
    return -median if timed else median
