"""The command line: `python -m bench --help`."""

from __future__ import annotations

import argparse
import importlib.util
import signal
import sys

from bench.cases import CASES
from bench.options import parser

EXTRAS = ("matplotlib", "rich")
WHOLE = ("peers", "growth", "latency", "deaths")


def main(arguments: list[str] | None = None) -> int:
    """Run one bench, or all; returns 0, or 1 where a measurement failed."""
    given = parser().parse_args(arguments)
    missing = [name for name in EXTRAS if importlib.util.find_spec(name) is None]
    if missing:
        print(f"python -m bench needs {' and '.join(missing)}: pip install 'shmloader[bench]'", file=sys.stderr)
        return 2
    if given.bench == "all":
        shared = ["--timeout", str(given.timeout), "--output", str(given.output)]
        shared += ["--rounds", str(given.rounds)] if given.rounds else []
        data = ["--data", str(given.data)] if given.data else []
        return max([_run(parser().parse_args([name, *shared, *(data if name == "peers" else [])])) for name in WHOLE])
    return _run(given)


def _run(given: argparse.Namespace) -> int:
    if getattr(given, "against", None):
        from bench import against

        return against.run(
            against.Settings(
                given.bench,
                given.against,
                [case for case in given.cases if case in CASES and not CASES[case].decoder],
                given.rounds,
                given.seconds,
                given.workers,
                given.start_method,
                given.timeout,
            ),
            given.output,
        )
    if given.bench == "peers":
        from bench import peers

        settings = peers.Settings(
            given.cases,
            given.loaders,
            given.rounds,
            given.seconds,
            given.workers,
            given.start_method,
            given.timeout,
            given.data,
        )
        return peers.run(settings, given.output)
    if given.bench == "growth":
        from bench import growth

        return growth.run(
            given.series, given.rounds, given.seconds, given.most, given.start_method, given.timeout, given.output
        )
    if given.bench == "agree":
        from bench import agree

        return agree.run(given.one, given.other)
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
    if given.bench == "device":
        from bench import device

        return device.run(given.rounds, given.seconds, given.workers, given.timeout, given.output)
    from bench import latency

    return latency.run(given.start_methods, given.rounds, given.restarts, given.workers, given.timeout, given.output)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that child.py kills what it started
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
