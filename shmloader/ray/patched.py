"""Ray's own prepare_data_loader(), while patch_torch() holds: it does what ours does for loaders of shmloader's.

Scripts hold the function by names of their own (`from ray.train.torch import prepare_data_loader`).  So no name is
rebound: the function itself gets other code, and its own again when the patch is undone.
"""

from __future__ import annotations

import sys
import types
from typing import Any

_WHERE = ("ray.train.v2.torch.train_loop_utils", "ray.train.torch.train_loop_utils")

_codes: dict[Any, types.CodeType] = {}  # a function of Ray's -> its own code, while it has ours


def cover() -> None:
    """Change those of Ray's functions that are imported and not changed yet."""
    for name in _WHERE:
        function = getattr(sys.modules.get(name), "prepare_data_loader", None)
        if not isinstance(function, types.FunctionType) or function in _codes:
            continue
        if function.__code__.co_freevars or function.__code__.co_varnames[:4] != _ours.__code__.co_varnames[:4]:
            continue  # another Ray, whose function takes other arguments
        _codes[function] = function.__code__
        function.__code__ = _ours.__code__


def uncover() -> None:
    """Give them their own code back."""
    while _codes:
        function, code = _codes.popitem()
        function.__code__ = code


def stock(function: Any) -> Any:
    """A function of Ray's as it was."""
    return types.FunctionType(_codes[function], function.__globals__, "prepare_data_loader", function.__defaults__)


# In Ray's function this code has the globals of Ray's module, so it imports all that it uses.
def _ours(data_loader, add_dist_sampler=True, move_to_device=True, auto_transfer=True):  # type: ignore[no-untyped-def]
    from shmloader.ray.patched import prepared

    return prepared(prepare_data_loader, data_loader, add_dist_sampler, move_to_device, auto_transfer)  # type: ignore[name-defined]  # noqa: F821


def prepared(function: Any, loader: Any, *arguments: bool) -> Any:
    """What Ray's function returns under the patch.

    Args:
        function: Ray's.
        loader: To prepare.
        arguments: The function's others.
    """
    from shmloader.dataloader import DataLoader
    from shmloader.ray.train import prepare_data_loader

    if type(loader) is DataLoader:
        return prepare_data_loader(loader, *arguments)
    return stock(function)(loader, *arguments)
