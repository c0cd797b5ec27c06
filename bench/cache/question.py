"""What a cache of decoded pictures saves in the second epoch, and how much memory several ranks take with it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from bench.cache.measure import NUMBERS, WAYS
from bench.core import jpegs
from bench.core.question import Question, Turn, add_data, add_workers, count, seconds
from bench.core.results import print_end, print_lines, table
from bench.core.spread import shown, spread

__all__ = ["Cache", "summary"]

MADE = 64  # files
SHARED = "memory"


class Cache(Question):
    name = "cache"
    asks = "what a sample costs whose picture was kept decoded, and how much memory ranks and workers share"
    more = "The recipe is a random crop of 224 x 224 and a flip.  Writes cache.json."
    rounds = 3

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--seconds", type=seconds, default=1.0, help="length of one measurement, of each way")
        add_data(parser)
        parser.add_argument("--ranks", type=count, default=2, help="processes that train, each with all samples")
        add_workers(parser)

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__(given)
        self._folder, self._files = "", 0

    def settings(self) -> dict[str, Any]:
        given = self.given
        files = f"{self._files} {'given' if given.data else 'made by the bench'}"
        return {"seconds": given.seconds, "ranks": given.ranks, "workers": given.workers, "files": files}

    @contextmanager
    def prepared(self, out: Console) -> Iterator[None]:
        """Make the files, where none are given."""
        with jpegs.given_or_made(self.given.data, MADE) as (self._folder, found):
            self._files = len(found)
            yield

    def turns(self, at: int) -> list[Turn]:
        given = self.given
        made = [
            Turn(
                {"what": f"{number}{'' if exact else ', exact=False'}"},
                "bench.cache.measure:samples",
                {"folder": self._folder, "number": number, "exact": exact, "seconds": given.seconds},
                6 + 12 * given.seconds,
                given.timeout + 60 * given.seconds,
            )
            for number in NUMBERS
            for exact in (True, False)
        ]
        shared = {"folder": self._folder, "ranks": given.ranks, "workers": given.workers}
        return [*made, Turn({"what": SHARED}, "bench.cache.measure:shared", shared, 10, given.timeout)]

    def summary(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        return summary(measurements)

    def show(self, out: Console, result: dict[str, Any]) -> None:
        settings, figures = result["settings"], result["summary"]
        title = f"cache; files: {settings['files']}, rounds: {settings['rounds']}, medians \\[min..max]"
        columns = ("no cache, us", *(f"{way}, times" for way in WAYS[1:]), "first epoch", "equal")
        made = table(title, ["samples"], columns)
        for name, row in figures["samples"].items():
            ratios = [shown(row[way], all_of_it=True) for way in WAYS[1:]]
            made.add_row(name, shown(row["none"]), *ratios, shown(row["first"]), "yes" if row["equal"] else "NO")
        out.print(made)
        shared = figures["shared"]
        print_lines(
            out,
            [
                f"a picture takes {shown(figures['bytes'], 1e-3)} KB",
                f"{settings['ranks']} ranks of {settings['workers']} workers take "
                f"{shown(shared['share'], all_of_it=True)} of the cache's "
                f"{shown(shared['kept'], 1e-6)} MB together, beyond what they take without",
            ],
        )
        print_end(out, result)


def summary(measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each figure the median, least and most of the rounds.

    Returns:
        samples: by kind of sample; of each way how many times quicker than without, of none microseconds; first: the
        first epoch, as a multiple of one without; shared: memory of all ranks as a share of what is kept; bytes: of a
        picture.
    """
    good = [found for found in measurements if "failure" not in found]
    made = [found for found in good if found["what"] != SHARED]
    rows: dict[str, Any] = {}
    for what in dict.fromkeys(found["what"] for found in made):
        rounds = [found for found in made if found["what"] == what]
        rows[what] = {
            "none": spread(found["none"] for found in rounds),
            **{way: spread(found["none"] / found[way] for found in rounds) for way in WAYS[1:]},
            "first": spread(found["first"] / found["none"] for found in rounds),
            "equal": all(found["equal"] for found in rounds),
        }
    shared = [found for found in good if found["what"] == SHARED]
    return {
        "samples": rows,
        "bytes": spread(found["bytes"] for found in made),
        "shared": {
            "share": spread(found["memory"] / found["kept"] for found in shared),
            "kept": spread(found["kept"] for found in shared),
        },
    }
