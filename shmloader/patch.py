"""patch_torch(): all code that builds a `torch.utils.data.DataLoader` gets a shmloader.DataLoader.

NOTE [ Patching ]

    1. No name is rebound, because torch's class is not only in module globals.  Default arguments, partials and class
       attributes hold it too, and functions may import it later.  A call through any of these builds our loader,
       because the class itself is changed: its `__init__` turns the new, empty instance into one of our class.
    2. So the class stays the same object.  `isinstance(x, torch.utils.data.DataLoader)` is true of every loader, as
       before.  That includes ours and instances of others' subclasses, and loaders that were built before the patch.
       If the name were rebound to ours, Lightning would not recognise torch's loaders and would not shard them.
       Pickles that name the class still load.
    3. Only instances whose type is exactly torch's class, or exactly a class given as `classes=`, are changed.  Other
       subclasses stay what they are.  If a loader of torch's class is copied or unpickled, the result does not become
       ours, because neither calls `__init__`.
    4. Undoing it restores one attribute; no module keeps anything of ours.  Patching `__new__` would be plainer, but
       CPython cannot undo it: once a `__new__` was set and deleted, object.__new__ refuses arguments.
    5. An instance of a named subclass gets a class that inherits from that subclass and from ours, in this order.  So
       the subclass's overrides hold, and its super() calls reach ours before torch's.  The instance gets this class
       when its `__init__` calls torch's, so the subclass need not know about it, nor pass on unknown arguments.  The
       new class has the subclass's name.  It is in no module, so its instances are pickled under the subclass's name,
       with a function that gives them the combined class again when they are unpickled (`_rebuilt`).
    6. A user who patches torch expects all loaders to be ours.  So a warning names each class that is not reached, once
       in a process, when torch's iterator first serves a loader of it.
    7. Code that builds a loader by torch's name gives only torch's arguments.  So a loader also gets the options of the
       living patches.  If it cannot have one of them (look_ahead above its prefetch_factor), that is left out,
       with a warning: an option that nobody gave to this loader must not end the run.
"""

from __future__ import annotations

import functools
import inspect
import threading
import types
import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import torch.utils.data

from shmloader.checks import read_elsewhere, requirements
from shmloader.dataloader import DataLoader
from shmloader.options import DEFAULTS, RefusedOption
from shmloader.private import replaced
from shmloader.system.user_line import warn_once

_TorchLoader: Any = torch.utils.data.DataLoader

_lock = threading.Lock()
_patches: dict[Patch, None] = {}  # in the order in which they were applied; torch is patched while there is one
_made: weakref.WeakKeyDictionary[type, weakref.ref[type]] = weakref.WeakKeyDictionary()  # by a subclass of torch's
_warned: weakref.WeakSet[type] = weakref.WeakSet()
_inits: list[Any] = []  # [torch's __init__, its replacement], while torch is patched


class Patch:
    """The effect of `patch_torch`.  It holds until `undo()` or the end of a `with` block, and can be entered again.

    Attributes:
        covered: The classes whose loaders are ours while it holds, each with the class that they get.
        options: The options of these loaders, if the code that builds one gives no other value.
    """

    def __init__(self, classes: tuple[type, ...], options: dict[str, Any]) -> None:
        self.covered = {_TorchLoader: DataLoader, **{kind: _made_of(kind) for kind in classes}}
        self.options = options

    def _apply(self) -> None:
        with _lock:
            _patches[self] = None
            if not _inits:
                init = _TorchLoader.__init__
                _inits[:] = init, _building_ours(init)
                _TorchLoader.__init__ = _inits[1]
                read_elsewhere.listen(_serves_torchs_iterator)

    def undo(self) -> None:
        """Have these names build torch's loaders again, once all other patches that cover them are undone too.

        Loaders that were built under the patch stay ours.  A second call does nothing.
        """
        with _lock:
            _patches.pop(self, None)
            if _inits and not _patches:
                init, ours = _inits
                _inits.clear()
                read_elsewhere.unlisten(_serves_torchs_iterator)
                if _TorchLoader.__init__ is ours:  # otherwise other code has wrapped it, and ours has no effect inside
                    _TorchLoader.__init__ = init

    def __repr__(self) -> str:
        holds = "holds" if self in _patches else "undone"
        parts = [f"{holds}; covers {', '.join(map(_name, self.covered))}"]
        if self.options:
            parts.append(f"gives {_arguments(self.options)}")
        if why := requirements.why_not_here():
            parts.append(f"none rides the ring: {why}")
        return f"<patch_torch() {'; '.join(parts)}>"

    def __enter__(self) -> Patch:
        self._apply()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.undo()


