"""What is varied, and what was measured of it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Setting:
    """Those options of a loader that `tune` varies."""

    num_workers: int
    prefetch_factor: int = 2
    schedule: str = "round_robin"
    chunk_size: int | None = None

    def options(self) -> dict[str, Any]:
        """As the loader takes them, without those that are as they would be anyway."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) != each.default}

    @property
    def unusual(self) -> int:
        """How many options are not as they would be anyway."""
        return len(self.options()) - 1


VARIED = tuple(each.name for each in fields(Setting))


@dataclass(frozen=True)
class Sample:
    """One measurement of a setting.

    Attributes:
        batch_s: Seconds from one batch to the next, the consumer's own included.
        input_wait: The share of that which the consumer waited in `next()`, 0 to 1.
        batches: How many were measured.
        failure: Why nothing could be measured; empty if it could.
    """

    batch_s: float
    input_wait: float
    batches: int
    failure: str = ""


@dataclass
class Row:
    """All measurements of one setting.

    Attributes:
        setting: What was measured.
        memory_bytes: What it takes in all ranks: slots and workers.
        samples: One after the other.
    """

    setting: Setting
    memory_bytes: int = 0
    samples: list[Sample] = field(default_factory=list)

    @property
    def failure(self) -> str:
        """Why it cannot be used; empty if it can."""
        return next((sample.failure for sample in self.samples if sample.failure), "")

    @property
    def batch_s(self) -> float:
        """The median of its measurements; infinite if it failed."""
        if self.failure or not self.samples:
            return float("inf")
        return statistics.median(sample.batch_s for sample in self.samples)

    @property
    def batches_per_s(self) -> float:
        return 1 / self.batch_s if self.batch_s else float("inf")

    @property
    def input_wait(self) -> float:
        return 0.0 if self.failure else statistics.median(sample.input_wait for sample in self.samples)

    @property
    def batches(self) -> int:
        """How many batches were measured in all."""
        return sum(sample.batches for sample in self.samples)

    @property
    def spread(self) -> float:
        """How far apart its measurements are, as a share of their median; 0 of one alone."""
        times = [sample.batch_s for sample in self.samples]
        return 0.0 if self.failure else (max(times) - min(times)) / self.batch_s

    def to_dict(self) -> dict[str, Any]:
        """With what JSON has."""
        told: dict[str, Any] = {**vars(self.setting), "memory_bytes": self.memory_bytes, "runs": len(self.samples)}
        if self.failure:
            return {**told, "failure": self.failure}
        return {
            **told,
            "batches_per_s": self.batches_per_s,
            "input_wait": self.input_wait,
            "batches": self.batches,
            "spread": self.spread,
        }
