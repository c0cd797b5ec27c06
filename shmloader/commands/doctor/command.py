"""`shmloader doctor`: the options, all checks in their order, how findings are printed, and the exit status."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

import shmloader
from shmloader.checks import requirements
from shmloader.commands.arguments import bytes_of, not_negative, positive
from shmloader.commands.doctor import Finding, Wanted, software
from shmloader.system.limits import cores, ranks_here

USUAL_BATCH = 256 * 3 * 224 * 224  # pictures as bytes
WIDTH = 13  # of the column with the subject

EXIT = """exit status:
  0  all is fine, or there is something to know ("note")
  1  something needs attention
  2  the command line is wrong"""


def add_to(commands: Any) -> None:
    """Add this command to a parser."""
    parser = commands.add_parser(
        "doctor",
        help="check this machine and environment for a loader",
        description="Checks this machine, container and environment for your loader, and suggests changes.\n"
        "It takes some seconds and changes nothing. Run it where you train: in the container, under the same limits.",
        epilog=EXIT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    size = "size of a batch, such as 38535168 or 36.75M (default: 36.75M, 256 pictures of 3x224x224 bytes)"
    add("--batch-bytes", type=bytes_of, default=USUAL_BATCH, metavar="SIZE", help=size)
    add("--workers", type=positive, metavar="N", help="num_workers (default: as many as a rank has cores)")
    add("--prefetch-factor", type=positive, default=2, metavar="N", help="(default: 2)")
    add("--spare-slots", type=not_negative, default=2, metavar="N", help="(default: 2)")
    add("--ranks", type=positive, metavar="N", help="loaders on this machine (default: LOCAL_WORLD_SIZE, or 1)")
    add("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Run all checks and print their findings; returns the exit status."""
    wanted, findings, status = wanted_of(given), [], 0
    for what, finding in examine(wanted):
        status = max(status, int(finding.level == "attention"))
        findings.append({"what": what, **finding._asdict()})
        if not given.json:
            print(*lines(what, finding), sep="\n", flush=True)
    if given.json:
        found = {"shmloader": shmloader.__version__, "status": status, "for": wanted._asdict(), "findings": findings}
        print(json.dumps(found, indent=1))
    return status


def lines(what: str, finding: Finding) -> list[str]:
    """State, meaning and remedy, as they are printed."""
    first = f"{finding.level:<10} {what:<{WIDTH}} {finding.state}"
    others = {"that means": finding.meaning, "to do": finding.remedy}
    return [first, *(f"{'':<{WIDTH + 11}} {heading}: {text}" for heading, text in others.items() if text)]


def wanted_of(given: argparse.Namespace) -> Wanted:
    """The loader that the command line describes."""
    ranks = given.ranks or ranks_here()
    usable = cores().usable if sys.platform == "linux" else 1
    workers = given.workers or max(1, int(usable // ranks))
    return Wanted(given.batch_bytes, workers, given.prefetch_factor, given.spare_slots, ranks)


def examine(wanted: Wanted) -> Iterator[tuple[str, Finding]]:
    """The findings of all checks, one after the other, each with its subject."""
    yield "torch", software.torch_and_the_ring(wanted)
    if sys.platform != "linux" or sys.maxsize < 2**32:  # the other checks need the core, which is not built there
        return
    from shmloader.commands.doctor import machine

    yield "/dev/shm", machine.shm(wanted)
    yield "memory", machine.memory(wanted)
    yield "cores", machine.enough_cores(wanted)
    yield "ring", machine.addresses(wanted)
    yield "files", machine.files(wanted)
    yield "processes", machine.processes(wanted)
    yield "start method", software.start_method(wanted)
    yield "fork and threads", software.fork_beside_threads(wanted)
    yield "NUMA", machine.numa(wanted)
    if requirements.why_not_here() is None:
        yield "transport", machine.transport(wanted)  # before the device is used, because it forks
    yield "accelerator", software.pinning(wanted)