def patch_torch(*, classes: Iterable[type] = (), **options: Any) -> Patch:
    """Have everything that builds a `torch.utils.data.DataLoader` build a `shmloader.DataLoader`, until it is undone.

    It is for frameworks that build loaders by torch's name: accelerate, transformers' Trainer, Ray Train, ignite and
    timm.  It holds for the whole process: all threads, and all modules, imported before or later, whatever they call
    the class.

        with shmloader.patch_torch():           patch = shmloader.patch_torch(on_worker_death="respawn")
            trainer.train()                     ...
                                                patch.undo()

    Options are those of `shmloader.DataLoader` that torch's does not have.  Each loader that is built by torch's name
    has them unless it is given others, also if a framework builds it from a loader of yours, as accelerate does: it
    takes the options of the patch, and not those of your loader.  If such a loader cannot have an option, it goes
    without it, with a RuntimeWarning.

    `isinstance(x, torch.utils.data.DataLoader)` is true as before, and true of our loaders.  The name takes our options
    as well: `torch.utils.data.DataLoader(dataset, spare_slots=3)`.  Patches nest: if two give the same option, the
    later one counts.  torch's loader is back when the last one is undone.

    Subclasses of torch's class (PyTorch Geometric's and MONAI's loaders for example) stay torch's unless you name them,
    whether they were defined before the patch or under it.  A RuntimeWarning names each of them when torch's iterator
    first serves it.  There are two ways to let them ride the ring:

        shmloader.patch_torch(classes=[torch_geometric.loader.DataLoader])      for all loaders of this class

        class Loader(torch_geometric.loader.DataLoader, shmloader.DataLoader):  a class of your own, which you build
            pass                                                                instead

    An instance of a named class is still an instance of it, and of `shmloader.DataLoader` too, also after pickling.
    Its `__init__` takes the same arguments.  It takes our options if it passes on arguments that it does not know.

    If `ray.train.torch` is imported, its `prepare_data_loader` does what `shmloader.ray.prepare_data_loader` does for a
    loader of shmloader's: the loader keeps its options and can be resumed.

    Limits: `class Theirs(torch.utils.data.DataLoader): pass` still gives torch's loader under the patch.  Loaders that
    were built before stay torch's.  `type(loader) is torch.utils.data.DataLoader` is false of ours.  A spawned process
    is not patched unless its script calls this, but loaders that are sent to it are ours.

    Args:
        classes: Subclasses of torch's class to cover as well; exactly these, not classes derived from them.
        **options: Options of `shmloader.DataLoader` for the loaders that frameworks build.

    Returns:
        The patch.  `undo()` it, or use it as a context manager.  str() lists what it covers.  Dropping it undoes
        nothing.

    Raises:
        TypeError: One of the classes is no subclass of torch's, or there is no such option.
        ValueError: One of the classes cannot be covered, because it makes its own iterators or batches; or an option
            cannot have this value.
    """
    named = tuple(dict.fromkeys(kind for kind in classes if kind is not _TorchLoader))
    for kind in named:
        if not (isinstance(kind, type) and issubclass(kind, _TorchLoader)):
            raise TypeError(f"classes should be subclasses of torch.utils.data.DataLoader, but got {kind!r}")
        if issubclass(kind, DataLoader):
            raise ValueError(
                f"classes should not be shmloader's, but got {_name(kind)}, which is a shmloader.DataLoader already. "
                "Leave it out."
            )
        if why := _why_not(kind):
            raise ValueError(f"patch_torch() cannot cover {_name(kind)}: {why}.")
    _check(options)
    patch = Patch(named, options)
    patch._apply()
    return patch


def _building_ours(init: Any) -> Any:
    @functools.wraps(init)
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        patches = list(_patches)
        ours = next((patch.covered[type(self)] for patch in patches if type(self) in patch.covered), None)
        if ours is None:
            init(self, *args, **kwargs)
            return
        object.__setattr__(self, "__class__", ours)  # because Lightning records calls of torch's __setattr__
        _initialise(self, args, kwargs, {name: value for patch in patches for name, value in patch.options.items()})

    return build


# ---------------------------------------------------------------------------------------------------------- options


def _check(options: dict[str, Any]) -> None:
    """Check options of patch_torch().

    Raises:
        TypeError: There is no such option.
        ValueError: An option has a value that it cannot have.
    """
    for name in options:
        if name not in DEFAULTS:
            theirs = inspect.signature(_TorchLoader.__init__).parameters
            hint = " (an argument of torch's: give it to the loader itself)" if name in theirs else ""
            raise TypeError(
                f"patch_torch() takes shmloader's options, and not {name!r}{hint}. They are classes, "
                f"{', '.join(DEFAULTS)}."
            )
    probe: Any = DataLoader
    probe([0], **options)


