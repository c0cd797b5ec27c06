"""`shmloader.freeze`: one copy of a dataset for all workers and ranks of a machine."""

from shmloader.core.frozen_rows import FrozenDict, FrozenList
from shmloader.frozen.explain import explain
from shmloader.frozen.freeze import freeze

__all__ = ["FrozenDict", "FrozenList", "explain", "freeze"]
