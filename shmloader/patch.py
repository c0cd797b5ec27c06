"""patch_torch(): what is built as `torch.utils.data.DataLoader` is ours, whoever builds it.

NOTE [ Patching ]

    1. No name is rebound.  torch's class is held in more places than module globals (default arguments, partials,
       class attributes, function bodies that import it later), and all of them build ours, because the class itself
       is told to: its `__init__` turns the new instance into ours before anything is in it.
    2. So the class stays the very object it was.  `isinstance(x, torch.utils.data.DataLoader)` is true of every loader
       as before, ours, torch's and others' subclasses, built before or under the patch; were the name rebound to
       ours, Lightning would take a loader of torch's for none and not shard it.  Pickles that name the class work.
    3. Only `type(self) is torch's class` is turned: subclasses, and what copy and pickle make (they do not call
       `__init__`), stay what they are.
    4. To undo it is to put one attribute back; no module keeps anything of ours.  `__new__` would be the plainer
       place, but CPython cannot take one away again: object.__new__ refuses arguments from then on.
"""

from __future__ import annotations

import functools
import threading
from types import TracebackType
from typing import Any

import torch.utils.data

from shmloader.dataloader import DataLoader

_TorchLoader: Any = torch.utils.data.DataLoader

_lock = threading.Lock()
_patches: set[Patch] = set()  # torch is patched while there is any
_inits: list[Any] = []  # [torch's __init__, the one in its place], while it is patched


class Patch:
    """What `patch_torch` did, until `undo()` or the end of a `with` block; can be entered again after that."""

    def _apply(self) -> None:
        with _lock:
            _patches.add(self)
            if not _inits:
                init = _TorchLoader.__init__
                _inits[:] = init, _building_ours(init)
                _TorchLoader.__init__ = _inits[1]

    def undo(self) -> None:
        """Let torch's name build torch's loader again, once every other patch is undone too.

        Loaders that were built under it stay ours.  Undoing twice is harmless.
        """
        with _lock:
            _patches.discard(self)
            if _inits and not _patches:
                init, ours = _inits
                _inits.clear()
                if _TorchLoader.__init__ is ours:  # else someone wrapped it, and what they hold has lost its effect
                    _TorchLoader.__init__ = init

    def __enter__(self) -> Patch:
        self._apply()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.undo()


def patch_torch() -> Patch:
    """Have everything that builds a `torch.utils.data.DataLoader` build a `shmloader.DataLoader`, until undone.

    For frameworks that build loaders by torch's name: accelerate, transformers' Trainer, ignite, timm.  It holds for
    the whole process, all threads, and every module, imported before or later, under whatever name it holds the class:

        with shmloader.patch_torch():           patch = shmloader.patch_torch()
            trainer.train()                     ...
                                                patch.undo()

    `isinstance(x, torch.utils.data.DataLoader)` holds for what it held before, and for ours.  The name takes our
    options as well: `torch.utils.data.DataLoader(dataset, spare_slots=3)`.  Patches nest: torch's loader is back when
    the last one is undone.

    Limits: subclasses of torch's class, defined before or under the patch, go on as torch's (so `class Theirs(
    torch.utils.data.DataLoader): pass` is the way to torch's loader under the patch); loaders built before stay
    torch's; `type(loader) is torch.utils.data.DataLoader` is false of ours.  A spawned process is not patched unless
    its script does it; loaders that are sent there are ours all the same.

    Returns:
        The patch: `undo()` it, or use it as a context manager.  Dropping it undoes nothing.
    """
    patch = Patch()
    patch._apply()
    return patch


def _building_ours(init: Any) -> Any:
    @functools.wraps(init)
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        if type(self) is _TorchLoader and _patches:
            object.__setattr__(self, "__class__", DataLoader)  # Lightning records what goes through torch's __setattr__
            self.__init__(*args, **kwargs)
        else:
            init(self, *args, **kwargs)

    return build
