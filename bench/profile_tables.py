"""The tables of a profile experiment: a row for each case and flow, a column for each loader."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from bench.experiment import WORKERS
from bench.machine import in_one_line
from bench.profile_loaders import LOADERS, SERIAL
from bench.results import failures, print_lines
from bench.spread import Spread, shown


def print_tables(out: Console, result: dict[str, Any]) -> None:
    settings = result["settings"]
    about = f"profile_experiment; scale: {settings['scale']:g}, rounds: {settings['rounds']}, medians"
    steps = settings["iterations"] - settings["ignored"]
    _table(
        out,
        result,
        f"{about}: seconds for {steps} steps, and % above the limit | above that with the overshoot",
        {"limit s": "limit", "with\novershoot": "limit_with_overshoot"},
        lambda of: (
            f"{shown(of['total'])} ({_percent(of['distance'])} | {_percent(of['distance_with_overshoot'])})"
            if of["total"]
            else "-"
        ),
    )
    _table(out, result, f"{about}: part of these seconds blocked in next()", {}, lambda of: _part(of["blocked"]))
    _table(
        out,
        result,
        f"{about}: seconds from creation to the first batch (in chunks no sooner than D / {WORKERS})",
        {"D s": "data", "inference s": "inference"},
        lambda of: shown(of["first"]),
    )
    print_lines(out, failures(result["measurements"], "case", "flow", "subject"), style="red")
    print_lines(out, [f"skipped: {of['case']}, {of['subject']}: {of['why']}" for of in result["skipped"]], "yellow")
    if any(SERIAL in of["loaders"] for flows in result["summary"].values() for of in flows.values()):
        counted = settings["serial_iterations"] - settings["serial_ignored"]
        print_lines(out, [f"{SERIAL}: measured over {counted} steps and multiplied: each costs D + I exactly"])
    print_lines(out, [*result["notes"], *_touching(result), in_one_line(result["machine"])])


def _table(out: Console, result: dict[str, Any], title: str, given: dict[str, str], figure: Any) -> None:
    print_lines(out, [title], style="italic")  # above it and not in it: it may be wider than the table
    table = Table(padding=(0, 1, 0, 0))
    loaders = [name for name in LOADERS if any(name in of["loaders"] for of in _rows(result))]
    table.add_column("case", no_wrap=True)
    table.add_column("flow", no_wrap=True)
    for heading in (*given, *loaders):
        table.add_column(heading, justify="right", no_wrap=True)
    for case, flows in result["summary"].items():
        for k, (flow, of) in enumerate(flows.items()):
            table.add_row(
                "" if k else case,
                flow,
                *(shown({"median": of[key], "min": of[key], "max": of[key]}) for key in given.values()),
                *(figure(of["loaders"][name]) for name in loaders),
                end_section=k == len(flows) - 1,
            )
    out.print(table)


def _rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [of for flows in result["summary"].values() for of in flows.values()]


def _touching(result: dict[str, Any]) -> list[str]:
    """What it costs to touch the large batches' pages, and whether the inference was long enough for it."""
    lines = []
    for case, flows in result["summary"].items():
        cells = [of for by in flows.values() for of in by["loaders"].values() if of["touch"]]
        touches = [of["touch"]["median"] * 1e3 for of in cells]
        if touches and max(touches) > 1:
            late = sum(of["late"] for of in cells)
            lines.append(
                f"{case}: touching a batch's pages, a part of the inference, takes {min(touches):.2g} to "
                f"{max(touches):.2g} ms; steps in which that was longer than the inference was to last: {late}"
            )
    return lines


def _percent(of: Spread | None) -> str:
    return "-" if of is None else f"{of['median'] * 100:+.0f}"


def _part(of: Spread | None) -> str:
    return "-" if of is None else f"{of['median']:.4f}"
