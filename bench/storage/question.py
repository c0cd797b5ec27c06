"""Samples from shards: beside the same files in folders and WebDataset, their index, and from a slow server."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.core import jpegs
from bench.core.loaders import missing
from bench.core.question import Question, Turn, add_choice, add_data, add_workers, count, number, seconds
from bench.core.results import print_end, table
from bench.core.spread import shown, spread
from bench.storage.archives import classes, pack
from bench.storage.cold import COLD, WARM
from bench.storage.far_load import LOOKING_AHEAD, PLAIN, TORCH
from bench.storage.measure import FILES, SHARDS, WEBDATASET

__all__ = ["Storage", "summary"]

SAMPLES, LOAD, INDEX, FAR, FAR_LOAD, PLACE = "samples", "load", "index", "far", "far_load", "place"
LOAD_CPU = "load_cpu"
LABELS = {
    FILES: "files in folders, images.ImageFolder",
    SHARDS: "tar shards, images.fuse(Shards)",
    WEBDATASET: "WebDataset, PIL and torchvision (or a stand-in)",
}
FAR_LABELS = {TORCH: "torch's", PLAIN: "ours, look_ahead=0"}


class Storage(Question):
    name = "storage"
    asks = "how quickly samples come from shards, here and from a slow server"
    more = (
        "Needs webdataset for a comparison, and aiohttp for the server's part; what is missing is named and skipped.  "
        "Writes storage.json."
    )
    rounds = 3

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        add_choice(
            parser,
            "--parts",
            (SAMPLES, LOAD, INDEX, FAR, FAR_LOAD, PLACE, COLD),
            "CPU a sample in one process; images a second with workers; the index; reads from a slow server, by one "
            "process and by loaders; row groups of Parquet that are decoded with group_by and without; files that are "
            "not in memory, with look_ahead and without",
        )
        parser.add_argument("--seconds", type=seconds, default=3.0, help="length of one measurement")
        add_data(parser)
        parser.add_argument("--pictures", type=count, default=2000, help="pictures; files are repeated to get so many")
        parser.add_argument("--shards", type=count, default=8, help="tar archives that they lie in")
        parser.add_argument("--batch-size", type=count, default=64, help="images in a batch, with workers")
        parser.add_argument("--members", type=count, default=1_000_000, help="members of the archive that is indexed")
        parser.add_argument("--member-size", type=count, default=700, help="bytes of every other one of them")
        parser.add_argument("--depths", type=number(int, 0), nargs="+", default=[0, 32, 64], help="reads under way")
        parser.add_argument("--latency", type=seconds, default=0.05, help="seconds that the server waits a request")
        parser.add_argument("--megabytes", type=seconds, default=100.0, help="that the server sends a second")
        parser.add_argument("--groups", type=count, nargs="+", default=[20, 50], help="row groups of 1,000 rows")
        add_workers(parser)

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__(given)
        self._folder = ""

    def settings(self) -> dict[str, Any]:
        given = self.given
        names = ("seconds", "pictures", "shards", "batch_size", "workers", "members", "member_size", "latency")
        files = "given" if given.data else "made by the bench"
        return {**{name: getattr(given, name) for name in (*names, "megabytes")}, "files": files}

    @contextmanager
    def prepared(self, out: Console) -> Iterator[None]:
        """Make the pictures and the archives."""
        with tempfile.TemporaryDirectory() as folder:
            self._folder = folder
            if set(self.given.parts) - {INDEX, FAR_LOAD, PLACE}:
                source = self.given.data or Path(folder) / "made"
                if self.given.data is None:
                    source.mkdir()
                    jpegs.make(source, 64)
                if not jpegs.files(source):
                    sys.exit("--data: there are no JPEG files in that folder")
                classes(source, Path(folder) / "files", self.given.pictures)
                pack(Path(folder) / "files", Path(folder), self.given.shards)
            yield

    def turns(self, at: int) -> list[Turn]:
        given = self.given
        ways = [FILES, SHARDS] + ([] if missing(("webdataset",)) else [WEBDATASET])
        ways = ways[at % len(ways) :] + ways[: at % len(ways)]
        slow = given.timeout + 60 * given.seconds
        where = {"folder": self._folder, "seconds": given.seconds}
        turns = []
        if SAMPLES in given.parts:
            arguments = {**where, "ways": ways}
            turns.append(Turn({"part": SAMPLES}, "bench.storage.measure:samples", arguments, 8 * given.seconds, slow))
        if LOAD in given.parts:
            loader = {"workers": given.workers, "batch_size": given.batch_size}
            for way in ways:
                labels = {"part": LOAD, "way": way}
                turns.append(
                    Turn(labels, "bench.storage.measure:load", {**where, **loader, "way": way}, 2 * given.seconds, slow)
                )
        if INDEX in given.parts:
            archive = {"members": given.members, "size": given.member_size}
            turns.append(Turn({"part": INDEX}, "bench.storage.measure:index", archive, given.members / 5e4, slow))
        if FAR in given.parts:
            server = {"latency": given.latency, "megabytes": given.megabytes}
            why = missing(("aiohttp",))
            for depth in given.depths:
                labels = {"part": FAR, "depth": str(depth)}
                arguments = {**where, **server, "depth": depth}
                turns.append(Turn(labels, "bench.storage.measure:far", arguments, 2 * given.seconds, slow, failure=why))
        if FAR_LOAD in given.parts:
            server = {"seconds": given.seconds, "latency": given.latency, "megabytes": given.megabytes}
            why = missing(("aiohttp",))
            cases = [(TORCH, 1), (PLAIN, 1), *((LOOKING_AHEAD, depth) for depth in given.depths if depth)]
            for way, depth in cases[at % len(cases) :] + cases[: at % len(cases)]:
                batch_size = max(1, depth // (4 * given.workers))  # four batches of each worker are under way
                loader = {"way": way, "depth": depth, "batch_size": batch_size, "workers": given.workers}
                labels = {"part": FAR_LOAD, "way": way, "depth": str(depth)}
                arguments = {**loader, **server}
                far = "bench.storage.far_load:far_load"
                turns.append(Turn(labels, far, arguments, 3 * given.seconds, slow, failure=why))
        if COLD in given.parts:
            cases = [(state, workers) for state in (COLD, WARM) for workers in sorted({1, given.workers})]
            for state, workers in cases:
                loader = {"workers": workers, "batch_size": given.batch_size}
                arguments = {"folder": self._folder, "state": state, "at": at, **loader}
                labels = {"part": COLD, "state": state, "of": str(workers)}
                turns.append(Turn(labels, "bench.storage.cold:cold", arguments, given.pictures / 100, slow))
        if PLACE in given.parts:
            why = missing(("pyarrow",))
            loader = {"workers": given.workers, "batch_size": given.batch_size}
            for groups in given.groups:
                labels = {"part": PLACE, "groups": str(groups)}
                arguments = {**loader, "groups": groups}
                turns.append(Turn(labels, "bench.storage.places:place", arguments, 20, slow, failure=why))
        return turns

    def summary(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        return summary(measurements)

    def failed(self, result: dict[str, Any]) -> bool:
        """Whether something failed that could be measured."""
        needs = {FAR: "aiohttp", FAR_LOAD: "aiohttp", PLACE: "pyarrow"}
        failing = (measured["part"] for measured in result["measurements"] if "failure" in measured)
        return any(part not in needs or not missing((needs[part],)) for part in failing)

    def show(self, out: Console, result: dict[str, Any]) -> None:
        found = result["summary"]
        units = {SAMPLES: "CPU us a sample", LOAD: "images/s", LOAD_CPU: "CPU us an image, with workers"}
        for part, unit in units.items():
            if part in found:
                made = table(f"{unit}; medians \\[min..max]", [""], [unit, "speed / files", "speed / WebDataset"])
                for way, figures in found[part].items():
                    ratios = [shown(figures[name], all_of_it=True) for name in ("to_files", "to_webdataset")]
                    made.add_row(LABELS[way], shown(figures["figure"], all_of_it=True), *ratios)
                out.print(made)
        for part in (INDEX, FAR, FAR_LOAD, PLACE, COLD):
            if part in found:
                names = list(dict.fromkeys(name for figures in found[part].values() for name in figures))
                made = table(f"{part}; medians \\[min..max]", [""], names)
                for row, figures in found[part].items():
                    cells = (shown(figures[name], all_of_it=True) if name in figures else "-" for name in names)
                    made.add_row(row, *cells)
                out.print(made)
        print_end(out, result)


def summary(measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of all rounds.

    Returns:
        samples, load, load_cpu: of each way its figure, and how many times as quick it is as files and WebDataset in
        the same round; far_load: see _beside_torch(); index, far, place, cold: of each figure median, least and most,
        see measure.py, places.py and cold.py.
    """
    good = [measured for measured in measurements if "failure" not in measured]
    result: dict[str, Any] = {}
    for name, part, figure in ((SAMPLES, SAMPLES, ""), (LOAD, LOAD, "images_per_second"), (LOAD_CPU, LOAD, "cpu")):
        rounds: dict[int, dict[str, float]] = {}
        for measured in good:
            if measured["part"] == part and (not figure or figure in measured):
                ways = {way: measured[way] for way in LABELS if way in measured}
                by = {measured["way"]: measured[figure]} if figure else ways
                rounds.setdefault(measured["round"], {}).update(by)
        if rounds:
            result[name] = _compared(list(rounds.values()), is_time=name != LOAD)
    for part in (INDEX, FAR, PLACE, COLD):
        rows: dict[str, list[dict[str, float]]] = {}
        for measured in good:
            if measured["part"] == part:
                rows.setdefault(_row(measured), []).append(measured)
        if rows:
            result[part] = {
                row: {
                    name: spread(measured[name] for measured in several)
                    for name in several[0]
                    if isinstance(several[0][name], float)
                }
                for row, several in rows.items()
            }
    if any(measured["part"] == FAR_LOAD for measured in good):
        result[FAR_LOAD] = _beside_torch([measured for measured in good if measured["part"] == FAR_LOAD])
    return result


