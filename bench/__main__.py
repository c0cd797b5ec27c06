"""The command line: `python -m bench transport`, `latency`, `deaths`, `profile_experiment`, `skew`."""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from bench.cases import CASES
from bench.experiment import FLOWS, PROFILES
from bench.profile_loaders import LOADERS
from bench.skew_measure import LOADERS as SKEW_LOADERS
from bench.uneven import SKEWS

EXTRAS = ("matplotlib", "rich")


def main(arguments: list[str] | None = None) -> int:
    """Run one bench; returns 0, or 1 where a measurement failed."""
    given = _parser().parse_args(arguments)
    missing = [name for name in EXTRAS if importlib.util.find_spec(name) is None]
    if missing:
        print(f"python -m bench needs {' and '.join(missing)}: pip install 'shmloader[bench]'", file=sys.stderr)
        return 2
    if given.bench == "transport":
        from bench import transport

        return transport.run(
            given.cases, given.rounds, given.seconds, given.workers, given.start_method, given.timeout, given.output
        )
    if given.bench == "deaths":
        from bench import deaths

        return deaths.run(given.start_methods, given.rounds, given.times, given.timeout, given.output)
    if given.bench == "profile_experiment":
        from bench import profile_experiment

        return profile_experiment.run(
            given.case,
            given.flow,
            given.loader,
            given.repeat,
            given.scale,
            given.iterations,
            given.serial_iterations,
            given.timeout,
            given.output,
        )
    if given.bench == "skew":
        from bench import skew

        return skew.run(
            given.cases,
            given.loaders,
            given.rounds,
            given.milliseconds,
            given.batches,
            given.batch_size,
            given.workers,
            given.timeout,
            given.output,
        )
    from bench import latency

    return latency.run(given.start_methods, given.rounds, given.restarts, given.workers, given.timeout, given.output)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measures torch's DataLoader and shmloader's side by side, in turns, each time in a new process.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    benches = parser.add_subparsers(dest="bench", required=True)
    methods = multiprocessing.get_all_start_methods()

    transport = benches.add_parser(
        "transport",
        help="batches a second, processor time and page faults of handing batches over",
        description="The dataset returns one prebuilt sample again and again, so collating and handing over is all "
        "that is measured.  Writes transport.json and transport.png.",
        epilog="cases: " + "; ".join(f"{case.name}: {case.label}" for case in CASES.values()),
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    transport.add_argument("--cases", nargs="+", choices=tuple(CASES), default=list(CASES), help="which to measure")
    transport.add_argument("--seconds", type=_seconds, default=1.5, help="length of one measurement, after its warm-up")
    transport.add_argument(
        "--start-method", choices=methods, default=multiprocessing.get_start_method(), help="how workers start"
    )

    latency = benches.add_parser(
        "latency",
        help="time to the first batch, of a new loader and of a further epoch",
        description="Batches of 128 x 3x32x32 uint8.  Writes latency.json.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    latency.add_argument(
        "--start-methods", nargs="+", choices=methods, default=["fork", "spawn"], help="how workers start"
    )
    latency.add_argument("--restarts", type=_count, default=3, help="further epochs in a measurement")

    deaths = benches.add_parser(
        "deaths",
        help="time until a killed worker is replaced, or reported",
        description="Kills the one worker while it makes the batch that is waited for.  Writes deaths.json.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    deaths.add_argument(
        "--start-methods", nargs="+", choices=methods, default=["fork", "spawn"], help="how workers start"
    )
    deaths.add_argument("--times", type=_count, default=5, help="deaths of each kind in a measurement")

    profile = benches.add_parser(
        "profile_experiment",
        help="waiting for batches whose samples take long, against an inference that takes about as long",
        description="The experiment that DI-engine's AsyncDataLoader documents, all its times being sleeps: 4 cases x "
        "3 flows x 6 loaders with 8 workers.  Writes profile_experiment.json and profile_experiment.png.",
        epilog="loaders: " + "; ".join(f"{name}: {label}" for name, label in LOADERS.items()),
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    profile.add_argument("--case", nargs="+", choices=tuple(PROFILES), default=list(PROFILES), help="what is loaded")
    profile.add_argument("--flow", nargs="+", choices=tuple(FLOWS), default=list(FLOWS), help="how fast it is wanted")
    profile.add_argument("--loader", nargs="+", choices=tuple(LOADERS), default=list(LOADERS), help="what loads it")
    profile.add_argument("--scale", type=_scale, default=1.0, help="factor of all times")
    profile.add_argument("--iterations", type=_iterations, default=50, help="batches; the first 5 are not counted")
    profile.add_argument(
        "--serial-iterations", type=_serial_iterations, default=7, help="the same without workers; the first is not"
    )
    profile.add_argument("--repeat", type=_count, default=1, help="measurements of each cell")

    skew = benches.add_parser(
        "skew",
        help="samples a second and idle workers, where some samples take much longer than others",
        description="Samples sleep, so that more workers than cores run at once; all batches are compared with those "
        "of one worker.  Chunks are quarters of a batch.  Writes skew.json and skew.png.",
        epilog="cases: " + "; ".join(f"{case.name}: {case.label}" for case in SKEWS.values()),
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    skew.add_argument("--cases", nargs="+", choices=tuple(SKEWS), default=list(SKEWS), help="which to measure")
    skew.add_argument("--loaders", nargs="+", choices=tuple(SKEW_LOADERS), default=list(SKEW_LOADERS), help="by whom")
    skew.add_argument("--milliseconds", type=_seconds, default=2.0, help="that most samples take")
    skew.add_argument("--batches", type=_count, default=400, help="of a measurement, after two for each worker")
    skew.add_argument("--batch-size", type=_count, default=16, help="samples in a batch")
    skew.add_argument("--workers", type=_count, default=8, help="worker processes")

    for bench in (transport, latency):
        bench.add_argument("--workers", type=_count, default=2, help="worker processes")
    for bench in (transport, latency, deaths, skew):
        bench.add_argument("--rounds", type=_count, default=5, help="measurements of each loader in each case")
    for bench in (transport, latency, deaths, profile, skew):
        bench.add_argument("--timeout", type=_seconds, default=60.0, help="seconds after which one process is killed")
        bench.add_argument("--output", type=Path, default=Path("bench/results"), help="folder for what is written")
    return parser


def _count(text: str) -> int:
    return int(_checked(int, text, 1))


def _iterations(text: str) -> int:
    return int(_checked(int, text, 6))


def _serial_iterations(text: str) -> int:
    return int(_checked(int, text, 2))


def _scale(text: str) -> float:
    return _checked(float, text, 0.001)


def _seconds(text: str) -> float:
    return _checked(float, text, 0.01)


def _checked(number: Callable[[str], float], text: str, least: float) -> float:
    try:
        value = number(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not least <= value < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is out of range: at least {least}, and below a million")
    return value


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that child.py kills what it started
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
