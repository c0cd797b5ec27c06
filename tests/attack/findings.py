"""Groups findings by their cause, so that one fault that is found a hundred times does not hide another."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tests.attack.judge import Finding
from tests.attack.program import Program
from tests.attack.shrink import shrunk

Judge = Callable[[Program], "Finding | None"]


@dataclass
class Group:
    """Programs that show the same."""

    finding: Finding
    program: Program  # the smallest
    seed: str  # of the first
    seconds: float  # until that was found
    count: int = 1


class Findings:
    """What was found so far."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.groups: list[Group] = []

    def add(
        self, program: Program, finding: Finding, seed: str, seconds: float, until: float = math.inf
    ) -> Group | None:
        """Put a finding to those that it is like.

        Args:
            program: What showed it.
            finding: What was seen.
            seed: What the program was drawn from.
            seconds: How long it took to find it.
            until: When to stop making the program smaller, by time.monotonic().

        Returns:
            The group, if it is a new one.
        """
        for group in self.groups:
            if group.finding.cause == finding.cause and group.program.features() <= program.features():
                group.count += 1
                return None

        def shows(smaller: Program) -> bool:
            found = self.judge(smaller)
            return found is not None and found.cause == finding.cause

        if not shows(program):
            finding = Finding(f"{finding.cause} (not each time)", finding.detail)
        else:
            program = shrunk(program, shows, until=until)
        for group in self.groups:
            if group.finding.cause == finding.cause and group.program.features() == program.features():
                group.count += 1
                return None
        self.groups.append(Group(finding, program, seed, seconds))
        return self.groups[-1]
