"""What takes the place of torch's fetcher, which makes the batches of a loader without workers."""

from __future__ import annotations

from typing import Any

__all__ = ["OurFetcher"]


class OurFetcher:
    """Takes the place of torch's fetcher.  Attributes that other code reads or sets here are those of that fetcher."""

    _fetcher: Any

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        else:
            setattr(self._fetcher, name, value)

    def __getattr__(self, name: str) -> Any:
        if name == "_fetcher":  # it is missing before __init__
            raise AttributeError(name)
        return getattr(self._fetcher, name)
