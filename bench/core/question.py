"""A question, and how it is answered: in rounds, each measurement in its own process, with all results kept.
It has the options of all questions, and refuses --resume after other options, another machine or another commit.

A question defines its rounds, and the figures that come from all rounds.  This module prints how long it will take,
runs the rounds, writes the results after each of them, and shows them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from bench.core import child
from bench.core.results import console, machine, print_lines, write

STARTING = 2.5  # seconds, about, that a process takes to start, to import torch, and to end
UNFINISHED = 130  # the shell's status of a program that Ctrl-C ended
METHODS = multiprocessing.get_all_start_methods()


@dataclass(frozen=True)
class Turn:
    """One measurement of a round.

    Args:
        labels: its subject: the keys by which it is found in the JSON, as in {"case": "scalar", "subject": "torch"}.
        function, arguments: see child.run().
        seconds: how long it measures, about, with its warm-up.
        timeout: seconds after which its process is killed.
        python, checkout: see child.run().
        gives_up: whether it is not tried again in later rounds after it has failed.
        failure: why it is not even tried.
    """

    labels: dict[str, str]
    function: str
    arguments: dict[str, Any]
    seconds: float
    timeout: float
    python: str = sys.executable
    checkout: Path | None = None
    gives_up: bool = False
    failure: str = ""

    @property
    def takes(self) -> float:
        """Seconds, about, from one measurement to the next."""
        return 0.0 if self.failure else STARTING + self.seconds

    def measure(self) -> dict[str, Any]:
        """The function's result, from its own process; {"failure": why} if there is none."""
        if self.failure:
            return {"failure": self.failure}
        try:
            found: dict[str, Any] = child.run(self.function, self.arguments, self.timeout, self.python, self.checkout)
        except child.ChildError as failure:
            return {"failure": str(failure)}
        return found

    def has_failed(self, measurements: list[dict[str, Any]]) -> bool:
        return any("failure" in each and self.labels.items() <= each.items() for each in measurements)


class Question(ABC):
    """A measurement, with the options of the command line.

    Attributes:
        name: on the command line, of its files, and in its JSON.
        asks: the question, in a line.
        more: further text of --help.
        rounds: the default number of rounds.
        compares_checkouts: whether it handles --against itself.  Otherwise against.py does.
    """

    name: str
    asks: ClassVar[str]
    more: ClassVar[str]
    rounds: ClassVar[int] = 5
    compares_checkouts: ClassVar[bool] = False

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given

    @staticmethod
    @abstractmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        """Add this question's own options to the command line."""

    def why_not(self) -> list[str]:
        """Why nothing can be measured here, in lines; empty if it can."""
        return []

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The conditions of the figures, as JSON."""

    @contextmanager
    def prepared(self, out: Console) -> Iterator[None]:
        """Around all rounds: make what they need, and remove it."""
        yield

    @abstractmethod
    def turns(self, at: int) -> list[Turn]:
        """The measurements of the round of this number, in their order."""

    def checked(self, found: dict[str, Any]) -> dict[str, Any]:
        """The result of a measurement, or a failure if it cannot be true."""
        return found

    @abstractmethod
    def summary(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        """The figures from all rounds."""

    def machine(self) -> dict[str, str | int]:
        return machine()

    def also(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        """Further values of its JSON."""
        return {}

    @abstractmethod
    def show(self, out: Console, result: dict[str, Any]) -> None:
        """Print the tables of a result."""

    def draw(self, result: dict[str, Any], path: Path) -> None:  # noqa: B027  (some have no picture)
        """Draw the picture of a result as a PNG."""

    def failed(self, result: dict[str, Any]) -> bool:
        """Whether a result is an error of the whole run."""
        return any("failure" in each for each in result["measurements"])


def add_shared_options(parser: argparse.ArgumentParser, rounds: int | None) -> None:
    """The options that every question has; rounds=None: each question's own default."""
    each = "" if rounds else " (each question's own number)"
    parser.add_argument("--rounds", type=count, default=rounds, help=f"measurements of each kind{each}")
    parser.add_argument("--timeout", type=seconds, default=60.0, help="seconds after which one process is killed")
    parser.add_argument(
        "--into",
        type=Path,
        default=Path("build/bench"),
        help="folder for what is written; bench/results has the figures that are published",
    )
    parser.add_argument(
        "--resume", action="store_true", help="keep the rounds that are there from a run with the same options"
    )


def add_workers(parser: argparse.ArgumentParser, workers: int = 2) -> None:
    parser.add_argument("--workers", type=count, default=workers, help="worker processes")


def add_start_method(parser: argparse.ArgumentParser) -> None:
    usual = multiprocessing.get_start_method()
    parser.add_argument("--start-method", choices=METHODS, default=usual, help="how workers start")


def add_start_methods(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--start-methods", nargs="+", choices=METHODS, default=["fork", "spawn"], help="how workers start"
    )


def add_choice(parser: argparse.ArgumentParser, option: str, choices: tuple[str, ...], help: str) -> None:
    """An option that takes some of these; the default is all."""
    parser.add_argument(option, nargs="+", choices=choices, default=list(choices), help=help)


def add_data(parser: argparse.ArgumentParser) -> None:
    """The option of questions that read JPEG files, see jpegs.given_or_made()."""
    parser.add_argument("--data", type=Path, help="folder of JPEG files; the bench makes some where none is given")


