"""The options of a loader that a framework builds: those of patch_torch(), and of the loader that it is built from.

NOTE [ Take over ]

    1. Code that builds a loader by torch's name knows only torch's arguments, so we fill in our options.  An option
       comes from the loader that the new one was built from.  If that loader has only the default, it comes from
       patch_torch(): from the latest patch that gives it.
    2. We recognise that loader by this: it is a living loader of ours over the same dataset object, with the same
       number of workers and the same collate function.  accelerate and Ray Train pass on all three.  Only options that
       differ from their defaults are taken over.
    3. If several such loaders have different options, none is taken over, with a warning.
    4. If the new loader cannot have an option (Ray Train drops prefetch_factor, which limits look_ahead), the
       option is left out, with a warning: an option that nobody gave to this loader must not end the run.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

import torch.utils.data

from shmloader import off_the_ring
from shmloader.dataloader import DataLoader
from shmloader.options import DEFAULTS, is_same
from shmloader.read_elsewhere import notes_of

_TORCHS = inspect.signature(torch.utils.data.DataLoader.__init__)


def check(options: dict[str, Any]) -> None:
    """Check options of patch_torch().

    Raises:
        TypeError: There is no such option.
        ValueError: An option has a value that it cannot have.
    """
    for name in options:
        if name not in DEFAULTS:
            hint = " (an argument of torch's: give it to the loader itself)" if name in _TORCHS.parameters else ""
            raise TypeError(
                f"patch_torch() takes shmloader's options, and not {name!r}{hint}. They are classes, "
                f"{', '.join(DEFAULTS)}."
            )
    probe: Any = DataLoader
    probe([0], **options)


def build(loader: Any, arguments: Any, given: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Initialise a loader of ours that a framework builds.

    Args:
        loader: The loader, not initialised.
        arguments: Its positional arguments.
        given: Its named arguments.
        defaults: The options of living patches.
    """
    asked = {**defaults, **_options_of_source(arguments, given)}
    asked = {name: option for name, option in asked.items() if name not in given}
    initialise: Any = DataLoader.__init__
    before = dict(vars(loader))
    while True:
        try:
            initialise(loader, *arguments, **given, **asked)
            return
        except (ValueError, RuntimeError) as error:
            dropped = [name for name in asked if re.search(rf"\b{name}\b", str(error))]
            if not dropped:
                raise
            _warn_left_out(loader, {name: asked.pop(name) for name in dropped}, error)
            vars(loader).clear()  # torch does not let `dataset` be set again
            vars(loader).update(before)


def _warn_left_out(loader: Any, options: dict[str, Any], error: Exception) -> None:
    off_the_ring.warn_once(
        f"a {type(loader).__name__} that a framework built was not given {_arguments(options)}. patch_torch() or the "
        f"loader that it was built from asks for that, and this loader cannot have it: {error}",
        stacklevel=None,
    )


def _options_of_source(arguments: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The options of the living loader from which this one is built; empty if there is none."""
    try:
        torchs = {name: value for name, value in given.items() if name not in DEFAULTS}
        bound = _TORCHS.bind(None, *arguments, **torchs).arguments
    except TypeError:  # the constructor will raise the same error
        return {}
    workers, collate = bound.get("num_workers", 0), bound.get("collate_fn")
    found = [
        note.options
        for note in notes_of(bound["dataset"])
        if note.loader() is not None and note.is_like(workers, collate)
    ]
    return _agreed([options for options in found if options], type(bound["dataset"]).__name__)


def _agreed(found: list[dict[str, Any]], label: str) -> dict[str, Any]:
    if not found:
        return {}
    if all(
        options.keys() == found[0].keys() and all(is_same(value, found[0][name]) for name, value in options.items())
        for options in found
    ):
        return dict(found[0])
    off_the_ring.warn_once(
        f"a loader that a framework built for {label} inherits no options, because your own loaders for that dataset "
        f"have different ones: {'; '.join(dict.fromkeys(map(_arguments, found)))}. Give patch_torch() the options that "
        "it should have.",
        stacklevel=None,
    )
    return {}


def _arguments(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


def merged(options: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The options of several patches together, the first patch first.  A later patch's value counts."""
    return {name: value for each in options for name, value in each.items()}
