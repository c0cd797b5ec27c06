"""The options that tune varies, and the measurements of a setting."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Setting:
    """The options of a loader that `tune` varies, with their values."""

    num_workers: int
    prefetch_factor: int = 2
    schedule: str = "round_robin"
    chunk_size: int | None = None

    def options(self) -> dict[str, Any]:
        """Arguments of the loader, without those that have their defaults."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) != each.default}

    @property
    def unusual(self) -> int:
        """How many options differ from their defaults."""
        return len(self.options()) - 1


VARIED = tuple(each.name for each in fields(Setting))


@dataclass(frozen=True)
class Sample:
    """One measurement of a setting.

    Attributes:
        batch_s: Seconds from one batch to the next, including the consumer's own.
        input_wait: The share of that time that the consumer spent in `next()`, 0 to 1.
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
        setting: The setting.
        memory_bytes: What it takes in all ranks: slots and workers.
        samples: Its measurements, one after the other.
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
        """How far apart its measurements are, as a share of their median; 0 if there is only one."""
        times = [sample.batch_s for sample in self.samples]
        return 0.0 if self.failure else (max(times) - min(times)) / self.batch_s

    def to_dict(self) -> dict[str, Any]:
        """The row in JSON types."""
        result: dict[str, Any] = {**vars(self.setting), "memory_bytes": self.memory_bytes, "runs": len(self.samples)}
        if self.failure:
            return {**result, "failure": self.failure}
        return {
            **result,
            "batches_per_s": self.batches_per_s,
            "input_wait": self.input_wait,
            "batches": self.batches,
            "spread": self.spread,
        }