def _beside_torch(measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each loader that reads from afar its figures, and how many times as quick it is as torch's in that round."""
    rows: dict[str, list[dict[str, float]]] = {}
    torchs = {measured["round"]: measured["samples"] for measured in measurements if measured["way"] == TORCH}
    for measured in measurements:
        way = measured["way"]
        row = f"ours, {measured['depth']} under way" if way == LOOKING_AHEAD else FAR_LABELS[way]
        rows.setdefault(row, []).append(measured)
    return {
        row: {
            **{
                name: spread(measured[name] for measured in several)
                for name in ("samples", "of_limit", "of_delay", "cpu")
            },
            "to_torch": spread(
                measured["samples"] / torchs[measured["round"]] for measured in several if measured["round"] in torchs
            ),
        }
        for row, several in sorted(rows.items())
    }


def _row(measured: dict[str, Any]) -> str:
    """The name of a measurement's row."""
    if measured["part"] == PLACE:
        return f"{measured['groups']} row groups"
    if measured["part"] == COLD:
        return f"{measured['state']} files, workers: {measured['of']}"
    return f"{measured['depth']} under way" if measured["part"] == FAR else "one archive"


def _compared(rounds: list[dict[str, float]], is_time: bool) -> dict[str, Any]:
    def quicker(way: str, than: str) -> Any:
        both = [figures for figures in rounds if way in figures and than in figures]
        return spread(figures[than] / figures[way] if is_time else figures[way] / figures[than] for figures in both)

    return {
        way: {
            "figure": spread(figures[way] for figures in rounds if way in figures),
            "to_files": quicker(way, FILES),
            "to_webdataset": quicker(way, WEBDATASET),
        }
        for way in LABELS
        if any(way in figures for figures in rounds)
    }
