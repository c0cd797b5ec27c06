"""A peers run in print: one table a case, each loader a line, the limit below."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from bench.adapters import LOADERS, OURS
from bench.cases import CASES, SPAWN, label
from bench.limits import MEANING
from bench.machine import in_one_line
from bench.results import print_lines
from bench.spread import shown

MILLION = 1e6
RATE_COLUMNS = {  # heading: figure, by what to multiply it, whether with its spread
    "batches/s": ("batches_per_second", 1, True),
    "% of the\nlimit": ("of_limit", 100, False),
    "shmloader is\ntimes as quick": ("ours", 1, True),
    "GB/s": ("bytes_per_second", 1e-9, False),
    "trainer CPU\nus/batch": ("trainer_cpu", MILLION, False),
    "all CPU\nus/batch": ("tree_cpu", MILLION, False),
    "all CPU\ns": ("tree_seconds", 1, False),
    "faults/batch\ntrainer": ("trainer_faults", 1, False),
    "all": ("tree_faults", 1, False),
    "next() us\np50": ("next_p50", MILLION, False),
    "p99": ("next_p99", MILLION, False),
    "max": ("next_max", MILLION, False),
    "shared\npeak MB": ("shared_peak", 1e-6, False),
    "start-up\nms": ("start_up", 1e3, False),
}
TIME_COLUMNS = {
    "ms": ("seconds", 1e3, True),
    "% of the\nlimit": ("of_limit", 100, False),
    "shmloader is\ntimes as quick": ("ours", 1, True),
    "all CPU\ns": ("tree_seconds", 1, False),
    "shared\npeak MB": ("shared_peak", 1e-6, False),
}


def print_all(out: Console, result: dict[str, Any]) -> None:
    settings = result["settings"]
    workers = f"{settings['workers']} by {settings['start_method']}, {settings['prefetch_factor']} batches ahead each"
    rounds = f"rounds: {settings['rounds']}, medians [min..max]; took {settings['took']} s"
    print_lines(out, [f"peers; workers: {workers}; {rounds}"])
    for case, of in result["summary"].items():
        out.print(_table(case, of))
    print_lines(out, _notes(result))


def _table(case: str, of: dict[str, Any]) -> Table:
    columns = RATE_COLUMNS if case in CASES else TIME_COLUMNS
    table = Table(title=label(case), title_justify="left", padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    skipped = []
    for subject, figures in of.items():
        if subject in LOADERS and "failure" in figures:
            skipped.append(f"{LOADERS[subject].label}: {figures['failure']}")
        elif subject in LOADERS:
            best = " (best peer)" if subject == of["best"] else ""
            cells = [shown(figures[figure], scale, wide) for figure, scale, wide in columns.values()]
            table.add_row(LOADERS[subject].label + best, *cells, style="bold" if subject == OURS else "")
    figure, scale, _ = next(iter(columns.values()))
    table.add_row("limit: " + limit_of(case), shown(of["limit"][figure], scale, all_of_it=True), style="dim")
    if skipped:
        table.caption = "skipped: " + "; ".join(skipped)
        table.caption_justify = "left"
    return table


def limit_of(case: str) -> str:
    """What the limit of a case is, in few words."""
    if case in CASES:
        return "the dataset's and collate's own code" if CASES[case].has_work else "memcpy + handing over"
    return "bare processes, torch imported" if case == SPAWN else "one wake-up"


def _notes(result: dict[str, Any]) -> list[str]:
    lines = [
        f"limit, {name}: {shown(of, MILLION if name == 'wake_up' else 1e9, all_of_it=True)}: {MEANING[name]}"
        for name, of in result["limits"].items()
    ]
    lines += [f"{of.label}: {of.note}" for of in LOADERS.values() if of.note]
    if result["settings"]["jpegs"]:
        lines.append(f"JPEGs: {result['settings']['jpegs']}")
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return [*lines, versions, in_one_line(result["machine"])]
