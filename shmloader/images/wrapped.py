"""A dataset around another one, which has all of the other one's attributes."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset

__all__ = ["Wrapped"]


class Wrapped(Dataset[Any]):
    """A dataset around another one, which may make its samples in another way.  All else comes from the inner one.

    Args:
        dataset: the inner one.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        # While a copy is made it has no attributes.  Of protocols, the outer dataset has only those that it defines.
        if name == "dataset" or (name.startswith("__") and name != "__getitems__"):
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        # The samples come from the inner dataset, so a `transform` or `samples` set on the outer one would do nothing.
        is_own = name == "dataset" or name.startswith("_") or name in self.__dict__ or hasattr(type(self), name)
        if is_own or not hasattr(self.__dict__.get("dataset"), name):
            super().__setattr__(name, value)
        else:
            setattr(self.dataset, name, value)
