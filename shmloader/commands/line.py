"""The command line: its subcommands (COMMANDS), and the exit status of the process.

A command is a file here, or command.py in a folder.  It has add_to(), which adds its options, and run().  No command
removes stale shared memory, because a ring's memory has no name and goes with the last process that maps it
(ring/segment.py).
"""

from __future__ import annotations

import argparse
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
        output has gone.  argparse itself exits with 2.
    """
    given = parser().parse_args(arguments)
    try:
        status = int(given.run(given))
        print(end="", flush=True)
        return status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # `shmloader doctor | head -1`; otherwise the interpreter's last flush complains
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
