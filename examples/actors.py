"""Reinforcement learning with AsyncDataLoader: workers play, the trainer learns, and neither waits for the other.

`data_source` gives jobs.  Each is a function with the current policy, which plays in a worker until the pole falls.
Batches come in the order of their jobs, and a few are made in advance.  So the trainer learns from games of a policy
that is a few steps old, and weighs each move by how likely the new policy would make it.

    python -m examples.actors
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import shmloader as loader

LONGEST = 200  # steps of a game at most
DISCOUNT = 0.98

Weights = dict[str, Tensor]


class Pole:
    """A pole on a cart that is pushed left or right; `state` is place, speed, angle and the angle's speed."""

    def __init__(self, generator: torch.Generator) -> None:
        self.state: list[float] = (torch.rand(4, generator=generator) * 0.1 - 0.05).tolist()

    def push(self, right: bool) -> bool:
        """Move on by one fiftieth of a second; returns whether the pole still stands."""
        place, speed, angle, turning = self.state
        force = 10.0 if right else -10.0
        sine, cosine = math.sin(angle), math.cos(angle)
        pull = (force + 0.05 * turning**2 * sine) / 1.1
        bending = (9.8 * sine - cosine * pull) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        growing = pull - 0.05 * bending * cosine / 1.1
        self.state = [
            place + 0.02 * speed,
            speed + 0.02 * growing,
            angle + 0.02 * turning,
            turning + 0.02 * bending,
        ]
        return abs(self.state[0]) < 2.4 and abs(self.state[2]) < 0.21


def policy() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))


def play(weights: Weights, seed: int) -> dict[str, Tensor]:
    """One game, in a worker.  Zeros follow its end, because all samples of a batch have one shape."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)
    net = policy()
    net.load_state_dict(weights)
    game = Pole(generator)
    states, pushes, likely = torch.zeros(LONGEST, 4), torch.zeros(LONGEST), torch.zeros(LONGEST)
    stands, steps = True, 0
    with torch.no_grad():
        while stands and steps < LONGEST:
            states[steps] = torch.tensor(game.state)
            right = torch.sigmoid(net(states[steps])).item()
            pushed = torch.rand((), generator=generator).item() < right
            pushes[steps], likely[steps] = pushed, right if pushed else 1 - right
            stands = game.push(pushed)
            steps += 1
    return {"states": states, "pushes": pushes, "likely": likely, "steps": torch.tensor(steps)}


def loss_of(net: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    steps = batch["steps"][:, None]
    left = (steps - torch.arange(LONGEST)).clamp(min=0)  # until the pole falls
    gains = (1 - DISCOUNT**left) / (1 - DISCOUNT)
    played = left > 0
    advantage = (gains - gains[played].mean()) / (gains[played].std() + 1e-6)
    right = torch.sigmoid(net(batch["states"]).squeeze(-1))
    now = torch.where(batch["pushes"] > 0, right, 1 - right)
    ratio = now / batch["likely"].clamp(min=1e-3)
    least = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    return -least[played].mean()


def main(arguments: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=60, help="of games, to learn from (default: %(default)s)")
    parser.add_argument("--games", type=int, default=16, help="a batch (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="worker processes (default: %(default)s)")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = policy()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    seeds = itertools.count()

    def jobs(count: int) -> list[Callable[[], Any]]:
        weights = {name: each.clone() for name, each in net.state_dict().items()}  # the present ones
        return [functools.partial(play, weights, seed) for seed in itertools.islice(seeds, count)]

    lasted: list[float] = []
    with loader.AsyncDataLoader(jobs, options.games, "cpu", chunk_size=4, num_workers=options.workers) as games:
        for batch in itertools.islice(games, options.batches):
            for _ in range(4):
                optimizer.zero_grad()
                loss_of(net, batch).backward()
                optimizer.step()
            lasted.append(batch["steps"].float().mean().item())
    last = sum(lasted[-5:]) / len(lasted[-5:])
    print(f"the pole stood for {lasted[0]:.0f} steps at first, and for {last:.0f} in the end, of {LONGEST} at most")
    return last


if __name__ == "__main__":
    main()
