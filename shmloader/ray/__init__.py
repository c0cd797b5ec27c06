"""Far workers on a Ray cluster, and a seat in Ray Train.  `pip install 'shmloader[ray]'`."""

from shmloader.ray.train import prepare_data_loader
from shmloader.ray.workers import Workers

__all__ = ["Workers", "prepare_data_loader"]
