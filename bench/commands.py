"""The commands: one for each question, `all` for those of `make bench`, and `agree` to compare two results of one."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.cache.question import Cache
from bench.core import agreement
from bench.core.against import Against
from bench.core.question import UNFINISHED, Question, add_data, add_shared_options, answer, expected, minutes
from bench.core.results import console, print_lines
from bench.device.question import Device
from bench.far.question import Far
from bench.images.question import Images
from bench.latency.question import Latency
from bench.network.question import Network
from bench.patterns.question import Patterns
from bench.peers.question import Peers
from bench.readers.question import Readers
from bench.recipes.question import Recipes
from bench.resume.question import Resume
from bench.scale import Scale
from bench.skew.question import Skew
from bench.start.question import Start
from bench.storage.question import Storage
from bench.transport.question import Transport

_ALL = (
    *(Peers, Transport, Latency, Resume, Device, Skew, Images, Recipes, Start),
    Patterns,
    Cache,
    Storage,
    Readers,
    Far,
    Scale,
    Network,
)
QUESTIONS = {asks.name: asks for asks in _ALL}
WHOLE = ("peers", "latency")


def parser() -> argparse.ArgumentParser:
    """The parser of `python -m bench`; each question is a command, with options of its own."""
    made = argparse.ArgumentParser(
        prog="python -m bench", description="Measures loaders side by side, in turns, each time in a new process."
    )
    commands = made.add_subparsers(dest="bench", required=True)
    usual = argparse.ArgumentDefaultsHelpFormatter
    for name, question in QUESTIONS.items():
        command = commands.add_parser(name, help=question.asks, description=question.more, formatter_class=usual)
        question.add_options(command)
        add_shared_options(command, question.rounds)
    whole = commands.add_parser(
        "all",
        help=f"{' and '.join(WHOLE)}, one after the other",
        description="transport is left out: peers measures the same of more loaders.",
        formatter_class=usual,
    )
    add_data(whole)
    add_shared_options(whole, None)
    agree = commands.add_parser(
        "agree",
        help="whether two runs of a bench agree within their own spreads",
        description="Compares batches a second, seconds and ratios in two of the JSON files that benches write.",
    )
    agree.add_argument("one", type=Path, help="of one run")
    agree.add_argument("other", type=Path, help="of the other")
    return made


def run(given: argparse.Namespace) -> int:
    """Run a command line; returns the exit status."""
    if given.bench == "agree":
        return agreement.run(given.one, given.other)
    if given.bench == "all":
        return _answer_all([QUESTIONS[name](_as_for(name, given)) for name in WHOLE])
    if getattr(given, "against", None) and not QUESTIONS[given.bench].compares_checkouts:
        return answer(Against(given))
    return answer(QUESTIONS[given.bench](given))


def _as_for(name: str, given: argparse.Namespace) -> argparse.Namespace:
    """The options of `all`, in the form of one of its questions."""
    single = parser().parse_args([name])
    shared = {option: value for option, value in vars(given).items() if option in vars(single) and value is not None}
    return argparse.Namespace(**{**vars(single), **shared, "bench": name})


def _answer_all(questions: list[Question]) -> int:
    lengths = {question.name: expected(question, range(question.given.rounds)) for question in questions}
    each = ", ".join(f"{name} {minutes(length)}" for name, length in lengths.items())
    print_lines(console(), [f"about {minutes(sum(lengths.values()))} in all: {each}"])
    worst = 0
    for question in questions:
        code = answer(question)
        if code == UNFINISHED:
            return code
        worst = max(worst, code)
    return worst
