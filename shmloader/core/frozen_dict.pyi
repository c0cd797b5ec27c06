"""Types of the extension built from cython_ext/frozen/frozen_dict.pyx, where each is explained."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from shmloader.core.frozen_rows import Pages

def bits_for(count: int) -> int: ...
def table_of(keys: Iterable[Any], bits: int) -> bytearray: ...

class FrozenDict(Mapping[Any, Any]):
    pages: Pages
    layouts: tuple[tuple[Any, ...], tuple[Any, ...]]
    default_factory: Any
    def __init__(
        self,
        pages: Pages,
        keys: tuple[Any, ...],
        values: tuple[Any, ...],
        count: int,
        table: int,
        bits: int,
        default_factory: Any = None,
    ) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, key: Any) -> Any: ...
    def __iter__(self) -> Iterator[Any]: ...
    def pairs(self) -> Iterator[tuple[Any, Any]]: ...
    def copy(self) -> dict[Any, Any]: ...
