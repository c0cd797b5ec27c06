"""What other code has replaced in torch's loader: fetchers, methods of the loader, methods of its iterators.

NOTE [ Replaced ]

Other code changes torch's loader by setting attributes of torch's classes and modules.  Our loaders must not ignore
that, because then the batches differ without a word.  There are three kinds:

    (a) what makes a batch       torch's fetchers, or the function that chooses one.  Our workers call what is there
                                 now: their_fetcher.py.
    (b) what makes an iterator   `__iter__` and `_get_iterator` of torch's loader.  We call what is there now.  In the
                                 end it calls torch's own function, and that gets an iterator of ours: come_back().
    (c) how an iterator works    the methods in _METHODS.  Only torch's iterator calls them, so that one serves the
                                 loader: NOTE [ Off the ring ].

    1. A function is torch's if its code was compiled from torch's file.  Its `__module__` and `__qualname__` prove
       nothing, because wrappers copy them.  The file's name comes from the code of a property of torch's, because torch
       may have been compiled elsewhere, and `__file__` would differ.  A callable without code (a partial, a
       proxy, a function of C) is not torch's, unless this torch itself has no code.  Changed source that is compiled
       with the name of torch's file is not noticed.
    2. Our own watch over torch's iterators is looked through: of_torch.watch_iterators().
    3. Each iter() looks again, because other code may change torch at any time.  It takes about 6 us.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch.utils.data

from shmloader.private import of_torch
from shmloader.protocols.user_objects import attribute

IGNORE = "SHMLOADER_IGNORE_REPLACED"
_SERVES = "_MultiProcessingDataLoaderIter"  # the name of the class whose iterators serve loaders with workers
_METHODS = (
    *("__init__", "__next__", "_next_data", "_next_index", "_reset", "_process_data", "_try_put_index"),
    *("_get_data", "_try_get_data"),
)
_SPECIAL = ("__init__", "__new__", "__getattribute__", "__getattr__", "__setattr__")  # those that change a fetcher

_dataloader: Any = sys.modules[torch.utils.data.DataLoader.__module__]


# ------------------------------------------------------------------------------------------------ torch's own functions


@functools.cache
def _file(*below: str) -> str | None:
    """The file from which torch's dataloader.py was compiled, or one below its folder; None if it has no code."""
    code = getattr(torch.utils.data.DataLoader._auto_collation.fget, "__code__", None)  # type: ignore[attr-defined]
    if code is None:
        return None
    return os.path.join(os.path.dirname(code.co_filename), *below) if below else str(code.co_filename)


def _is_torchs(found: Any, file: str | None) -> bool:
    return file is None or (type(found) is types.FunctionType and found.__code__.co_filename == file)


def _where(found: Any) -> str:
    """The file and the line of what other code has set; its class, if it is no function, nor around one."""
    for name in ("_self_wrapper", "__func__", "func"):  # of wrapt's proxies, methods, partial functions
        found = attribute(found, name, found)
    if type(found) is types.FunctionType:
        return f"{found.__code__.co_filename}:{found.__code__.co_firstlineno}"
    kind = found if isinstance(found, type) else type(found)
    return f"{kind.__module__}.{kind.__qualname__}"


# -------------------------------------------------------------------------------------------------------- (a) fetchers


def fetcher(streams: bool) -> str | None:
    """What makes batches in this process in place of torch's fetcher: its name and file; None if that one does.

    Args:
        streams: Whether the dataset is iterable.
    """
    if of_torch.fetchers is None:  # this torch has others
        return None
    create = torch.utils.data._DatasetKind.create_fetcher
    if not _is_torchs(create, _file()):
        return f"_DatasetKind.create_fetcher ({_where(create)})"
    name = "_IterableDatasetFetcher" if streams else "_MapDatasetFetcher"
    found = getattr(of_torch.fetchers, name)
    if not isinstance(found, type):
        return f"{name} ({_where(found)})"
    file = _file("_utils", "fetch.py")
    for kind in found.__mro__[:-1]:
        for member, value in vars(kind).items():
            if member.startswith("__") and member not in _SPECIAL:
                continue
            if not callable(value) and not hasattr(type(value), "__get__"):  # it has no code
                continue
            if not _is_torchs(value, file):
                replaced = name if kind.__name__ == name else f"{name} ({kind.__name__})"
                return f"{replaced}.{member} ({_where(value)})"
    return None


def refusal(option: str, by: str) -> str:
    """The error for an option that needs torch's fetcher.

    Args:
        option: The option.
        by: What makes the batches, from fetcher().
    """
    return (
        f"{option} needs torch's own fetcher, which other code has replaced. The option has the samples of a batch "
        f"made one by one, and {by} makes whole batches. Leave the option out, or do not import the file that replaces "
        "the fetcher."
    )


def make_fetcher(streams: bool, *arguments: Any) -> Any:
    """The fetcher that torch's worker would make now.

    Args:
        streams: Whether the dataset is iterable.
        *arguments: The dataset, whether tasks are batches, the collate function, and whether the last batch is dropped.
    """
    kind: Any = torch.utils.data._DatasetKind
    return kind.create_fetcher(kind.Iterable if streams else kind.Map, *arguments)


