"""`shmloader doctor`: the options, all checks in their order, and the exit status."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import Any

import shmloader
from shmloader import off_the_ring
from shmloader.commands.doctor import software
from shmloader.commands.doctor.finding import Finding, Wanted
from shmloader.commands.doctor.show import show
from shmloader.commands.numbers import bytes_of, not_negative, positive
from shmloader.system.cores import Cores, ranks_here
from shmloader.system.cores import cores as count_cores

USUAL_BATCH = 256 * 3 * 224 * 224  # pictures as bytes

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
    parser.add_argument(
        "--batch-bytes",
        type=bytes_of,
        default=USUAL_BATCH,
        metavar="SIZE",
        help="size of a batch, such as 38535168 or 36.75M (default: 36.75M, 256 pictures of 3x224x224 bytes)",
    )
    parser.add_argument(
        "--workers", type=positive, metavar="N", help="num_workers (default: as many as a rank has cores)"
    )
    parser.add_argument("--prefetch-factor", type=positive, default=2, metavar="N", help="(default: 2)")
    parser.add_argument("--spare-slots", type=not_negative, default=2, metavar="N", help="(default: 2)")
    parser.add_argument(
        "--ranks", type=positive, metavar="N", help="loaders on this machine (default: LOCAL_WORLD_SIZE, or 1)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Run all checks and print their findings; returns the exit status."""
    wanted = _wanted(given)
    findings: list[Finding] = []

    def noted() -> Iterator[Finding]:
        for finding in examine(wanted):
            findings.append(finding)
            yield finding

    if given.json:
        list(noted())
        status = status_of(findings)
        print(
            json.dumps(
                {
                    "shmloader": shmloader.__version__,
                    "status": status,
                    "for": dataclasses.asdict(wanted),
                    "findings": [dataclasses.asdict(finding) for finding in findings],
                },
                indent=1,
            )
        )
        return status
    show(noted())
    return status_of(findings)


def _wanted(given: argparse.Namespace) -> Wanted:
    ranks = given.ranks or ranks_here()
    cores = int(_cores().usable // ranks)
    return Wanted(given.batch_bytes, given.workers or max(1, cores), given.prefetch_factor, given.spare_slots, ranks)


def _cores() -> Cores:
    return count_cores() if sys.platform == "linux" else Cores(1, 1, None)


def examine(wanted: Wanted) -> Iterator[Finding]:
    """The findings of all checks, one after the other.

    Args:
        wanted: The loader for which the machine is checked.
    """
    yield software.torch_and_the_ring()
    if sys.platform != "linux" or sys.maxsize < 2**32:  # the other checks need the core, which is not built there
        return
    from shmloader.commands.doctor import bounds, graphics, memory

    yield memory.shm(wanted)
    yield memory.memory(wanted)
    yield bounds.cores(_cores(), wanted)
    yield bounds.addresses(wanted)
    yield bounds.files(wanted)
    yield bounds.processes(wanted)
    yield software.start_method()
    yield software.fork_beside_threads()
    yield software.kernel()
    yield memory.huge_pages()
    yield memory.numa()
    if off_the_ring.why_not_here() is None:
        from shmloader.commands.doctor import transport

        yield transport.transport(wanted)  # before the device is used, because it forks
    yield graphics.pinning()


def status_of(findings: list[Finding]) -> int:
    """1 if something needs attention, 0 otherwise."""
    return int(any(finding.level == "attention" for finding in findings))