def number(kind: Callable[[str], float], least: float) -> Callable[[str], Any]:
    """The type of an option that is a number of this kind, with a minimum."""

    def checked(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not least <= value < 1e9:
            raise argparse.ArgumentTypeError(f"{text} is out of range: at least {least}, and below a billion")
        return value

    return checked


count = number(int, 1)
seconds = number(float, 0.01)


def expected(question: Question, rounds: range) -> float:
    """Seconds, about, that these rounds take, with the preparation."""
    return sum(turn.takes for at in rounds for turn in question.turns(at))


def minutes(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min"


def answer(question: Question) -> int:
    """Answer a question and show the result.

    Its JSON is written after each round, so an interrupted run loses only its last round; its picture is drawn at the
    end.  Returns 0, 1 if the result is an error, or UNFINISHED.
    """
    out, given = console(), question.given
    if why := question.why_not():
        print_lines(out, why)
        return 0
    path = given.into / f"{question.name}.json"
    held = Kept(question, path)
    if given.resume:
        held.take_up()
    todo = range(held.rounds, given.rounds)
    found = f", {held.rounds} of them there already" if held.rounds else ""
    about = minutes(expected(question, todo))
    print_lines(out, [f"{question.name}: rounds: {given.rounds}{found}; about {about}; into {path}"])
    interrupted = False
    try:
        with question.prepared(out):
            _measure(question, todo, held)
    except KeyboardInterrupt:
        interrupted = True
    if held.rounds:
        question.draw(held.result, path.with_suffix(".png"))
        question.show(out, held.result)
    if interrupted:
        rest = "--resume goes on" if held.rounds else "nothing is kept"
        print_lines(out, [f"interrupted after {held.rounds} of {given.rounds} rounds; {rest}"], style="yellow")
        return UNFINISHED
    return 1 if question.failed(held.result) else 0


class Kept:
    """The rounds that are done, and their file."""

    def __init__(self, question: Question, path: Path) -> None:
        self.rounds = 0
        self.result: dict[str, Any] = {}
        self._question = question
        self._path = path
        self._measurements: list[dict[str, Any]] = []
        self._took, self._began = 0.0, time.monotonic()
        self._asked = {
            option: str(value) if isinstance(value, Path) else value
            for option, value in vars(question.given).items()
            if option not in ("rounds", "timeout", "into", "resume", "against", "data")  # no paths in a JSON
        }

    def add(self, measurements: list[dict[str, Any]]) -> None:
        """Keep the measurements of one more round."""
        self._measurements += measurements
        self.rounds += 1
        took = round(self._took + time.monotonic() - self._began)
        question = self._question
        self.result = {
            "bench": question.name,
            "machine": question.machine(),
            "asked": self._asked,
            "settings": {"rounds": self.rounds, **question.settings(), "took": took},
            **question.also(self._measurements),
            "summary": question.summary(self._measurements),
            "measurements": self._measurements,
        }
        write(self.result, self._path)

    def take_up(self) -> None:
        """Continue with the rounds in the file, which must have the same options, machine and commit."""
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        except ValueError as error:
            sys.exit(f"--resume: {self._path} is no JSON ({error}); run without --resume")
        undated = {**self._question.machine(), "date": found["machine"]["date"]}
        for name, was, now in (("options", found.get("asked"), self._asked), ("machine", found["machine"], undated)):
            if was != json.loads(json.dumps(now)):
                differ = sorted(key for key in now if not was or was.get(key) != now[key])
                sys.exit(f"--resume: {self._path} is of other {name} ({', '.join(differ)}); run without --resume")
        self.result, self._measurements = found, found["measurements"]
        self.rounds, self._took = found["settings"]["rounds"], found["settings"]["took"]


class _Clock:
    """How many rounds are done, and how long the rest will take at this pace."""

    def __init__(self, expected: float) -> None:
        self.expected = expected
        self.done = 0.0  # of the expected seconds
        self._began = time.monotonic()

    def left(self) -> str:
        pace = (time.monotonic() - self._began) / self.done if self.done else 1.0
        return f"about {minutes((self.expected - self.done) * pace)} left"


def _measure(question: Question, todo: range, kept: Kept) -> None:
    out = Console()  # no wider than the terminal, because a progress line that wraps cannot be drawn over
    plan = {at: question.turns(at) for at in todo}
    clock = _Clock(sum(turn.takes for turns in plan.values() for turn in turns))
    # Drawn between two measurements and never during one, because drawing takes processor time.
    bar = Progress(
        BarColumn(),
        TextColumn("{task.fields[left]}: {task.description}"),
        console=out,
        auto_refresh=False,
        disable=not out.is_terminal,
        transient=True,
    )
    with bar:
        shown = bar.add_task("", left="")
        for at, turns in plan.items():
            measurements = []
            for turn in turns:
                if turn.gives_up and turn.has_failed(kept.result.get("measurements", [])):
                    clock.expected -= turn.takes
                    continue
                doing, left = f"round {at + 1} of {todo.stop}: {', '.join(turn.labels.values())}", clock.left()
                bar.update(
                    shown, completed=clock.done, total=clock.expected, description=doing, left=left, refresh=True
                )
                if not out.is_terminal:
                    out.print(f"{doing} ({left})", style="dim", highlight=False)
                found = question.checked(turn.measure())
                clock.done += turn.takes
                if "failure" in found and not turn.failure:
                    print_lines(out, [f"{doing}: {found['failure']}"], style="red")
                measurements.append({"round": at, **turn.labels, **found})
            kept.add(measurements)
