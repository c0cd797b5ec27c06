"""The command line, and what the process exits with."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys

import torch

import shmloader
from shmloader.commands.doctor import command as doctor
from shmloader.commands.serve import command as serve
from shmloader.commands.top import command as top
from shmloader.commands.tuning import command as tuning

COMMANDS = (doctor, serve, tuning, top)


def parser() -> argparse.ArgumentParser:
    """The parser of `shmloader`; each command has options of its own."""
    made = argparse.ArgumentParser(prog="shmloader", description="Looks after loaders: of this machine, and running.")
    made.add_argument(
        "--version", action="version", version=f"shmloader {shmloader.__version__}, torch {torch.__version__}"
    )
    commands = made.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_to(commands)
    return made


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line asks for.

    Args:
        arguments: Those behind the program's name (default None: the process's own).

    Returns:
        What the process is to exit with: 0, or 1 as each command's help says, or 130 where Ctrl-C ended it, or 141
        where whoever reads its output has gone, or 74 where the output cannot be written (os.EX_IOERR).  argparse
        exits with 2 by itself.
    """
    given = parser().parse_args(arguments)
    if sys.stdout is None:  # the shell has closed it (>&-): only the exit status is wanted
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
        if (why := _why_no_output()) is None:  # it was something else
            raise
        _drop_output()
        with contextlib.suppress(OSError):  # it may be the same file
            print(f"shmloader {given.command}: the output cannot be written: {why}", file=sys.stderr)
        return os.EX_IOERR


def _why_no_output() -> str | None:
    """Why nothing can be printed; None if it can."""
    try:
        print(flush=True)  # and not a flush alone: with PYTHONUNBUFFERED, what was refused is not kept
    except OSError as error:
        return error.strerror
    return None


def _drop_output() -> None:
    """Have what is still to be written go nowhere: else the interpreter's last flush complains."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