# ---------------------------------------------------------------------------------------------------- (b) the iterator


def is_replaced(method: str) -> bool:
    """Whether other code has replaced this method of torch's loader."""
    return not _is_torchs(vars(torch.utils.data.DataLoader)[method], _file())


def where(method: str) -> str:
    """The file and the line of what has replaced this method of torch's loader."""
    return _where(vars(torch.utils.data.DataLoader)[method])


def names(function: Any, *attributes: str) -> bool:
    """Whether a function, or one inside it, uses one of these names as an attribute."""
    code = getattr(function, "__code__", function)
    if not isinstance(code, types.CodeType):
        return False
    return any(name in code.co_names for name in attributes) or any(names(each, *attributes) for each in code.co_consts)


def asks_another(found: Any, owner: type) -> bool:
    """Whether a class's `_get_iterator` asks another one for the iterator: by its code, or by what it holds.

    Args:
        found: The method.  Other code may have set it, and hold the one before it in a closure or in the class.
        owner: The class.
    """
    met: dict[int, Any] = {}
    left = [found]
    while left and len(met) < _MOST:
        each = left.pop()
        if id(each) in met:
            continue
        met[id(each)] = each
        if type(each) is types.FunctionType:
            code = each.__code__
            if names(each, "_get_iterator") or (code.co_name == "_get_iterator" and code.co_filename == _file()):
                return True
            left.extend(_contents(each.__closure__ or ()))
            left.extend([*(each.__defaults__ or ()), *(each.__kwdefaults__ or {}).values()])
            used = [(each.__globals__.get(name), getattr(owner, name, None)) for name in code.co_names]
            left.extend(value for pair in used for value in pair if type(value) in _FUNCTIONS)
        left.extend(filter(None, (attribute(each, name) for name in _INNER)))
    return False


_MOST = 100
_INNER = ("__wrapped__", "__func__", "func", "_self_wrapper")
_FUNCTIONS = (types.FunctionType, functools.partial)


def _contents(cells: tuple[Any, ...]) -> Iterator[Any]:
    for cell in cells:
        with contextlib.suppress(ValueError):  # it is empty
            yield cell.cell_contents


_noted: dict[tuple[int, int], list[Any]] = {}  # by thread and loader: torch's iterators that were made for it


def come_back(ours: Callable[[Any], Any]) -> None:
    """From now on torch's own `_get_iterator`, called with a loader of ours, returns an iterator of ours.

    Other code holds that function already, so we cannot replace it.  But it makes iterators by calling torch's classes.

    Args:
        ours: Makes an iterator of ours for a loader with workers; it returns None if torch's must serve that.
    """
    of_torch.make_iterators_by(functools.partial(_make, ours))


def _make(ours: Callable[[Any], Any], kind: Any, loader: Any, code: types.CodeType) -> Any:
    if code.co_name != "_get_iterator" or code.co_filename != _file():
        return None  # code of others, which asks for torch's class by name
    if loader.num_workers:
        return ours(loader)
    made = object.__new__(kind)
    _noted.get((threading.get_ident(), id(loader)), []).append(made)
    return made


@contextlib.contextmanager
def noting(loader: Any) -> Iterator[list[Any]]:
    """Collect the iterators that torch's `_get_iterator` makes for a loader without workers in this `with` block.

    What other code returns may hide them.
    """
    key = threading.get_ident(), id(loader)
    before = _noted.get(key)
    found = _noted[key] = []
    try:
        yield found
    finally:
        if before is None:
            del _noted[key]
        else:
            _noted[key] = before


# ----------------------------------------------------------------------------------------- (c) methods of the iterators


def iterators() -> str | None:
    """Why torch's own iterator must serve all loaders with workers; None if no other code has changed how it works."""
    found = _replaced_methods()
    return _why(found) if found else None


def _why(found: dict[str, Any]) -> str | None:
    ignored = {name.strip() for name in os.environ.get(IGNORE, "").split(",")}
    names = {name: value for name, value in found.items() if name not in ignored}
    if not names:
        return None
    places = ", ".join(dict.fromkeys(map(_where, names.values())))
    setting = ",".join([*sorted(found.keys() - names.keys()), *names])
    return (
        f"other code has replaced {', '.join(names)} of torch's iterator ({places}), and no other iterator calls that: "
        f"if your loaders do not need it, set {IGNORE}={setting} in the environment"
    )


def _replaced_methods() -> dict[str, Any]:
    kind, file = getattr(_dataloader, _SERVES, None), _file()
    if not isinstance(kind, type):
        return {} if kind is None else {_SERVES: kind}
    found: dict[str, Any] = {}
    for each, method in itertools.product(kind.__mro__[:-1], _METHODS):
        value = of_torch.before_watch(each, vars(each).get(method))
        if value is not None and not _is_torchs(value, file):
            found[f"{each.__name__}.{method}"] = value
    loop = of_torch.worker_loop()
    if loop is not None and not _is_torchs(loop, _file("_utils", "worker.py")):
        found["_worker_loop"] = loop
    return found
