"""fuse() of torch's Subset and ConcatDataset: the datasets inside are fused, and rows are written through them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import ConcatDataset, Subset

__all__ = ["FusedConcat", "FusedSubset", "fused_parts"]


class FusedSubset(Subset[Any]):
    """A part of a fused dataset.

    Args:
        dataset: the result of fuse() for the whole dataset.
        indices: its samples in this part.
    """

    @property
    def is_fused(self) -> bool:
        """See fuse()."""
        return bool(self.dataset.is_fused)  # type: ignore[attr-defined]

    @property
    def on_device(self) -> Any:
        """See fuse()."""
        return self.dataset.on_device  # type: ignore[attr-defined]

    def explain(self, measure: bool = False) -> str:
        """What is fused in the whole dataset: see fuse()."""
        return str(self.dataset.explain(measure))  # type: ignore[attr-defined]

    def __getitem_into__(self, index: int, row: Any) -> Any:
        return _into(self.dataset, self.indices[index], row)


class FusedConcat(ConcatDataset[Any]):
    """Several fused datasets in a row.

    Args:
        datasets: the results of fuse().

    Raises:
        ValueError: they leave different work to the device.
    """

    def __init__(self, datasets: list[Any]) -> None:
        super().__init__(datasets)
        if any(dataset.on_device != datasets[0].on_device for dataset in datasets):
            raise ValueError(
                "the datasets of a ConcatDataset leave different work to the device. A batch may have samples of "
                "several, and on_device treats all alike. Give them the same last transforms, or leave out "
                "scale_on_device."
            )

    @property
    def is_fused(self) -> bool:
        """Whether any of them is fused."""
        return any(dataset.is_fused for dataset in self.datasets)  # type: ignore[attr-defined]

    @property
    def on_device(self) -> Any:
        """See fuse()."""
        return self.datasets[0].on_device  # type: ignore[attr-defined]

    def explain(self, measure: bool = False) -> str:
        """What is fused in each dataset: see fuse()."""
        return "\n".join(dataset.explain(measure) for dataset in self.datasets)  # type: ignore[attr-defined]

    def __getitem_into__(self, index: int, row: Any) -> Any:
        if not 0 <= index < len(self):
            return self[index]  # counted from the end, or torch's IndexError
        which = bisect_right(self.cumulative_sizes, index)
        return _into(self.datasets[which], index - (self.cumulative_sizes[which - 1] if which else 0), row)


def fused_parts(dataset: Any, fuse: Callable[[Any], Any], given: Sequence[str]) -> FusedSubset | FusedConcat | None:
    """The same arrangement of fused datasets; None if the dataset is no Subset or ConcatDataset.

    Args:
        dataset: the dataset.
        fuse: fuses a dataset inside it.
        given: the options that fuse() was given.

    Raises:
        TypeError: there are such options, and a dataset inside is fused already, without them.
    """
    if type(dataset) is Subset:
        return FusedSubset(_fused(dataset, dataset.dataset, fuse, given), dataset.indices)
    if type(dataset) is ConcatDataset:
        return FusedConcat([_fused(dataset, part, fuse, given) for part in dataset.datasets])
    return None


def _fused(whole: Any, dataset: Any, fuse: Callable[[Any], Any], given: Sequence[str]) -> Any:
    is_already = type(dataset).__module__.startswith("shmloader.images.") and hasattr(dataset, "explain")
    if is_already and given:
        raise TypeError(
            f"fuse() got {' and '.join(given)} for a {type(whole).__name__}, but the {type(dataset).__name__} inside "
            "is fused already, and keeps its own options. Give them to the fuse() that made it."
        )
    return dataset if is_already else fuse(dataset)


def _into(dataset: Any, index: Any, row: Any) -> Any:
    into = getattr(dataset, "__getitem_into__", None)
    return dataset[index] if into is None else into(index, row)
