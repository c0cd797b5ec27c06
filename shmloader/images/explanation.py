"""The text of a fused dataset's explain(): what is fused, and what each part of a sample costs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

__all__ = ["explained"]

_MEASURED = 32  # samples


def explained(heading: str, reader: Any, measure: bool, count: int, file: Callable[[int], Any]) -> str:
    """The text of explain().

    Args:
        heading: Its first line.
        reader: Makes the images; its `notes` are the lines that follow.
        measure: Whether to add the cost of each part of a sample: microseconds of CPU, over up to 32 samples that are
            made for it.  The states of the generators do not change.
        count: The number of samples.
        file: Returns the path or the bytes of a sample's file.
    """
    notes = [heading, *reader.notes]
    if measure and count:
        every = max(1, count // _MEASURED)
        notes += _costs(reader, [file(at) for at in range(0, count, every)][:_MEASURED])
    return "\n".join(notes)


def _costs(reader: Any, files: Sequence[Any]) -> list[str]:
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    read, failed = [], []
    try:
        for file in files:  # once before the measurement, because the first run finds nothing in the caches
            try:
                reader.costs([file])
                read.append(file)
            except Exception as error:
                failed.append(f"  one of {len(files)} samples failed and is not counted: {error}")
        costs = reader.costs(read) if read else []
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])
    total = sum(cost for _, cost in costs)
    lines = [f"  {name}: {cost:.0f} us" for name, cost in costs]
    return [f"A sample costs {total:.0f} us of CPU, over {len(read)} samples:", *lines, *failed]
