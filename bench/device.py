"""Delivery to a GPU: the copies against a plain page-locked one, and training against torch's loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from bench import gpu
from bench.machine import in_one_line, machine
from bench.results import console, failures, measured, print_lines, write
from bench.spread import shown, spread

FIGURES = ("images_per_second", "next_p50", "next_p99", "next_max", "trainer_cpu", "gpu_idle")
NEEDED = (
    "the rate of copies from slots, against a plain copy from page-locked memory",
    "images a second, the times that next() takes, and the GPU's idle share, while training, against torch's loader",
)


def run(rounds: int, seconds: float, workers: int, timeout: float, output: Path) -> int:
    """Measure, print the tables, write device.json; returns 1 where a measurement failed.

    Where there is no GPU it says what cannot be measured, and why, and writes nothing.
    """
    out = console()
    if why := gpu.why_not():
        print_lines(out, [f"device: nothing is measured, for {why}.  It would be:", *(f"- {what}" for what in NEEDED)])
        return 0
    measurements = []
    for at in range(rounds):
        todo: list[tuple[str, str, dict[str, Any]]] = [
            ("ceiling", "bench.gpu:ceiling", {"seconds": seconds}),
            ("transfer", "bench.gpu:transfer", {"seconds": seconds, "workers": workers}),
        ]
        ways = gpu.WAYS if at % 2 == 0 else gpu.WAYS[::-1]
        todo += [(way, "bench.gpu:training", {"way": way, "seconds": seconds, "workers": workers}) for way in ways]
        for subject, function, arguments in todo:
            out.print(f"round {at + 1} of {rounds}: {subject}", style="dim", highlight=False)
            measurements.append({"round": at, "subject": subject} | measured(function, arguments, timeout))
    result = {
        "bench": "device",
        "machine": {**machine(), "gpu": torch.cuda.get_device_name()},
        "settings": {"rounds": rounds, "seconds": seconds, "workers": workers, "batch": gpu.CASE.label},
        "summary": summary(measurements),
        "measurements": measurements,
    }
    write(result, output / "device.json")
    _print(out, result)
    return 1 if any("failure" in of for of in measurements) else 0


def summary(measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the rounds with their smallest and largest.

    ceiling, transfer: bytes a second; of_ceiling: the one by the other, round by round; page_locked: the share of
    batches that were not copied on the host; training: each of FIGURES for each way; next_p99_of_torch: of
    shmloader's ways, against torch's in the same round.
    """
    rounds: dict[int, dict[str, Any]] = {}
    for of in measurements:
        if "failure" not in of:
            rounds.setdefault(of["round"], {})[of["subject"]] = of
    known = list(rounds.values())

    def each(subject: str, figure: str) -> Any:
        return spread(by[subject][figure] for by in known if subject in by)

    def against(subject: str, other: str, figure: str) -> Any:
        return spread(by[subject][figure] / by[other][figure] for by in known if subject in by and other in by)

    return {
        "ceiling": each("ceiling", "bytes_per_second"),
        "transfer": each("transfer", "bytes_per_second"),
        "of_ceiling": against("transfer", "ceiling", "bytes_per_second"),
        "page_locked": each("transfer", "page_locked"),
        "training": {way: {figure: each(way, figure) for figure in FIGURES} for way in gpu.WAYS},
        "next_p99_of_torch": {way: against(way, "torch", "next_p99") for way in gpu.WAYS[1:]},
    }


def _print(out: Console, result: dict[str, Any]) -> None:
    of, settings = result["summary"], result["settings"]
    print_lines(
        out,
        [
            f"{settings['batch']} to {result['machine']['gpu']}; workers: {settings['workers']}, rounds: "
            f"{settings['rounds']}, medians [min..max]",
            f"copies from page-locked memory: {shown(of['ceiling'], 1e-9, all_of_it=True)} GB/s",
            f"copies from slots: {shown(of['transfer'], 1e-9, all_of_it=True)} GB/s, "
            f"{shown(of['of_ceiling'], 100, all_of_it=True)} % of that; "
            f"{shown(of['page_locked'], 100)} % of the batches lay in a page-locked slot",
        ],
    )
    table = Table(title="while training", title_justify="left")
    table.add_column("loader", no_wrap=True)
    for heading in ("images/s", "next() p50 us", "p99 us", "max us", "trainer CPU ms a batch", "GPU idle %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for way, figures in of["training"].items():
        scales = (1, 1e6, 1e6, 1e6, 1e3, 100)
        table.add_row(
            way,
            *(
                shown(figures[figure], scale, all_of_it=figure in ("images_per_second", "next_p99"))
                for figure, scale in zip(FIGURES, scales, strict=True)
            ),
        )
    out.print(table)
    print_lines(out, failures(result["measurements"], "subject"), style="red")
    print_lines(out, [in_one_line(result["machine"])])
