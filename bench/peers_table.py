"""A peers run in print: one table a case, each loader a line, the limit below."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.adapters import LOADERS, OURS
from bench.cases import CASES, SPAWN, label
from bench.limits import MEANING
from bench.machine import in_one_line
from bench.results import print_lines
from bench.spread import shown

MILLION = 1e6
# A heading, its figures, by what to multiply them, and whether with their spread.
RATE_COLUMNS = (
    ("batches/s", ("batches_per_second",), 1, True),
    ("% of\nlimit", ("of_limit",), 100, False),
    ("shmloader is\ntimes as quick", ("ours",), 1, True),
    ("GB/s", ("bytes_per_second",), 1e-9, False),
    ("CPU us/batch\ntrainer | all", ("trainer_cpu", "tree_cpu"), MILLION, False),
    ("CPU s\nall", ("tree_seconds",), 1, False),
    ("faults/batch\ntrainer | all", ("trainer_faults", "tree_faults"), 1, False),
    ("next() us\np50 | p99 | max", ("next_p50", "next_p99", "next_max"), MILLION, False),
    ("shared\npeak MB", ("shared_peak",), 1e-6, False),
    ("start-up\nms", ("start_up",), 1e3, False),
)
TIME_COLUMNS = (
    ("ms", ("seconds",), 1e3, True),
    ("% of\nlimit", ("of_limit",), 100, False),
    ("shmloader is\ntimes as quick", ("ours",), 1, True),
    ("CPU s\nall", ("tree_seconds",), 1, False),
    ("shared\npeak MB", ("shared_peak",), 1e-6, False),
)


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
    table = Table(title=label(case), title_justify="left", caption_justify="left", padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for heading, *_ in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    (figure, *_), scale = columns[0][1:3]
    captions = [f"limit: {shown(of['limit'][figure], scale, all_of_it=True)}, {limit_of(case)}"]
    for subject, figures in of.items():
        if subject in LOADERS and "failure" in figures:
            captions.append(f"skipped: {LOADERS[subject].label}, {figures['failure']}")
        elif subject in LOADERS:
            best = " (best peer)" if subject == of["best"] else ""
            cells = [" | ".join(shown(figures[k], by, wide) for k in names) for _, names, by, wide in columns]
            table.add_row(LOADERS[subject].label + best, *cells, style="bold" if subject == OURS else "")
    table.caption = Text("\n".join(captions))
    return table


def limit_of(case: str) -> str:
    """What the limit of a case is, in words."""
    if case not in CASES:
        return "bare processes that import torch" if case == SPAWN else "one wake-up"
    if CASES[case].has_work:
        return "the dataset's and the collate function's own code in as many processes, for nobody"
    return "memcpy by as many processes, and handing over"


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
