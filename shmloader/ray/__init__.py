"""Far workers on a Ray cluster, and prepare_data_loader() for Ray Train.  `pip install 'shmloader[ray]'`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shmloader.ray.train import prepare_data_loader
    from shmloader.ray.workers import Workers

__all__ = ["Workers", "prepare_data_loader"]

_WHEN_USED = {"Workers": "shmloader.ray.workers", "prepare_data_loader": "shmloader.ray.train"}


def __getattr__(name: str) -> Any:
    if name not in _WHEN_USED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WHEN_USED[name]), name)
