"""A dataset around another one, which has all of the other one's attributes."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset

__all__ = ["Wrapped"]


class Wrapped(Dataset[Any]):
    """A dataset inside another, whose samples the outer one may make in another way.  All else is the inner one's own.

    Args:
        dataset: the inner one.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        # Of a copy that is being made nothing is there yet; and no protocol is the dataset's but what it lists here.
        if name == "dataset" or (name.startswith("__") and name != "__getitems__"):
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        # Samples come from the inner one: a `transform` or `samples` that is set out here would change nothing.
        is_own = name == "dataset" or name.startswith("_") or name in self.__dict__ or hasattr(type(self), name)
        if is_own or not hasattr(self.__dict__.get("dataset"), name):
            super().__setattr__(name, value)
        else:
            setattr(self.dataset, name, value)
