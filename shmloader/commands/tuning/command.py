"""`shmloader tune`: a dataset that a function makes, and the options of tune()."""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from typing import Any

from shmloader.commands.arguments import bytes_of, function_of, positive, seconds_of, some_seconds_of
from shmloader.commands.tuning.tune import tune

EXIT = """example:
  shmloader tune train:make_dataset --batch-size 64 --step-s 0.05

exit status:
  0  it has a pick
  1  the dataset could not be measured
  2  the command line is wrong, or there is no such function"""


def add_to(commands: Any) -> None:
    """Add this command to a parser's."""
    parser = commands.add_parser(
        "tune",
        help="find the number of workers and the options for a dataset on this machine",
        description="Measures num_workers, prefetch_factor, schedule and chunk_size on your dataset.\n"
        "Prints a table, the best setting, and the line to paste.",
        epilog=EXIT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    name, add, step = "MODULE:FUNCTION", parser.add_argument, parser.add_mutually_exclusive_group().add_argument
    add("make", metavar=name, help="function without arguments that returns a dataset or a DataLoader")
    step("--step-s", type=seconds_of, metavar="S", help="seconds of a training step (default: 0)")
    step("--consumer", metavar=name, help="function that is called with each batch instead")
    add("--batch-size", type=positive, metavar="N", help="(default: the loader's, or 1)")
    add("--seconds", type=some_seconds_of, metavar="S", help="time for all measurements (default: 60)")
    add("--memory-bytes", type=bytes_of, metavar="SIZE", help="memory for all ranks (default: 80 %% of what is free)")
    add("--ranks", type=positive, metavar="N", help="loaders on this machine (default: LOCAL_WORLD_SIZE, or 1)")
    add("--most-workers", type=positive, metavar="N", help="(default: 64)")
    methods = ("fork", "spawn", "forkserver")
    add("--start-method", choices=methods, dest="multiprocessing_context", help="(default: Python's)")
    add("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Measure and print; returns the exit status."""
    others = ("run", "command", "make", "json")
    options = {name: value for name, value in vars(given).items() if name not in others and value is not None}
    try:
        make = function_of(given.make)
        if given.consumer is not None:
            options["consumer"] = function_of(given.consumer)
    except (ImportError, AttributeError, ValueError) as error:
        print(f"shmloader tune: {error}", file=sys.stderr)
        return 2
    try:
        dataset = make()
    except Exception:
        traceback.print_exc()
        return 1
    try:
        found = tune(dataset, **options)
    except Exception as error:  # of a worker: its text has the traceback
        print(f"shmloader tune: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found.to_dict(), indent=1) if given.json else found)
    return 0
