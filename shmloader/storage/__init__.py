"""Datasets that lie in shards: tar archives, Parquet and Arrow files, on a local disk or in an object store."""

from shmloader.storage.shards import Shards

__all__ = ["Shards"]
