"""Datasets that lie in shards: tar archives, Parquet and Arrow files, here or in an object store."""

from shmloader.storage.shards import Shards

__all__ = ["Shards"]
