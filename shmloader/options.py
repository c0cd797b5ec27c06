"""The options that torch's loader does not have: defaults, allowed values, and which of them only the ring can honour.

NOTE [ Options ]

    1. `DataLoader.__init__` makes an `Options` of its arguments, and `Options` checks each value.  The loader keeps
       that object under a private name, so a subclass's own attributes (`self.device`, `self.schedule`) are no options.
    2. Code below `DataLoader` gets the object from `Options.of(loader)`, and reads `options.chunk_size`.
    3. Lightning rebuilds a loader from its attributes.  So the loader also has an attribute for each option, except
       where its class has one of that name.  Nobody here reads these.  Setting one would be lost in silence, so
       `DataLoader` refuses that.
    4. check_requirements() in requirements.py checks what a value requires from other options, from the loader (its
       dataset, its collate function) and from the machine.  To refuse another combination, add it there.
    5. A new option is a field here, the same name in the signature of `DataLoader`, a paragraph in its docstring, and
       an entry in docs/machinery/option_pages.py.  tests/face/test_options.py fails if one is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from shmloader.far_workers import FarWorkers

Check = Callable[[str, Any], None]


class RefusedOption(Exception):
    """A loader cannot have an option whose value is allowed: another argument, its dataset or this machine forbids it.

    Args:
        text: The message.
        options: Which options these are, by name or as name=value.
    """

    def __init__(self, text: str, *options: str) -> None:
        super().__init__(text)
        self.options = [each.partition("=")[0] for each in options]


class UnsuitableOption(RefusedOption, ValueError):
    """It does not suit the loader."""


class OptionOfTheRing(RefusedOption, RuntimeError):
    """Only the ring can honour it, and the loader does not ride it."""


def _check(is_allowed: Callable[[Any], bool], allowed: str, remedy: str = "") -> Check:
    """Refuse a value for which `is_allowed` returns false.  The other two are for the error."""

    def check(name: str, value: Any) -> None:
        if not is_allowed(value):
            raise ValueError(f"{name} should be {allowed}, but got {name}={value!r}.{remedy and f' {remedy}.'}")

    return check


def is_integer(value: Any) -> bool:
    """Whether a value is an int; a bool does not count."""
    return isinstance(value, int) and not isinstance(value, bool)


def _integer(least: int, allowed: str, remedy: str = "") -> Check:
    return _check(lambda value: is_integer(value) and value >= least, allowed, remedy)


def _none_or(check: Check) -> Check:
    return lambda name, value: None if value is None else check(name, value)


def _one_of(*words: str) -> Check:
    return _check(lambda value: value in words, f"{', '.join(map(repr, words[:-1]))} or {words[-1]!r}")


def _true_or_false(remedy: str) -> Check:
    return _check(lambda value: isinstance(value, bool), "True or False", remedy)


def _device(name: str, value: Any) -> None:
    try:
        torch.device(value)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"{name} should be a torch.device or its name, but got {name}={value!r}: {error}") from None


def _limit(text: str) -> int | float:
    """The most samples that an epoch may skip: a number of them, or a share.  A ValueError: it is neither."""
    limit = int(text) if text.isascii() and text.isdecimal() else float(text)
    if isinstance(limit, float) and not 0 < limit <= 1:
        raise ValueError(text)
    return limit


def _is_on_bad_sample(value: Any) -> bool:
    if isinstance(value, str) and value in ("raise", "skip"):
        return True
    try:
        _limit(value[5:] if isinstance(value, str) and value.startswith("skip:") else "")
    except ValueError:
        return False
    return True


_function_of_a_batch = _check(callable, "callable with a batch, or None")
_place = _check(
    lambda value: callable(value) or value == "place",  # in this order: nothing compares a user's function
    "'place' (the dataset's __place__ says where a sample lies), a function of an index, or None",
)
_far_workers = _check(
    lambda value: isinstance(value, FarWorkers),
    "a shmloader.ray.Workers or None",
    "For example shmloader.ray.Workers(num=32)",
)
_on_bad_sample = _check(
    _is_on_bad_sample,
    "'raise', 'skip', or 'skip:' with a number of samples or a share above 0 and at most 1",
    "For example 'skip:20' or 'skip:0.05'",
)


def _option(default: Any, check: Check, *, only_on_the_ring: bool = False) -> Any:
    return field(default=default, metadata={"check": check, "only_on_the_ring": only_on_the_ring})


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of one loader.  `DataLoader` documents each of them.

    torch's iterators cannot honour those that are `only_on_the_ring`: NOTE [ Off the ring ].  `spare_slots` is not one
    of them, because off the ring each batch belongs to the user in any case.

    Raises:
        ValueError: A value is out of its range, or needs another option.
    """

    spare_slots: int = _option(2, _integer(0, "a non-negative integer", "0 copies every batch; the default is 2"))
    max_ring_bytes: int | None = _option(
        None, _none_or(_integer(1, "a positive integer of bytes, or None")), only_on_the_ring=True
    )
    on_worker_death: str = _option("raise", _one_of("raise", "respawn"), only_on_the_ring=True)
    workers_outlive_signals: bool = _option(True, _true_or_false("False lets SIGTERM and Ctrl-C end them, as in torch"))
    schedule: str = _option("round_robin", _one_of("round_robin", "steal"), only_on_the_ring=True)
    chunk_size: int | None = _option(
        None, _none_or(_integer(1, "a positive integer of samples, or None")), only_on_the_ring=True
    )
    group_by: Callable[[Any], Any] | str | None = _option(None, _none_or(_place), only_on_the_ring=True)
    device: torch.device | str | None = _option(None, _none_or(_device))
    on_device: Callable[[Any], Any] | None = _option(None, _none_or(_function_of_a_batch))
    sample_seeds: bool = _option(
        False, _true_or_false("True seeds each sample by its place in the order"), only_on_the_ring=True
    )
    on_bad_sample: str = _option("raise", _on_bad_sample, only_on_the_ring=True)
    look_ahead: int | None = _option(
        None,
        _none_or(_integer(0, "a non-negative integer of batches, or None", "0 looks at none; None is the default")),
        only_on_the_ring=True,
    )
    far_workers: Any = _option(None, _none_or(_far_workers), only_on_the_ring=True)

    def __post_init__(self) -> None:
        for each in fields(self):
            each.metadata["check"](each.name, getattr(self, each.name))
        if self.on_device is not None and self.device is None:
            raise UnsuitableOption(
                "on_device was given without device. Name the device to deliver to: device='cuda' or 'cpu'.",
                "on_device",
            )

    @classmethod
    def of(cls, loader: Any) -> Options:
        """The options of a loader of ours; the defaults if its class does not call our __init__()."""
        options: Options = loader._shmloader_options
        return options

    def give_to(self, loader: Any) -> None:
        """Make them the options of a loader, in place of those that it has: NOTE [ Options ], 1 and 3."""
        own, before = vars(loader), {}
        if "_shmloader_options" in own:  # Ray Train gives it others; frameworks call __init__() of a loader once more
            before = Options.of(loader).as_arguments()
        own["_shmloader_options"] = self
        for name, value in self.as_arguments().items():
            is_ours = name in before and own[name] is before[name] if name in own else not hasattr(type(loader), name)
            if is_ours:
                own[name] = value

    def as_arguments(self) -> dict[str, Any]:
        """The arguments with which a call of the constructor makes another loader with these options."""
        return {name: getattr(self, name) for name in DEFAULTS}

    @property
    def steals(self) -> bool:
        """Whether any free worker makes the next batch."""
        return self.schedule == "steal"

    @property
    def seeds_samples(self) -> bool:
        """Whether each sample is seeded by its place in the order.  That works without workers too."""
        return self.sample_seeds or self.steals

    @property
    def respawns(self) -> bool:
        """Whether a worker that dies is replaced."""
        return self.on_worker_death == "respawn"

    @property
    def skips_bad_samples(self) -> bool:
        """Whether a sample that raises is replaced."""
        return self.on_bad_sample != "raise"

    @property
    def most_bad_samples(self) -> int | float:
        """How many samples an epoch may skip: a number of them, or a share of those that it asks for."""
        return _limit(self.on_bad_sample.partition(":")[2] or "0.001")


class OptionsOf:
    """`loader.options`.  No property, because a subclass may set an attribute of that name.

    Not kept in the loader's `__dict__`: frameworks pass everything there to the constructor.
    """

    def __get__(self, loader: Any, kind: type) -> Any:
        return self if loader is None else Options.of(loader)


DEFAULTS: dict[str, Any] = {each.name: each.default for each in fields(Options)}
ONLY_ON_THE_RING: dict[str, Any] = {
    each.name: each.default for each in fields(Options) if each.metadata["only_on_the_ring"]
}
