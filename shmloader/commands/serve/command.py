"""`shmloader serve MODULE:FUNCTION --name NAME`: the options, and how Ctrl-C and SIGTERM end it.
It decides how long a slow reader may hold up the others before it is dropped (--patience).
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from typing import Any

from shmloader.commands.numbers import positive

PATIENCE = 10  # seconds


def add_to(commands: Any) -> None:
    """Add this command to the parser's."""
    made = commands.add_parser(
        "serve",
        help="host a loader for other processes, which call shmloader.attach(NAME)",
        description="Hosts the loader that FUNCTION returns, epoch after epoch, until it is ended. Other processes of "
        "the same user read its batches with shmloader.attach(NAME). While none does, it pauses. It exits with 1 where "
        "the loader cannot be served; Ctrl-C and SIGTERM end it.",
    )
    made.add_argument("loader", metavar="MODULE:FUNCTION", help="returns a shmloader.DataLoader")
    made.add_argument("--name", required=True, help="what others attach to")
    made.add_argument(
        "--slow",
        choices=("leave", "wait"),
        default="leave",
        help="a reader that holds up the others is dropped, with an error (leave, the default), or they wait for it",
    )
    made.add_argument(
        "--patience",
        type=positive,
        default=PATIENCE,
        metavar="SECONDS",
        help=f"how long it may hold them up before it is dropped (default {PATIENCE})",
    )
    made.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Serve, until a signal ends it."""
    from shmloader.readers.server import serve

    loader = _made(given.loader)
    # A signal ends this process without a handler.  That is safe: nothing that it owns has a name, its workers follow
    # it, and readers notice that it is gone.  A Python handler would run only after the next batch, which never comes
    # while nobody reads.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)

    def started() -> None:
        print(f"shmloader serves {given.loader} as {given.name!r} (pid {os.getpid()})", flush=True)

    try:
        serve(loader, given.name, patience=None if given.slow == "wait" else given.patience, on_start=started)
    except (ValueError, OSError) as error:
        print(f"shmloader serve: {error}", file=sys.stderr)
        return 1
    return 0


def _made(named: str) -> Any:
    module, _, function = named.partition(":")
    if not module or not function:
        raise SystemExit(f"shmloader serve: {named!r} names no function. Write MODULE:FUNCTION, such as data:loader.")
    sys.path.insert(0, os.getcwd())
    return getattr(importlib.import_module(module), function)()
