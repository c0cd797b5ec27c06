"""`shmloader top`: its options, the live view and one look, and how often it looks, finds rings and asks for stacks."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from shmloader.commands.arguments import positive, seconds_of

if TYPE_CHECKING or (sys.platform == "linux" and sys.maxsize > 2**32):  # the core is not built elsewhere
    from shmloader.commands.top.rings import Held, Key, Rings, stack_of
    from shmloader.commands.top.screen import picture, plain
    from shmloader.commands.top.view import LoaderView, Watched

EXIT = """exit status:
  0    it has shown loaders
  1    there is no such process; with --once, --json or in a pipe: no loader is iterating; or rich is missing for the
       live view
  2    the command line is wrong
  130  Ctrl-C ended it"""
LEAST_INTERVAL = 0.1  # seconds
STACK_EVERY = 5.0  # seconds, because each request interrupts the worker
FIND_EVERY = 2.0  # seconds, because a search through all processes takes milliseconds of a core


def add_to(commands: Any) -> None:
    """Add this command to a parser."""
    parser = commands.add_parser(
        "top",
        help="show the loaders of running processes, live",
        description="Shows each loader of a running process, or of all your processes: batches a second, the share of\n"
        "time that the trainer waits, and what each worker is doing. It only reads, so it costs the loaders nothing.",
        epilog=EXIT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pid", type=positive, nargs="?", metavar="PID", help="process of the trainer (default: all)")
    parser.add_argument(
        "--interval", type=seconds_of, default=0.5, metavar="S", help="seconds between updates (default: 0.5)"
    )
    parser.add_argument("--once", action="store_true", help="print the state once as plain text, and exit")
    parser.add_argument("--json", action="store_true", help="print the state once as JSON, and exit")
    parser.add_argument(
        "--stack",
        action="store_true",
        help="also show the Python stack of the worker that the trainer waits for (interrupts it for microseconds)",
    )
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Show loaders; returns the exit status."""
    if sys.platform != "linux":
        print("shmloader top: there are no rings off Linux", file=sys.stderr)
        return 1
    if given.pid is not None and not os.path.isdir(f"/proc/{given.pid}"):
        print(f"shmloader top: there is no process {given.pid}", file=sys.stderr)
        return 1
    top = Top(Rings(given.pid), given.stack)
    interval = max(LEAST_INTERVAL, given.interval)
    if given.once or given.json or not sys.stdout.isatty():
        return _print_once(top, interval, given.json)
    if importlib.util.find_spec("rich") is None:
        print(
            "shmloader top: the live view needs rich: pip install 'shmloader[tools]'. `shmloader top --once` does "
            "without.",
            file=sys.stderr,
        )
        return 1
    return _live(top, interval)


class Top:
    """Looks at all rings.

    Args:
        rings: Finds the rings.
        stacks: Whether to ask a worker for its stack while the trainer waits for it.
    """

    def __init__(self, rings: Rings, stacks: bool) -> None:
        self.rings, self._asks = rings, stacks
        self._held: list[Held] = []
        self._found_at = -FIND_EVERY
        self._watched: dict[Key, Watched] = {}
        self._stacks: dict[int, tuple[float, str]] = {}  # for each worker's pid, when it was asked, and its answer

    def look(self) -> list[LoaderView]:
        """The present state of all loaders."""
        now = time.monotonic()
        if now - self._found_at >= FIND_EVERY or any(one.ring.closed for one in self._held):
            self._held, self._found_at = self.rings.find(), now
        self._watched = {one.key: self._watched.get(one.key) or Watched() for one in self._held}
        loaders: list[LoaderView] = []
        for one in self._held:
            with contextlib.suppress(ValueError):  # it was closed in the meantime
                loaders.append(self._watched[one.key].look(one))
        if self._asks:
            self._ask([lane.pid for loader in loaders for lane in loader.lanes if lane.awaited and lane.pid])
        return loaders

    def _ask(self, pids: list[int]) -> None:
        now = time.monotonic()
        answered = {pid: answer for pid, answer in self._stacks.items() if now - answer[0] < STACK_EVERY}
        self._stacks = {pid: answered.get(pid) or (now, stack_of(pid)) for pid in pids}

    @property
    def stacks(self) -> dict[int, str]:
        """The answers of the workers that were asked, by their pids."""
        return {pid: answer for pid, (_, answer) in self._stacks.items()}


def _print_once(top: Top, interval: float, as_json: bool) -> int:
    top.look()
    time.sleep(interval)  # because rates need two looks
    loaders = top.look()
    if top.rings.others:
        text = f"shmloader top: rings of another version of shmloader cannot be shown ({len(top.rings.others)}): "
        print(text + "use the one that the trainer runs", file=sys.stderr)
    if as_json:
        fields = {"loaders": [asdict(loader) for loader in loaders], "stacks": top.stacks}
        print(json.dumps(fields, indent=1))
    else:
        print("\n".join(plain(loaders, top.stacks)))
    return 0 if loaders else 1


def _live(top: Top, interval: float) -> int:
    from rich.live import Live

    with Live(screen=True, auto_refresh=False) as live:
        while True:
            live.update(picture(top.look(), top.stacks), refresh=True)
            time.sleep(interval)
