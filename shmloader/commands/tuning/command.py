"""`shmloader tune`: a dataset that a function makes, and the options of tune()."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

from shmloader.commands.numbers import bytes_of, positive, seconds_of, some_seconds_of
from shmloader.commands.tuning.tune import MOST_WORKERS, tune

if TYPE_CHECKING:
    from shmloader.commands.tuning.result import Tuning

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
    parser.add_argument(
        "make", metavar="MODULE:FUNCTION", help="function without arguments that returns a dataset or a DataLoader"
    )
    step = parser.add_mutually_exclusive_group()
    step.add_argument("--step-s", type=seconds_of, metavar="S", help="seconds of a training step (default: 0)")
    step.add_argument("--consumer", metavar="MODULE:FUNCTION", help="function that is called with each batch instead")
    parser.add_argument("--batch-size", type=positive, metavar="N", help="(default: the loader's, or 1)")
    parser.add_argument(
        "--seconds", type=some_seconds_of, default=60.0, metavar="S", help="time for all measurements (default: 60)"
    )
    parser.add_argument(
        "--memory-bytes",
        type=bytes_of,
        metavar="SIZE",
        help="memory for all ranks, such as 8G (default: 80 %% of what is free)",
    )
    parser.add_argument(
        "--ranks", type=positive, metavar="N", help="loaders on this machine (default: LOCAL_WORLD_SIZE, or 1)"
    )
    parser.add_argument(
        "--most-workers", type=positive, default=MOST_WORKERS, metavar="N", help=f"(default: {MOST_WORKERS})"
    )
    parser.add_argument("--start-method", choices=("fork", "spawn", "forkserver"), help="(default: Python's)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Measure and print; returns the exit status."""
    options: dict[str, Any] = {}
    if given.batch_size is not None:
        options["batch_size"] = given.batch_size
    if given.start_method is not None:
        options["multiprocessing_context"] = given.start_method
    try:
        make = find(given.make)
        consumer = None if given.consumer is None else find(given.consumer)
    except (ImportError, AttributeError, ValueError) as error:
        print(f"shmloader tune: {error}", file=sys.stderr)
        return 2
    try:
        dataset = make()
    except Exception:
        traceback.print_exc()
        return 1
    try:
        found = tune(
            dataset,
            step_s=given.step_s,
            consumer=consumer,
            seconds=given.seconds,
            memory_bytes=given.memory_bytes,
            ranks=given.ranks,
            most_workers=given.most_workers,
            **options,
        )
    except Exception as error:  # of a worker: its text has the traceback
        print(f"shmloader tune: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    if given.json:
        print(json.dumps(found.to_dict(), indent=1))
    elif not _in_colours(found):
        print(found)
    return 0


def find(name: str) -> Any:
    """The function that "module:function" names; the module may be in the working directory.

    Raises:
        ValueError: The name has no colon, or names something that cannot be called.
        ImportError, AttributeError: There is no such module or function.
    """
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise ValueError(f"{name!r} names no function. Write MODULE:FUNCTION, such as train:make_dataset.")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())  # a console script has its own folder there
    found = importlib.import_module(module)
    for part in function.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"{name!r} cannot be called. It is {found!r}. Name a function that returns the dataset.")
    return found


def _in_colours(found: Tuning) -> bool:
    """Print with rich; false if rich is not installed or the output is no terminal."""
    if not sys.stdout.isatty():
        return False
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        return False
    from shmloader.commands.tuning.result import HEADINGS

    out, table = Console(), Table(box=None)
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading else "left")
    for cells in found.cells():
        table.add_row(*cells, style="bold green" if cells[-1] == "<- pick" else None)
    out.print(table)
    for line in found.sentences():
        out.print(line, markup=False, highlight=False, soft_wrap=True)
    return True
