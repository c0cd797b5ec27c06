"""What each version of torch gave (torch_matrix.py): kept in a file, and shown as a table."""

from __future__ import annotations

import dataclasses
import json
import re
import xml.etree.ElementTree as xml
from pathlib import Path


@dataclasses.dataclass
class Result:
    """A row of the table."""

    torch: str
    python: str
    tests: str
    sources: str  # a digest of what was tested
    build: str = ""
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    xfailed: int = 0
    seconds: int = 0
    problem: str = ""
    untried: str = ""  # why pip's settings here do not allow this version
    failures: list[str] = dataclasses.field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.problem and not self.untried and not self.failed and self.passed > 0


def count(result: Result, report: Path) -> None:
    """Add what pytest's report says."""
    for case in xml.parse(report).getroot().iter("testcase"):
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            result.failed += 1
            result.failures.append(f"{case.get('classname', '')}::{case.get('name', '')}".removeprefix("tests."))
        elif skipped is None:
            result.passed += 1
        elif skipped.get("type") == "pytest.xfail":
            result.xfailed += 1
        else:
            result.skipped += 1


def key(result: Result) -> str:
    return f"{result.torch} {result.python} {result.tests}"


def read_results(file: Path, sources: str) -> dict[str, Result]:
    """What is known of these sources; of others nothing counts."""
    if not file.exists():
        return {}
    fields = [fields for fields in json.loads(file.read_text()) if fields["sources"] == sources]
    return {key(result): result for result in (Result(**each) for each in fields)}


def write_results(file: Path, results: dict[str, Result]) -> None:
    partly = file.with_suffix(".new")
    partly.write_text(json.dumps([dataclasses.asdict(result) for result in results.values()], indent=1) + "\n")
    partly.replace(file)


def table(results: list[Result]) -> str:
    head = "| torch | build | Python | what ran | passed | failed | skipped | xfailed | seconds |\n" + "|---" * 9 + "|"
    notes = [f"{result.torch}: {note(result)}" for result in results if not result.good]
    return "\n".join([head, *map(row, results), *notes])


def note(result: Result) -> str:
    """Why a version has not passed."""
    if result.untried:
        return f"not tried, because pip is held to other versions here ({result.untried})"
    return result.problem or ", ".join(result.failures)


def row(result: Result) -> str:
    counts = [result.passed, result.failed, result.skipped, result.xfailed, result.seconds]
    ran = ["not run"] + [""] * 4 if not result.passed else counts
    return f"| {' | '.join(map(str, [result.torch, result.build, result.python, result.tests, *ran]))} |"


def release(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]
