"""Pictures, decoded where they are wanted: only the crop, only once, straight into the batch's row."""

from shmloader.images.decode import counts, decode

__all__ = ["counts", "decode"]
