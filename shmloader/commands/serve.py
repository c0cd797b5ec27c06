"""`shmloader serve MODULE:FUNCTION --name NAME`: its options, and how Ctrl-C, SIGTERM and errors end it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from typing import Any

from shmloader.commands.arguments import function_of, patience_of, positive

PATIENCE = 10.0  # seconds


def add_to(commands: Any) -> None:
    """Add this command to the parser's."""
    made = commands.add_parser(
        "serve",
        help="host a loader for other processes, which call shmloader.attach(NAME)",
        description="Hosts the loader that FUNCTION returns, epoch after epoch, until it is ended. Other processes of "
        "the same user read its batches with shmloader.attach(NAME). While none does, it pauses. It exits with 1 where "
        "the loader cannot be served or raises; Ctrl-C and SIGTERM end it.",
    )
    made.add_argument("loader", metavar="MODULE:FUNCTION", help="returns a shmloader.DataLoader")
    made.add_argument("--name", required=True, help="what others attach to")
    made.add_argument(
        "--patience",
        type=patience_of,
        default=PATIENCE,
        metavar="SECONDS",
        help="how long a reader may hold up the others before it is dropped, with an error "
        f"(default {PATIENCE:g}; inf: they wait for it)",
    )
    made.add_argument(
        "--readers",
        type=positive,
        default=1,
        metavar="NUMBER",
        help="how many must have attached before the first of them gets a batch (default 1)",
    )
    made.add_argument(
        "--state",
        metavar="FILE",
        help="begin at the state in this file, which torch.save() has written: that of a reader or of the loader",
    )
    made.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Serve, until a signal ends it."""

    from shmloader.readers.server import serve
    from shmloader.readers.taken import check_servable

    try:
        make = function_of(given.loader)
    except ValueError as error:
        raise SystemExit(f"shmloader serve: {error}") from None
    loader = make()
    # A signal ends this process without a handler.  That is safe: nothing that it owns has a name, its workers follow
    # it, and readers notice that it is gone.  A Python handler would run only after the next batch, which never comes
    # while nobody reads.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)

    def started() -> None:
        print(f"shmloader serves {given.loader} as {given.name!r} (pid {os.getpid()})", flush=True)

    try:
        check_servable(loader)
        if given.state is not None:
            loader.load_state_dict(_state_in(given.state))
        serve(loader, given.name, patience=given.patience, needed=given.readers, on_start=started)
    except (ValueError, OSError) as error:
        print(f"shmloader serve: {error}", file=sys.stderr)
    except Exception:
        traceback.print_exc()
    # Readers may still read what this process has lent, and the interpreter's end would give that memory back.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _state_in(file: str) -> Any:
    import torch

    try:
        return torch.load(file, map_location="cpu", weights_only=False)
    except OSError:
        raise
    except Exception as error:
        raise ValueError(
            f"--state {file} is no file that torch.save() has written ({type(error).__name__}). Save the state_dict() "
            "of a reader or of a loader with torch.save()."
        ) from None
