"""Samples that do not all take as long: who waits for whom, and whether the batches are still the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.machine import in_one_line, machine
from bench.results import console, failures, measured, print_lines, write
from bench.skew_measure import LOADERS
from bench.skew_picture import draw
from bench.spread import shown, spread
from bench.uneven import SKEWS

IDLE = (
    "idle: the part of the workers' time spent outside the dataset's __getitem__, while there was always work: from "
    "when each may have delivered two batches to the last batch measured, which is not the last of the epoch"
)


def run(
    cases: list[str],
    loaders: list[str],
    rounds: int,
    milliseconds: float,
    batches: int,
    batch_size: int,
    workers: int,
    timeout: float,
    output: Path,
) -> int:
    """Measure, print the table, write skew.json and skew.png; returns 1 where a measurement failed."""
    out = console()
    batches += 2 * workers  # those before what is timed
    of_all = {"batches": batches, "batch_size": batch_size}
    settings = of_all | {"chunk_size": max(1, batch_size // 4), "workers": workers, "seconds": milliseconds / 1e3}
    same = measured("bench.skew_measure:one_worker", of_all, timeout)
    if "failure" in same:
        print_lines(out, [f"one worker: {same['failure']}; there is nothing to compare with"], style="red")
        return 1
    measurements = []
    for at in range(rounds):
        for case in cases:
            for loader in loaders[at % len(loaders) :] + loaders[: at % len(loaders)]:
                out.print(f"round {at + 1} of {rounds}: {case}, {loader}", style="dim", highlight=False)
                of = measured("bench.skew_measure:throughput", settings | {"case": case, "loader": loader}, timeout)
                if of.get("digest", same["digest"]) != same["digest"]:
                    of = {"failure": "not the batches that one worker makes"}
                measurements.append({"round": at, "case": case, "subject": loader} | of)
    result: dict[str, Any] = {
        "bench": "skew",
        "machine": machine(),
        "settings": settings | {"rounds": rounds},
        "idle": IDLE,
        "summary": {case: summary(case, loaders, measurements) for case in cases},
        "measurements": measurements,
    }
    write(result, output / "skew.json")
    draw(result, output / "skew.png")
    _print(out, result)
    return 1 if any("failure" in of for of in measurements) else 0


def summary(case: str, loaders: list[str], measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of one case over all rounds, each as median, min and max (None where no round has it).

    Returns:
        limit: samples a second if the workers had nothing else to do;
        loaders: of each its samples_per_second, the same as a ratio to torch's of the same round, idle and late.
    """
    rounds: dict[int, dict[str, Any]] = {}
    for of in measurements:
        if of["case"] == case and "failure" not in of:
            rounds.setdefault(of["round"], {})[of["subject"]] = of
    figures = {}
    for loader in loaders:
        its = [by for by in rounds.values() if loader in by]
        figures[loader] = {
            **{figure: spread(by[loader][figure] for by in its) for figure in ("samples_per_second", "idle", "late")},
            "ratio": spread(
                by[loader]["samples_per_second"] / by["torch"]["samples_per_second"] for by in its if "torch" in by
            ),
        }
    limit = next((of["limit"] for by in rounds.values() for of in by.values()), None)
    return {"limit": limit, "loaders": figures}


def _print(out: Console, result: dict[str, Any]) -> None:
    settings = result["settings"]
    table = Table(
        title=f"skew; workers: {settings['workers']}, batches of {settings['batch_size']}, chunks of "
        f"{settings['chunk_size']}, most samples {settings['seconds'] * 1e3:g} ms, rounds: {settings['rounds']}, "
        "medians \\[min..max]",
        title_justify="left",
    )
    table.add_column("samples", no_wrap=True)
    table.add_column("loader", no_wrap=True)
    for heading in ("samples/s", "/ torch", "% of the limit", "workers idle %", "samples late us"):
        table.add_column(heading, justify="right", no_wrap=True)
    for case, of in result["summary"].items():
        for k, (loader, its) in enumerate(of["loaders"].items()):
            table.add_row(
                "" if k else SKEWS[case].label,
                LOADERS[loader],
                shown(its["samples_per_second"], all_of_it=True),
                shown(its["ratio"], all_of_it=True),
                shown(its["samples_per_second"], 100 / of["limit"]) if of["limit"] else "-",
                shown(its["idle"], 100, all_of_it=True),
                shown(its["late"], 1e6),
                end_section=k == len(of["loaders"]) - 1,
            )
    out.print(table)
    print_lines(out, failures(result["measurements"], "case", "subject"), style="red")
    print_lines(
        out,
        [
            "limit: samples a second if no worker were ever idle and no sample late (sleeps end late, on busy cores "
            "very late)",
            IDLE,
            "each loader's batches were compared, all of them, with those that one worker makes",
            in_one_line(result["machine"]),
        ],
    )
