"""Which loaders `shmloader serve` takes, and why it refuses others."""

from __future__ import annotations

from typing import Any

from shmloader.options import Options


def check_servable(loader: Any) -> None:
    """Raise a ValueError if this loader cannot be served."""
    try:
        options = Options.of(loader)
    except AttributeError:
        kind = type(loader)
        raise ValueError(
            f"What is served should be a shmloader.DataLoader, but got a {kind.__module__}.{kind.__qualname__}. Have "
            "the function return a loader of shmloader's."
        ) from None
    if not loader.num_workers or not loader.persistent_workers:
        raise ValueError(
            f"A loader that is served needs num_workers above 0 and persistent_workers=True, but has num_workers="
            f"{loader.num_workers} and persistent_workers={loader.persistent_workers}. Give it both."
        )
    if not loader.in_order:
        raise ValueError(
            "A loader that is served gives all readers the same batches in order, but has in_order=False. Leave it out."
        )
    if options.far_workers is not None:
        raise ValueError(
            "A loader that is served has workers on this machine, but this one has far_workers. Leave far_workers= out."
        )
    if options.device is not None or loader.pin_memory:
        raise ValueError(
            f"A loader that is served hands out batches in ordinary memory, but has device={options.device!r}, "
            f"pin_memory={loader.pin_memory}. Leave both out, and copy with batch.to(device) in each reader."
        )
