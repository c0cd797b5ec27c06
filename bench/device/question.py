"""Delivery to a GPU: the copies against a plain page-locked one, and training against torch's loader."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from rich.console import Console

from bench.core.question import Question, Turn, add_workers, seconds
from bench.core.results import by_round, machine, print_end, print_lines, table
from bench.core.spread import shown, spread
from bench.device import measure

FIGURES = ("images_per_second", "next_p50", "next_p99", "next_max", "trainer_cpu", "gpu_idle")
WITH_WARM_UP = 5.0  # seconds, about, before a measurement counts
NEEDED = (
    "the time that page-locking adds to next(), and the trainer's wait for the GIL, against torch's loader",
    "the rate of copies from slots, against a plain copy from page-locked memory",
    "images a second, the times that next() takes, and the GPU's idle share, while training, against torch's loader",
)


class Device(Question):
    name = "device"
    asks = "delivery to a GPU: copies, and training beside torch's loader"
    more = (
        "Batches of 256 x 3x224x224 uint8, with a training step of about 10 ms.  Writes device.json; where there is no "
        "GPU it says what cannot be measured."
    )

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--seconds", type=seconds, default=5.0, help="length of one measurement, after its warm-up")
        add_workers(parser)

    def why_not(self) -> list[str]:
        why = measure.why_not()
        return (
            [f"device: nothing is measured, for {why}.  It would be:", *(f"- {entry}" for entry in NEEDED)]
            if why
            else []
        )

    @staticmethod
    def _is_software() -> bool:
        return torch.cuda.is_available() and measure.SOFTWARE in torch.cuda.get_device_name()

    def settings(self) -> dict[str, Any]:
        given = self.given
        return {"seconds": given.seconds, "workers": given.workers, "batch": measure.CASE.label}

    def machine(self) -> dict[str, str | int]:
        return {**machine(), "gpu": torch.cuda.get_device_name()}

    def turns(self, at: int) -> list[Turn]:
        given = self.given
        ways = measure.WAYS if at % 2 == 0 else measure.WAYS[::-1]
        handed_by = measure.HANDED_BY if at % 2 == 0 else measure.HANDED_BY[::-1]
        todo: list[tuple[str, str, dict[str, Any]]] = [
            (f"handed by {way}", "handing", {"way": way, "workers": given.workers}) for way in handed_by
        ]
        todo.append(("locking", "locking", {"workers": 1}))
        if not self._is_software():  # which has no kernels, and whose copies are no device's
            todo += [
                ("ceiling", "ceiling", {}),
                ("transfer", "transfer", {"workers": given.workers}),
                *((way, "training", {"way": way, "workers": given.workers}) for way in ways),
            ]
        return [
            Turn(
                {"subject": subject},
                f"bench.device.measure:{function}",
                {"seconds": given.seconds, **arguments},
                WITH_WARM_UP + given.seconds,
                given.timeout,
            )
            for subject, function, arguments in todo
        ]

    def summary(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        return summary(measurements)

    def show(self, out: Console, result: dict[str, Any]) -> None:
        summary, settings = result["summary"], result["settings"]
        print_lines(
            out,
            [
                f"{settings['batch']} to {result['machine']['gpu']}; workers: {settings['workers']}, rounds: "
                f"{settings['rounds']}, medians [min..max]",
                *(
                    f"{measure.HANDED.label}, {way}: next() {shown(figures['next_p50'], 1e6, all_of_it=True)} us, "
                    f"the trainer's wait for the GIL {shown(figures['gil_wait'], 1e6, all_of_it=True)} us a batch"
                    for way, figures in summary["handed"].items()
                ),
                f"page-locking takes {shown(summary['page_locking'], 1e6, all_of_it=True)} us of a next(), "
                f"{shown(summary['page_locking_cpu'], 1e6, all_of_it=True)} us of the thread's CPU, "
                f"{shown(summary['page_locking_quarter'], 1e6, all_of_it=True)} us in the quickest quarter (by turns "
                "in one process)",
                f"copies from page-locked memory: {shown(summary['ceiling'], 1e-9, all_of_it=True)} GB/s",
                f"copies from slots: {shown(summary['transfer'], 1e-9, all_of_it=True)} GB/s, "
                f"{shown(summary['of_ceiling'], 100, all_of_it=True)} % of that; "
                f"{shown(summary['page_locked'], 100)} % of the batches lay in a page-locked slot",
            ],
        )
        columns = ("images/s", "next() p50 us", "p99 us", "max us", "trainer CPU ms a batch", "GPU idle %")
        made = table("while training", ["loader"], columns)
        for way, figures in summary["training"].items():
            scales = (1, 1e6, 1e6, 1e6, 1e3, 100)
            made.add_row(
                way,
                *(
                    shown(figures[figure], scale, all_of_it=figure in ("images_per_second", "next_p99"))
                    for figure, scale in zip(FIGURES, scales, strict=True)
                ),
            )
        out.print(made)
        print_end(out, result)


def summary(measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the rounds with their smallest and largest.

    ceiling, transfer: bytes a second; of_ceiling: the one by the other, round by round; page_locked: the share of
    batches that were not copied on the host; training: each of FIGURES for each way; next_p99_of_torch: of
    shmloader's ways, against torch's in the same round; handed: of each of HANDED_BY, the time of next() and the
    trainer's wait for the GIL; page_locking, page_locking_cpu, page_locking_quarter: seconds that it adds to a next(),
    as locking() has them.
    """
    known = by_round(measurements, "subject")

    def each(subject: str, figure: str) -> Any:
        return spread(by[subject][figure] for by in known if subject in by)

    def against(subject: str, other: str, figure: str) -> Any:
        return spread(by[subject][figure] / by[other][figure] for by in known if subject in by and other in by)

    def handed(way: str, figure: str) -> Any:
        return each(f"handed by {way}", figure)

    return {
        "handed": {way: {entry: handed(way, entry) for entry in ("next_p50", "gil_wait")} for way in measure.HANDED_BY},
        "page_locking": each("locking", "more"),
        "page_locking_cpu": each("locking", "more_cpu"),
        "page_locking_quarter": each("locking", "more_quarter"),
        "ceiling": each("ceiling", "bytes_per_second"),
        "transfer": each("transfer", "bytes_per_second"),
        "of_ceiling": against("transfer", "ceiling", "bytes_per_second"),
        "page_locked": each("transfer", "page_locked"),
        "training": {way: {figure: each(way, figure) for figure in FIGURES} for way in measure.WAYS},
        "next_p99_of_torch": {way: against(way, "torch", "next_p99") for way in measure.WAYS[1:]},
    }
