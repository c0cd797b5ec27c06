"""All loaders beside one another, and beside the limits of the machine: each in its own process, in turns, in rounds.

A ratio, and the part of a limit that is reached, are always of one round: of measurements that are neighbours in time.
Who goes first changes from round to round.  A peer that is missing, crashes or hangs is named with its reason, and not
tried again in that case.
"""

from __future__ import annotations

import importlib.metadata
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import jpegs
from bench.adapters import LOADERS, OURS, missing
from bench.cases import CASES, EPOCH, SPAWN, TIMES
from bench.job import PREFETCH
from bench.machine import machine
from bench.peers_picture import draw
from bench.peers_table import print_all
from bench.results import console, measured, write
from bench.spread import Spread, spread

LIMIT = "limit"
HANDOVER = "handover"
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


@dataclass(frozen=True)
class Settings:
    """What the command line asks for: see bench/options.py."""

    cases: list[str]
    loaders: list[str]
    rounds: int
    seconds: float
    workers: int
    start_method: str
    timeout: float
    data: Path | None


def run(settings: Settings, output: Path) -> int:
    """Measure, print the tables, write peers.json and peers.png; returns 1 where ours, or a limit, failed."""
    out = console()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as made:
        folder = settings.data.absolute() if settings.data else Path(made)
        pictures = _pictures(settings, folder)
        measurements = _measure_all(settings, str(folder), out)
    result = {
        "bench": "peers",
        "machine": machine(),
        "versions": _versions(settings.loaders),
        "settings": {
            "rounds": settings.rounds,
            "seconds": settings.seconds,
            "workers": settings.workers,
            "prefetch_factor": PREFETCH,
            "start_method": settings.start_method,
            "spawn_workers": SPAWN_WORKERS,
            "jpegs": pictures,
            "batch_bytes": {case: CASES[case].batch_bytes for case in settings.cases if case in CASES},
            "took": round(time.monotonic() - started),
        },
        "limits": {
            name: spread(of[name] for of in measurements if of["subject"] == HANDOVER and name in of)
            for name in ("verbs", "calls", "wake_up")
        },
        "summary": {case: summary(case, measurements) for case in settings.cases},
        "measurements": measurements,
    }
    write(result, output / "peers.json")
    draw(result, output / "peers.png")
    print_all(out, result)
    return 1 if any("failure" in of for of in measurements if of["subject"] in (OURS, LIMIT, HANDOVER)) else 0


def _pictures(settings: Settings, folder: Path) -> str:
    """Make the JPEG files, where some are wanted and none are given; says which there are."""
    if not any(CASES[case].decoder for case in settings.cases if case in CASES):
        return ""
    if settings.data is None:
        jpegs.make(folder, MADE_JPEGS)
    found = jpegs.files(folder)
    if not found:
        sys.exit("--data: there are no JPEG files in that folder")
    size = sum(Path(path).stat().st_size for path in found) / len(found) / 1000
    return f"{len(found)} {'given' if settings.data else 'made by the bench'}, mean {size:.0f} KB"


def _measure_all(settings: Settings, data: str, out: Any) -> list[dict[str, Any]]:
    measurements: list[dict[str, Any]] = []
    given_up: set[tuple[str, str]] = set()
    for at in range(settings.rounds):
        out.print(f"round {at + 1} of {settings.rounds}: {HANDOVER}", style="dim", highlight=False)
        handover = measured("bench.limits:handover", {"workers": settings.workers}, settings.timeout)
        measurements.append({"round": at, "case": HANDOVER, "subject": HANDOVER} | handover)
        for case in settings.cases:
            subjects = [*settings.loaders, LIMIT]
            for subject in subjects if at % 2 == 0 else subjects[::-1]:
                if (case, subject) in given_up:
                    continue
                out.print(f"round {at + 1} of {settings.rounds}: {case}, {subject}", style="dim", highlight=False)
                found = _measure(case, subject, settings, data)
                measurements.append({"round": at, "case": case, "subject": subject} | found)
                if "failure" in found and subject in LOADERS:
                    given_up.add((case, subject))
    return measurements


def _measure(case: str, subject: str, settings: Settings, data: str) -> dict[str, Any]:
    workers, method, timeout = settings.workers, settings.start_method, settings.timeout
    if case in CASES and (reason := missing(CASES[case].needs)):
        return {"failure": reason}
    if subject in LOADERS and (reason := LOADERS[subject].why_not(case)):
        return {"failure": reason}
    if case == SPAWN:
        arguments: dict[str, Any] = {"workers": SPAWN_WORKERS, "start_method": "spawn"}
        if subject == LIMIT:
            return measured("bench.limits:processes", arguments, timeout)
        arguments |= {"loader": subject, "megabytes": SPAWN_MEGABYTES}
        return measured("bench.race:first_batch", arguments, timeout)
    if case == EPOCH:
        if subject == LIMIT:
            return measured("bench.limits:handover", {"workers": workers}, timeout)
        arguments = {"loader": subject, "workers": workers, "start_method": method}
        return measured("bench.race:restart", arguments | {"batches": EPOCH_BATCHES, "epochs": EPOCH_RESTARTS}, timeout)
    seconds = settings.seconds * (LONGER if CASES[case].decoder else 1)
    arguments = {"case": case, "seconds": seconds, "workers": workers}
    timeout += 4 * seconds
    if subject == LIMIT and CASES[case].has_work:
        return measured("bench.limits:work", arguments | {"data": data}, timeout)
    if subject == LIMIT:
        return measured("bench.ceiling:ceiling", arguments | {"kind": "memcpy"}, timeout)
    arguments |= {"loader": subject, "start_method": method, "data": data}
    return measured("bench.race:throughput", arguments, timeout, str(LOADERS[subject].python or sys.executable))


def _versions(loaders: list[str]) -> dict[str, str]:
    """Of what the loaders are installed from, where they are."""
    found = {}
    for distribution in {name for loader in loaders for name in LOADERS[loader].distributions}:
        try:
            found[distribution] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return dict(sorted(found.items()))


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
    for of in measurements:
        if of["case"] not in (case, HANDOVER):
            continue
        if of["subject"] in LOADERS and of["subject"] not in subjects:
            subjects.append(of["subject"])
        if "failure" in of:
            reasons[of["subject"]] = of["failure"]
        else:
            rounds.setdefault(of["round"], {})[of["subject"]] = of
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
    result[LIMIT] = {"seconds" if timed else "batches_per_second": spread(1 / of if timed else of for of in known)}
    peers = [peer for peer in result if peer in LOADERS and peer != OURS and not LOADERS[peer].own_data]
    medians = {peer: _median(result[peer], timed) for peer in peers if "failure" not in result[peer]}
    result["best"] = max(medians, key=lambda peer: medians[peer]) if medians else None
    return result


def _median(of: dict[str, Any], timed: bool) -> float:
    """The median speed; of times, their negative, so that more is better."""
    median: float = of["seconds" if timed else "batches_per_second"]["median"]
    return -median if timed else median
