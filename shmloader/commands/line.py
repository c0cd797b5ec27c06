"""The command line: its subcommands (COMMANDS), and the exit status of the process.

A command is a file here, or command.py in a folder.  It has add_to(), which adds its options, and run().  No command
removes stale shared memory, because a ring's memory has no name and goes with the last process that maps it
(ring/segment.py).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys

import torch

import shmloader
from shmloader.commands import index, serve
from shmloader.commands.doctor import command as doctor
from shmloader.commands.top import command as top
from shmloader.commands.tuning import command as tuning

COMMANDS = (doctor, tuning, top, index, serve)


def parser() -> argparse.ArgumentParser:
    """The parser of `shmloader`; each command has options of its own."""
    made = argparse.ArgumentParser(prog="shmloader", description="Checks, measures and watches loaders.")
    made.add_argument(
        "--version", action="version", version=f"shmloader {shmloader.__version__}, torch {torch.__version__}"
    )
    commands = made.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_to(commands)
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run a command line.

    Args:
        arguments: The arguments after the program's name (default None: the process's own).

    Returns:
        The exit status: 0, or 1 as each command's help explains; 130 if Ctrl-C ended it; 141 if the reader of its
        output has gone; 74 if the output cannot be written (os.EX_IOERR).  argparse itself exits with 2.
    """
    given = parser().parse_args(arguments)
    if sys.stdout is None:  # the shell has closed it (>&-), so only the exit status is wanted
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    try:
        status = int(given.run(given))
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # `shmloader doctor | head -1`
        _drop_output()
        return 128 + signal.SIGPIPE
    except OSError:
        if (why := _why_no_output()) is None:  # the output works, so it was another error
            raise
        _drop_output()
        with contextlib.suppress(OSError):  # stderr may be the same file
            print(f"shmloader {given.command}: the output cannot be written: {why}", file=sys.stderr)
        return os.EX_IOERR


def _why_no_output() -> str | None:
    """Why nothing can be printed; None if it can."""
    try:
        print(flush=True)  # a flush alone is not enough: with PYTHONUNBUFFERED, refused bytes are not kept
    except OSError as error:
        return error.strerror
    return None


def _drop_output() -> None:
    """Discard what is still to be written.  Otherwise the interpreter's last flush complains."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
