"""Handing batches over: torch's loader, ours and the ceiling, in turns, several rounds.

A ratio is always ours to torch's, of one round: two measurements that are neighbours in time, so that what else the
machine does weighs on both.  Who goes first changes from round to round.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.cases import CASES
from bench.ceiling import CEILINGS, MEANING
from bench.job import PREFETCH
from bench.machine import in_one_line, machine
from bench.picture import draw
from bench.race import SPARE
from bench.results import console, failures, measured, print_lines, write
from bench.spread import Spread, shown, spread

LOADERS = ("torch", "shmloader")
SCOPE = "the dataset: two prebuilt samples again and again, hot in the cache; a dataset that has work to do gains less"
FIGURES = (
    "batches_per_second",
    "bytes_per_second",
    "trainer_cpu",
    "workers_cpu",
    "trainer_faults",
    "tree_faults",
)


def run(
    cases: list[str],
    rounds: int,
    seconds: float,
    workers: int,
    start_method: str,
    timeout: float,
    output: Path,
) -> int:
    """Measure, print the table, write transport.json and transport.png; returns 1 where a measurement failed."""
    out = console()
    measurements = []
    for at in range(rounds):
        for case in cases:
            for subject in _order(case, at):
                out.print(f"round {at + 1} of {rounds}: {case}, {subject}", style="dim", highlight=False)
                measurements.append(
                    {"round": at, "case": case, "subject": subject}
                    | _measure(case, subject, seconds, workers, start_method, timeout + 2 * seconds)
                )
    result = {
        "bench": "transport",
        "machine": machine(),
        "settings": {
            "rounds": rounds,
            "seconds": seconds,
            "workers": workers,
            "prefetch_factor": PREFETCH,
            "spare_slots": SPARE,
            "start_method": start_method,
            "batch_bytes": {case: CASES[case].batch_bytes for case in cases},
        },
        "summary": {case: summary(case, measurements) for case in cases},
        "measurements": measurements,
    }
    write(result, output / "transport.json")
    draw(result, output / "transport.png")
    _print(out, result)
    return 1 if any("failure" in of for of in measurements) else 0


def _order(case: str, at: int) -> tuple[str, ...]:
    loaders = LOADERS if at % 2 == 0 else LOADERS[::-1]
    return (*loaders, *CEILINGS) if CASES[case].is_large else loaders


def _measure(
    case: str, subject: str, seconds: float, workers: int, start_method: str, timeout: float
) -> dict[str, Any]:
    arguments: dict[str, Any] = {"case": case, "seconds": seconds, "workers": workers}
    if subject in CEILINGS:
        return measured("bench.ceiling:ceiling", arguments | {"kind": subject}, timeout)
    arguments |= {"loader": subject, "start_method": start_method}
    return measured("bench.race:throughput", arguments, timeout)


def summary(case: str, measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of one case over all rounds, each as median, min and max (None where no round has it).

    Returns:
        for each loader its FIGURES, and of_memcpy and of_streaming, the part of that ceiling that it reaches;
        for each ceiling its bytes_per_second;
        ratio and trainer_cpu_ratio: shmloader's batches a second, and processor time a batch, to torch's.
    """
    rounds: dict[int, dict[str, Any]] = {}
    for of in measurements:
        if of["case"] == case and "failure" not in of:
            rounds.setdefault(of["round"], {})[of["subject"]] = of

    def over(figure: str, subject: str, to: str | None = None) -> Spread | None:
        values = [
            by[subject][figure] / (by[to][figure] if to else 1)
            for by in rounds.values()
            if subject in by and (to is None or by.get(to, {}).get(figure))
        ]
        return spread(values)

    result: dict[str, Any] = {}
    for loader in LOADERS:
        result[loader] = {figure: over(figure, loader) for figure in FIGURES}
    if CASES[case].is_large:
        for kind in CEILINGS:
            result[kind] = {"bytes_per_second": over("bytes_per_second", kind)}
            for loader in LOADERS:
                result[loader][f"of_{kind}"] = over("bytes_per_second", loader, kind)
    result["ratio"] = over("batches_per_second", "shmloader", "torch")
    result["trainer_cpu_ratio"] = over("trainer_cpu", "shmloader", "torch")
    return result


def _print(out: Console, result: dict[str, Any]) -> None:
    table = Table(
        title=f"transport; workers: {result['settings']['workers']} by {result['settings']['start_method']}, "
        f"rounds: {result['settings']['rounds']}, medians \\[min..max]; two figures: torch | shmloader",
        title_justify="left",
        padding=(0, 1, 0, 0),
    )
    table.add_column("case", no_wrap=True)
    for heading in (
        "torch\nbatches/s",
        "shmloader\nbatches/s",
        "shmloader / torch\nbatches/s",
        "GB/s",
        "% of memcpy\nceiling",
        "% of streaming\nceiling",
        "trainer CPU\nus/batch",
        "shmloader / torch\ntrainer CPU",
        "trainer faults\n/batch",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for case, of in result["summary"].items():
        both = {
            key: " | ".join(shown(of[loader].get(key), scale) for loader in LOADERS)
            for key, scale in (
                ("bytes_per_second", 1e-9),
                ("of_memcpy", 100),
                ("of_streaming", 100),
                ("trainer_cpu", 1e6),
                ("trainer_faults", 1),
            )
        }
        is_large = CASES[case].is_large
        failed = any(m["case"] == case and "failure" in m for m in result["measurements"])
        table.add_row(
            CASES[case].label + (" FAILED" if failed else ""),
            shown(of["torch"]["batches_per_second"]),
            shown(of["shmloader"]["batches_per_second"]),
            shown(of["ratio"], all_of_it=True),
            both["bytes_per_second"] if CASES[case].batch_bytes >= 1 << 16 else "",
            both["of_memcpy"] if is_large else "",
            both["of_streaming"] if is_large else "",
            both["trainer_cpu"],
            shown(of["trainer_cpu_ratio"], all_of_it=True),
            both["trainer_faults"],
        )
    out.print(table)
    print_lines(out, failures(result["measurements"], "case", "subject"), style="red")
    if any(CASES[case].is_large for case in result["summary"]):
        print_lines(out, [f"ceiling, {kind}: {meaning}" for kind, meaning in MEANING.items()])
    print_lines(out, [SCOPE, in_one_line(result["machine"])])
