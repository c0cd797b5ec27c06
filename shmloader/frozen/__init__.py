"""`shmloader.freeze`: one copy of a dataset for all workers and ranks of a machine."""

from shmloader.core.frozen_rows import FrozenDict, FrozenList
from shmloader.frozen.freeze import freeze
from shmloader.frozen.plan import explain

__all__ = ["FrozenDict", "FrozenList", "explain", "freeze"]
