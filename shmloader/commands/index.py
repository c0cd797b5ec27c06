"""`shmloader index`: lists shards, and prints how many samples they have and where the index is."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from shmloader.storage.shards import Shards

EXIT = """examples:
  shmloader index '/data/train-{000000..000127}.tar'
  shmloader index 's3://bucket/train-*.tar' --file /shared/train.index

exit status:
  0  the index is there
  1  a shard cannot be listed, or the index can be written nowhere
  2  the command line is wrong"""


def add_to(commands: Any) -> None:
    """Add this command to a parser's."""
    parser = commands.add_parser(
        "index",
        help="make the index of shards for shmloader.Shards",
        description="Lists the samples of tar archives, or the row groups of Parquet and Arrow files.\n"
        "shmloader.Shards with the same shards, in the same order, finds the index.",
        epilog=EXIT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("urls", nargs="+", metavar="URL", help="paths or URLs, with braces or patterns; quote them")
    parser.add_argument(
        "--file", metavar="PATH", help="the index's file, Shards(index=PATH) (default: beside the shards, or the cache)"
    )
    parser.add_argument(
        "--rebuild", action="store_true", help="list the shards again, also if none seems to have changed"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Make and print; returns the exit status."""
    began = time.perf_counter()
    try:
        shards = Shards(given.urls, index=given.file)
        if given.rebuild:
            shards.make_index()
        found = {"shards": len(shards.urls), "samples": len(shards), **shards.facts()}
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        print(f"shmloader index: {error}", file=sys.stderr)
        return 1
    found["seconds"] = round(time.perf_counter() - began, 3)
    if given.json:
        print(json.dumps(found, indent=1))
        return 0
    parts = "members" if shards.is_tar else "row groups"
    print(f"{found['shards']:,} shards, {found['samples']:,} samples, {found['parts']:,} {parts}")
    print(f"{found['bytes']:,} bytes of index, {found['seconds']:g} s: {found['index']}")
    return 0
