"""What the command line takes."""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable, Iterable
from pathlib import Path

from bench.adapters import LOADERS
from bench.cases import CASES, TIMES, TRANSPORT, label
from bench.experiment import FLOWS, PROFILES
from bench.growing import GROWS
from bench.profile_loaders import LOADERS as PROFILE_LOADERS
from bench.skew_measure import LOADERS as SKEW_LOADERS
from bench.uneven import SKEWS

METHODS = multiprocessing.get_all_start_methods()
RACED = tuple(case for case in CASES if case != "dict") + tuple(TIMES)  # of `dict`, `detections` is the harder kind


def parser() -> argparse.ArgumentParser:
    """The parser of `python -m bench`; each bench is a command with options of its own."""
    made = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measures loaders side by side, in turns, each time in a new process.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    benches = made.add_subparsers(dest="bench", required=True)

    peers = _bench(
        benches,
        "peers",
        "shmloader beside all other loaders that are installed, and beside the machine's limits",
        "A loader that is missing, crashes or hangs is named and skipped.  Writes peers.json and peers.png.",
        _listed(RACED),
    )
    _peers_options(peers)

    growth = _bench(
        benches,
        "growth",
        "what a batch costs as workers, batches in flight, tensors, samples or sequences grow",
        "Samples are simulated: they sleep, or cost nothing.  Writes growth.json and growth.png.",
    )
    growth.add_argument("--series", nargs="+", choices=tuple(GROWS), default=list(GROWS), help="what grows")
    growth.add_argument("--seconds", type=_seconds, default=0.4, help="length of the measurement of a point")
    growth.add_argument("--most", type=_count, default=1_000_000, help="points beyond this are left out")

    transport = _bench(
        benches,
        "transport",
        "torch's loader and shmloader's alone: batches a second, processor time and page faults",
        "The dataset returns prebuilt samples again and again, so collating and handing over is all that is measured.  "
        "Writes transport.json and transport.png.",
        _listed(TRANSPORT),
    )
    transport.add_argument("--cases", nargs="+", choices=TRANSPORT, default=list(TRANSPORT), help="which to measure")
    transport.add_argument("--seconds", type=_seconds, default=1.5, help="length of one measurement, after its warm-up")

    latency = _bench(
        benches,
        "latency",
        "time to the first batch, of a new loader and of a further epoch",
        "Batches of 128 x 3x32x32 uint8.  Writes latency.json.",
    )
    latency.add_argument("--restarts", type=_count, default=3, help="further epochs in a measurement")

    deaths = _bench(
        benches,
        "deaths",
        "time until a killed worker is replaced, or reported",
        "Kills the one worker while it makes the batch that is waited for.  Writes deaths.json.",
    )
    deaths.add_argument("--times", type=_count, default=5, help="deaths of each kind in a measurement")

    device = _bench(
        benches,
        "device",
        "delivery to a GPU: copies, and training beside torch's loader",
        "Batches of 256 x 3x224x224 uint8, with a training step of about 10 ms.  Writes device.json; where there is no "
        "GPU it says what cannot be measured.",
    )
    device.add_argument("--seconds", type=_seconds, default=5.0, help="length of one measurement, after its warm-up")

    profile = _bench(
        benches,
        "profile_experiment",
        "waiting for batches whose samples take long, against an inference that takes about as long",
        "The experiment that DI-engine's AsyncDataLoader documents, all its times being sleeps: 4 cases x 3 flows x 6 "
        "loaders with 8 workers.  Writes profile_experiment.json and profile_experiment.png.",
        "loaders: " + "; ".join(f"{name}: {what}" for name, what in PROFILE_LOADERS.items()),
    )
    profile.add_argument("--case", nargs="+", choices=tuple(PROFILES), default=list(PROFILES), help="what is loaded")
    profile.add_argument("--flow", nargs="+", choices=tuple(FLOWS), default=list(FLOWS), help="how fast it is wanted")
    profile.add_argument(
        "--loader", nargs="+", choices=tuple(PROFILE_LOADERS), default=list(PROFILE_LOADERS), help="what loads it"
    )
    profile.add_argument("--scale", type=_scale, default=1.0, help="factor of all times")
    profile.add_argument("--iterations", type=_iterations, default=50, help="batches; the first 5 are not counted")
    profile.add_argument(
        "--serial-iterations", type=_serial_iterations, default=7, help="the same without workers; the first is not"
    )
    profile.add_argument("--repeat", type=_count, default=1, help="measurements of each cell")

    skew = _bench(
        benches,
        "skew",
        "samples a second and idle workers, where some samples take much longer than others",
        "Samples sleep, so that more workers than cores run at once; all batches are compared with those of one "
        "worker.  Chunks are quarters of a batch.  Writes skew.json and skew.png.",
        "cases: " + "; ".join(f"{case.name}: {case.label}" for case in SKEWS.values()),
    )
    skew.add_argument("--cases", nargs="+", choices=tuple(SKEWS), default=list(SKEWS), help="which to measure")
    skew.add_argument("--loaders", nargs="+", choices=tuple(SKEW_LOADERS), default=list(SKEW_LOADERS), help="by whom")
    skew.add_argument("--milliseconds", type=_seconds, default=2.0, help="that most samples take")
    skew.add_argument("--batches", type=_count, default=400, help="of a measurement, after two for each worker")
    skew.add_argument("--batch-size", type=_count, default=4, help="samples in a batch")
    skew.add_argument("--workers", type=_count, default=8, help="worker processes")

    whole = _bench(
        benches,
        "all",
        "peers, growth, latency and deaths, one after the other",
        "transport is left out: peers measures the same of more loaders.",
    )
    whole.add_argument("--data", type=Path, help="folder of JPEG files; the bench makes some where none is given")

    agree = benches.add_parser(
        "agree",
        help="whether two runs of a bench agree within their own spreads",
        description="Compares batches a second, seconds and ratios in two of the JSON files that benches write.",
    )
    agree.add_argument("one", type=Path, help="of one run")
    agree.add_argument("other", type=Path, help="of the other")

    for bench in (peers, transport, latency, device):
        bench.add_argument("--workers", type=_count, default=2, help="worker processes")
    for bench in (peers, growth, transport):
        bench.add_argument(
            "--start-method", choices=METHODS, default=multiprocessing.get_start_method(), help="how workers start"
        )
    for bench in (peers, transport):
        bench.add_argument(
            "--against",
            type=_checkout,
            metavar="FOLDER",
            help="another checkout of shmloader, built: measure this one's and that one's instead, in turns",
        )
    for bench in (latency, deaths):
        bench.add_argument(
            "--start-methods", nargs="+", choices=METHODS, default=["fork", "spawn"], help="how workers start"
        )
    usual = dict.fromkeys((peers, growth, transport, latency, deaths, device, skew), 5)
    for bench, rounds in (usual | {whole: None}).items():
        of_each = "measurements of each loader in each case" + ("" if rounds else " (each bench's own number)")
        bench.add_argument("--rounds", type=_count, default=rounds, help=of_each)
    for bench in (peers, growth, transport, latency, deaths, device, profile, skew, whole):
        bench.add_argument("--timeout", type=_seconds, default=60.0, help="seconds after which one process is killed")
        bench.add_argument("--output", type=Path, default=Path("bench/results"), help="folder for what is written")
    return made


def _bench(
    benches: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    summary: str,
    description: str,
    epilog: str = "",
) -> argparse.ArgumentParser:
    formatter = argparse.ArgumentDefaultsHelpFormatter
    return benches.add_parser(name, help=summary, description=description, epilog=epilog, formatter_class=formatter)


def _listed(cases: Iterable[str]) -> str:
    return "cases: " + "; ".join(f"{case}: {label(case)}" for case in cases)


def _peers_options(peers: argparse.ArgumentParser) -> None:
    peers.add_argument("--cases", nargs="+", choices=RACED, default=list(RACED), help="which to measure")
    peers.add_argument("--loaders", nargs="+", choices=tuple(LOADERS), default=list(LOADERS), help="which to measure")
    peers.add_argument("--seconds", type=_seconds, default=1.0, help="length of one measurement, after its warm-up")
    peers.add_argument("--data", type=Path, help="folder of JPEG files; the bench makes some where none is given")


def _checkout(text: str) -> Path:
    if not Path(text, "shmloader").is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} has no folder `shmloader`: it is no checkout")
    return Path(text)


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
    if not least <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is out of range: at least {least}, and below a billion")
    return value