def _initialise(loader: Any, arguments: Any, given: dict[str, Any], options: dict[str, Any]) -> None:
    """Initialise a loader of ours that a framework builds: NOTE [ Patching ], 7.

    Args:
        loader: The loader, not initialised.
        arguments: Its positional arguments.
        given: Its named arguments.
        options: The options of living patches.
    """
    asked = {name: option for name, option in options.items() if name not in given}
    initialise: Any = DataLoader.__init__
    before = dict(vars(loader))
    while True:
        try:
            initialise(loader, *arguments, **given, **asked)
            return
        except RefusedOption as error:
            dropped = {name: asked.pop(name) for name in error.options if name in asked}
            if not dropped:
                raise
            warn_once(
                f"a {type(loader).__name__} that a framework built was not given {_arguments(dropped)}. patch_torch() "
                f"asks for that, and this loader cannot have it: {error}"
            )
            vars(loader).clear()  # torch does not let `dataset` be set again
            vars(loader).update(before)


def _arguments(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


# ------------------------------------------------------------------------------------------------------- subclasses


def _made_of(theirs: Any) -> type:
    """The class for loaders of a subclass of torch's: it inherits from that and from ours."""
    made = (_made.get(theirs) or (lambda: None))()
    if made is not None:
        return made

    def members(namespace: dict[str, Any]) -> None:
        namespace.update(
            __module__=theirs.__module__,
            __qualname__=theirs.__qualname__,
            __doc__=theirs.__doc__,
            __reduce_ex__=_reduce,
        )

    try:
        made = types.new_class(theirs.__name__, (theirs, DataLoader), exec_body=members)
    except TypeError as error:
        raise ValueError(
            f"patch_torch() cannot cover {_name(theirs)}: no class can inherit from it and from shmloader.DataLoader. "
            f"{error}"
        ) from error
    _made[theirs] = weakref.ref(made)
    return made


def _reduce(self: Any, protocol: Any) -> Any:
    """Pickle an instance of a made class: by its original class's name, so that it is changed again."""
    made = type(self)
    theirs = made.__bases__[0]
    make, arguments, *state = super(made, self).__reduce_ex__(protocol)
    return _rebuilt, (theirs, make, tuple(theirs if one is made else one for one in arguments)), *state


def _rebuilt(theirs: type, make: Any, arguments: tuple[Any, ...]) -> Any:
    loader = make(*arguments)
    object.__setattr__(loader, "__class__", _made_of(theirs))
    return loader


def _why_not(kind: Any) -> str | None:
    """Why loaders of this subclass of torch's cannot be ours; None if they can, as far as the class shows."""
    if requirements.why_not_of(kind):
        definer = next(base for base in kind.__mro__ if "_get_iterator" in vars(base))
        return f"{_name(definer)} has a _get_iterator() of its own"
    definer = next(base for base in kind.__mro__ if "__iter__" in vars(base))
    if definer is not _TorchLoader and not requirements.calls_back(definer):
        return f"{_name(definer)} has an __iter__() of its own, which calls neither super()'s nor _get_iterator()"
    return None


def _serves_torchs_iterator(loader: Any) -> None:
    """Warn if torch's iterator serves a class that the patch does not reach: a later one, or no subclass."""
    kind = type(loader)
    if not _patches or kind is _TorchLoader or kind in _warned or not loader.num_workers:
        return
    if kind.__module__.startswith("torch."):
        return
    _warned.add(kind)
    remedy = (
        _remedy(kind)
        if issubclass(kind, _TorchLoader)
        else "patch_torch() cannot cover it, because it does not inherit from torch's DataLoader."
    )
    warn_once(
        f"patch_torch() does not reach {_name(kind)}, which torch's own iterator serves. Its batches do not ride "
        f"shmloader's ring. {remedy}"
    )


def _remedy(kind: type) -> str:
    if why := _why_not(kind):
        return f"patch_torch() cannot cover it: {why}."
    name = kind.__name__
    if why := replaced.iterators():
        return f"If you name it, torch's iterator still serves it: {why}. Then give classes=[{name}] to patch_torch()."
    return (
        f"Give classes=[{name}] to patch_torch(), or define `class Loader({name}, shmloader.DataLoader): pass` and "
        "build that."
    )


def _name(kind: Any) -> str:
    return "torch.utils.data.DataLoader" if kind is _TorchLoader else f"{kind.__module__}.{kind.__qualname__}"
