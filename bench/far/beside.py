"""Far workers beside Ray Data: the figures from all rounds, and their table."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.core.results import by_round, table
from bench.core.spread import shown, spread
from bench.far.beside_ray import LOADERS, OURS, RAY_DATA

# Ray has an environment of its own, which `make test-ray` makes.
ENVIRONMENT = Path(__file__).resolve().parents[2] / ".venv-ray" / "bin" / "python"
NEEDS = ("ray", "pyarrow", "pandas")
MB = 1e-6

FIGURES = {  # in the JSON, and in the table in this unit
    "images_per_second": ("images/s", 1.0),
    "cpu": ("CPU ms an image", 1e3),
    "next_p99": ("next() p99, ms", 1e3),
    "held": ("batches, MB", MB),
    "whole": ("all memory, MB", MB),
    "slow_next_p99": ("slow loop: next() p99, ms", 1e3),
    "slow_held": ("slow loop: batches, MB", MB),
    "slow_whole": ("slow loop: all memory, MB", MB),
    "spilled": ("on disk, MB", MB),
    "first": ("first batch, s", 1.0),
}
RATIOS = {
    "rate": "images_per_second",
    "cpu": "cpu",
    "memory": "held",
    "whole_memory": "whole",
    "slow_memory": "slow_held",
    "slow_whole_memory": "slow_whole",
}


def python() -> str:
    """An interpreter that has Ray Data: this one or that of `make test-ray`; empty if there is none."""
    if all(importlib.util.find_spec(name) for name in NEEDS):
        return sys.executable
    return str(ENVIRONMENT) if ENVIRONMENT.exists() else ""


def summary(measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each loader the spread of each figure, and of ours by Ray Data's in the same round.

    `held` is memory for batches: what is in the object stores, and our ring.
    """
    known = [{name: _held(found) for name, found in by.items()} for by in by_round(measurements, "loader")]
    return {
        loader: {
            **{name: spread(by[loader][name] for by in known if loader in by) for name in FIGURES},
            "of_ray_data": {
                ratio: spread(
                    by[loader][name] / max(by[RAY_DATA][name], 1e-9) for by in known if {loader, RAY_DATA} <= by.keys()
                )
                for ratio, name in RATIOS.items()
            },
        }
        for loader in LOADERS
        if any(loader in by for by in known)
    }


def _held(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "held": found["store"] + found["ring"], "slow_held": found["slow_store"] + found["ring"]}


def print_table(out: Console, found: dict[str, Any], settings: dict[str, Any]) -> None:
    asked = settings["ray"]
    ratios = found[OURS]["of_ray_data"] if OURS in found else {}
    made = table(
        f"beside Ray Data; {asked['files']}; batches of {asked['batch_size']}, float32; "
        f"rounds: {settings['rounds']}, medians \\[min..max]",
        [""],
        [*found, *(["shmloader / Ray Data"] if ratios else [])],
    )
    ratio_of = {name: ratio for ratio, name in RATIOS.items()}
    for name, (heading, scale) in FIGURES.items():
        row = [shown(one[name], scale, all_of_it=True) for one in found.values()]
        if ratios:
            row.append(shown(ratios[ratio_of[name]], all_of_it=True) if name in ratio_of else "")
        made.add_row(heading, *row)
    out.print(made)
