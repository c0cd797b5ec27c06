"""The numbers of the experiment: what is loaded, how fast it is wanted, and what no loader can beat.

The experiment is the one that DI-engine's AsyncDataLoader documents.  All its times are sleeps, so that eight workers
run on two cores; a scale shrinks them all.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

WORKERS = 8
SLACK = 1.05  # inference takes 5 % longer than would be in balance
FLOWS = {"slow": 1, "middle": 2, "fast": 3}  # how many times faster the inference is than 8 workers load for it


@dataclass(frozen=True)
class Profile:
    """What loading one batch costs.

    Args:
        name: for the command line, tables and the JSON.
        sample_bytes: of a sample, which is one uint8 tensor.
        file_seconds, process_seconds: to read a sample and to work on it.
        batch_size, chunk_size: samples in a batch, and in a part of it that one worker takes.
    """

    name: str
    sample_bytes: int
    file_seconds: float
    process_seconds: float
    batch_size: int
    chunk_size: int

    @property
    def batch_bytes(self) -> int:
        return self.batch_size * self.sample_bytes

    def sample(self) -> torch.Tensor:
        """A sample, its bytes written (untouched pages of zeros would be cheaper to read than real ones)."""
        return torch.ones(self.sample_bytes, dtype=torch.uint8)

    def sample_seconds(self, scale: float) -> float:
        return scale * (self.file_seconds + self.process_seconds)

    def data_seconds(self, scale: float, overshoot: float = 0) -> float:
        """What one worker alone takes for a batch, where each of its sleeps lasts so many seconds too long."""
        return self.batch_size * (self.sample_seconds(scale) + overshoot)

    def inference_seconds(self, flow: str, scale: float) -> float:
        return SLACK * self.data_seconds(scale) / WORKERS / FLOWS[flow]

    def limit(self, flow: str, scale: float, overshoot: float = 0) -> float:
        """Seconds a step that no loader with WORKERS workers beats in steady state."""
        return max(self.data_seconds(scale, overshoot) / WORKERS, self.inference_seconds(flow, scale))


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("Small", 4608, 0.0008, 0.005, 128, 32),
        Profile("Middle", 40 << 10, 0.0008, 0.05, 64, 16),
        Profile("Big16", 16 << 20, 0.6, 0.2, 4, 1),
        Profile("Big64", 64 << 20, 2, 0.35, 4, 1),
    )
}
