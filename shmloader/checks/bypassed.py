"""Warns if a loader calls the `__getitems__` that a dataset inherits, and never the `__getitem__` of its class.

torch's loader asks a dataset for a whole batch if it has a `__getitems__`.  If a class derives from such a dataset and
overrides only `__getitem__`, for example to augment samples, batches have the samples of the class above.  If a wrapper
has a `__getattr__` that passes every name on to the dataset inside, batches have the samples of that dataset.  torch
gives no warning, but newer versions of its Subset raise in their constructor.

Many a `__getitems__` calls the dataset's own `__getitem__`.  Then all is well, so the source of the method is read, and
that of the methods that it calls.  A method without source is trusted.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from typing import Any

from torch.utils.data import IterableDataset

from shmloader.protocols.wrapped_datasets import asked_for_batches
from shmloader.system.user_line import warn_once


def warn_if_bypassed(loader: Any) -> None:
    """Warn if the `__getitem__` of the loader's dataset is bypassed: once for each class."""
    if loader.batch_sampler is None or isinstance(loader.dataset, IterableDataset):
        return
    for dataset in asked_for_batches(loader.dataset):
        if (owner := _owner(dataset)) is not None:
            kind = type(dataset).__name__
            warn_once(
                f"{kind}.__getitem__ is not called, because {kind} has the __getitems__ of {owner}. A loader calls "
                "that method for a whole batch, as torch's does. Define it in your class, too: "
                "def __getitems__(self, indices): return [self[index] for index in indices]"
            )


def _owner(dataset: Any) -> str | None:
    """The class whose `__getitems__` is called instead of the dataset's own `__getitem__`; None: that is called."""
    kind: Any = type(dataset)
    if any("__getitems__" in vars(base) for base in kind.__mro__):
        return _owner_above(kind)
    if not any("__getattr__" in vars(base) for base in kind.__mro__):
        return None
    other = getattr(getattr(dataset, "__getitems__", None), "__self__", dataset)
    is_wrapper = other is not dataset and inspect.isfunction(getattr(kind, "__getitem__", None))
    return type(other).__name__ if is_wrapper else None


@functools.cache
def _owner_above(kind: type) -> str | None:
    for base in kind.__mro__:
        own = vars(base)
        if "__getitems__" in own:
            return None
        if "__getitem__" in own:
            break
    above = next(base for base in kind.__mro__ if "__getitems__" in vars(base))
    return None if _may_use_items(kind, vars(above)["__getitems__"], set()) else above.__name__


def _may_use_items(kind: type, method: Any, seen: set[Any]) -> bool:
    """Whether a method of a class may call its `__getitem__`, itself or in another method.

    It may if it uses `self` in another way than by its attributes: `self[index]` or `f(self)`.
    """
    if method in seen:
        return False
    seen.add(method)
    if not inspect.isfunction(method) or hasattr(method, "__wrapped__"):  # the source is not all that runs
        return True
    if method.__name__ == "__getitem__" or not method.__code__.co_argcount:
        return True
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    except (OSError, TypeError, SyntaxError):
        return True
    itself = method.__code__.co_varnames[0]
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    names = {node.attr for node in attributes if _is_itself(node.value, itself)}
    by_attribute = {id(node.value) for node in attributes}
    if "__getitem__" in names or any(
        isinstance(node, ast.Name) and node.id == itself and id(node) not in by_attribute for node in ast.walk(tree)
    ):
        return True
    found = {name: [vars(base)[name] for base in kind.__mro__ if name in vars(base)] for name in names}
    functions = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    called = {node.attr for node in functions if isinstance(node, ast.Attribute) and _is_itself(node.value, itself)}
    if any(not found[name] for name in called):  # an attribute of the instance
        return True
    return any(_may_use_items(kind, each, seen) for parts in found.values() for each in parts if _runs(each))


def _runs(attribute: Any) -> bool:
    """Whether an attribute of a class runs code that gets the instance: a function, a property, a decorator's."""
    return hasattr(type(attribute), "__get__") and not isinstance(attribute, (staticmethod, classmethod))


def _is_itself(node: ast.expr, itself: str) -> bool:
    """Whether an expression is `self` or `super()`."""
    if isinstance(node, ast.Call):
        node = node.func
        return isinstance(node, ast.Name) and node.id == "super"
    return isinstance(node, ast.Name) and node.id == itself
