"""Whether the order of an epoch that began early is still right when the user asks for the epoch.
It notices changes of the sampler, and limits how large a sampler may be whose epochs are prefetched.

NOTE [ Drawn from ]

The order of an epoch that is prefetched, or that start() began, is drawn before the user asks for the epoch.  If the
user changes the sampler in between, its weights for example, the change must count for that epoch.  Therefore all
attributes of the sampler, and of the samplers inside it, are recorded before the first draw and compared at iter().  If
they differ, the order is drawn again.

    1. A record is one pickle for each attribute.  Lists and small objects are compared by content.  Tensors are
       compared by identity and version.  Up to HASHED bytes they are also compared by content, because a NumPy array
       over the same memory may change it without a new version.  The datasets of torch's own samplers are compared by
       identity and length, because these samplers use nothing else of them.  If an attribute is too large, or cannot be
       pickled, the sampler cannot be compared, and its epochs are not prefetched.  MOST is the limit for an attribute
       of torch's samplers, and MOST_OF_OTHERS for all attributes of any other sampler.
    2. torch's samplers change no attribute when they draw.  Other samplers may, so their attributes are recorded after
       each draw as well.  Any change between two draws then comes from other code.  Before the order of such a sampler
       is drawn again, the attributes that its draws have changed get their former values back, except those that other
       code has changed since.
    3. Before the order is drawn again, the samplers' own generators also get their former states back.  A generator
       that other code has set since the draw keeps that state.
"""

from __future__ import annotations

import io
import pickle
import types
import warnings
import zlib
from typing import Any

import torch
from torch.utils.data import DistributedSampler

from shmloader.attributes import attribute, length_of
from shmloader.core.process import is_handlers
from shmloader.resume import seek

MOST = 64 << 20  # bytes of an attribute of one of torch's samplers: indices, weights
MOST_OF_OTHERS = 1 << 20  # of all attributes of any other sampler, which is recorded after each draw
HASHED = 64 << 20  # bytes of a tensor that are read
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.MethodType, torch.dtype)
_SIZED = ("data_source", "dataset")  # what torch's samplers call the dataset

Look = dict[tuple[int, str], bytes]


class Watch:
    """Records a sampler, and the samplers inside it, while they draw for an epoch that the user has not asked for.

    Args:
        sampler: The loader's.

    Raises:
        ValueError: It cannot be compared.
    """

    def __init__(self, sampler: Any) -> None:
        self._parts = seek.within(sampler)
        self._is_known = all(seek.is_known(part) for part in self._parts)
        self._held: list[Any] = []  # keeps objects alive, because ids are reused
        self._values = {
            (k, name): value for k, part in enumerate(self._parts) for name, value in _attributes(part).items()
        }
        self._first = self._last = self._look()
        self._last_states = self._states()
        self._first_global = self._last_global = torch.get_rng_state()
        self._is_changed = self._is_over = False
        self._theirs: set[tuple[int, str]] = set()  # attributes that other code has changed between two draws
        self._set: dict[torch.Generator, torch.Tensor] = {}  # generators, and what they were set to between two draws

    def before_draw(self) -> None:
        """The sampler is about to draw."""
        if self._is_over or not self._differs():
            return
        self._is_changed = True
        now = self._look_or_none() or {}
        self._theirs |= {key for key in now if now[key] != self._last.get(key)}
        for generator, state in self._states():
            if not self._is_last(generator, state):
                self._set[generator] = state

    def after_draw(self) -> None:
        """The sampler has drawn."""
        if not self._is_over:
            self._last_states, self._last_global = self._states(), torch.get_rng_state()
            if not self._is_known:
                self._last = self._look_or_none() or {}

    def end(self) -> None:
        """The epoch is the user's: later changes are for the next one."""
        self._is_over = True
        self._held.clear()
        self._values.clear()

    def is_changed(self) -> bool:
        """Whether anything was changed, other than by the draws."""
        return not self._is_over and (self._is_changed or self._differs())

    def state_set(self, generator: torch.Generator) -> torch.Tensor | None:
        """The state to which other code has set one of the sampler's generators; None if only draws have changed it."""
        now = generator.get_state()
        return self._set.get(generator) if self._is_last(generator, now) else now

    def _is_last(self, generator: torch.Generator, state: torch.Tensor) -> bool:
        return any(known is generator and torch.equal(last, state) for known, last in self._last_states)

    def put_global_back(self) -> bool:
        """Restore torch's global generator to before the draws, if nobody else has drawn from it since."""
        is_untouched = torch.equal(torch.get_rng_state(), self._last_global)
        if is_untouched:
            torch.set_rng_state(self._first_global)
        return is_untouched

    def put_back(self) -> None:
        """Undo the changes that the draws made, except in attributes that other code has changed since."""
        now = self._look_or_none()
        if self._is_known or now is None:
            return
        for key in self._last:
            if key in self._theirs:
                continue
            if key in self._first and self._first[key] != self._last[key] == now.get(key):
                _attributes(self._parts[key[0]])[key[1]] = self._values[key]
        after = self._look_or_none() or {}
        lost = [
            name
            for k, name in self._first
            if (k, name) not in self._theirs
            if now.get((k, name)) == self._last.get((k, name)) and after.get((k, name)) != self._first[k, name]
        ]
        if lost:
            warnings.warn(
                f"{type(self._parts[0]).__name__}.{lost[0]} was changed in place while the next epoch was prefetched. "
                "The sampler was changed after that, so the epoch is drawn again, and the attribute cannot be "
                "restored. Leave prefetch_epochs out for this sampler, or have it replace the attribute.",
                RuntimeWarning,
                stacklevel=4,
            )

    def _differs(self) -> bool:
        states, last = self._states(), self._last_states
        same = len(states) == len(last) and all(
            a is b and torch.equal(x, y) for (a, x), (b, y) in zip(states, last, strict=True)
        )
        return not same or self._look_or_none() != self._last

    def _states(self) -> list[tuple[torch.Generator, torch.Tensor]]:
        return [(each, each.get_state()) for each in seek.generators_of(self._parts[0])]

    def _look_or_none(self) -> Look | None:
        try:
            return self._look()
        except ValueError:
            return None

    def _look(self) -> Look:
        parts = seek.within(self._parts[0])
        look: Look = {}
        room = MOST if self._is_known else MOST_OF_OTHERS
        for k, part in enumerate(parts):
            for name, value in list(_attributes(part).items()):
                if isinstance(part, DistributedSampler) and name == "epoch":
                    continue  # it is predicted, and Place.holds() compares it
                look[k, name] = _dump(value, parts, self._held, room, name in _SIZED and seek.is_known(part))
                room -= 0 if self._is_known else len(look[k, name])
        return look


def watch_of(sampler: Any) -> Watch | None:
    """A Watch for a sampler; None if the sampler cannot be compared."""
    try:
        return Watch(sampler)
    except ValueError:
        return None


def _attributes(part: Any) -> dict[str, Any]:
    if isinstance(part, (list, tuple, range)):  # a plain list may be a sampler
        return {"": part}
    attributes: dict[str, Any] | None = attribute(part, "__dict__")
    if attributes is None:
        raise ValueError(f"{type(part).__name__} has no attributes that can be compared")
    return attributes


def _dump(value: Any, parts: list[Any], held: list[Any], most: int, is_sized: bool) -> bytes:
    file = _Bounded(most)
    try:
        if is_sized:
            held.append(value)
            value = id(value), length_of(value)
        _Pickler(file, parts, held).dump(value)
    except Exception as error:
        if is_handlers(error):
            raise
        raise ValueError(f"it cannot be compared: {error}") from None
    return file.getvalue()


class _Bounded(io.BytesIO):
    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > self._most:
            raise ValueError("it is too large")
        return super().write(data)


class _Pickler(pickle.Pickler):
    """Pickles by content what can be compared by content, and everything else by identity."""

    def __init__(self, file: Any, parts: list[Any], held: list[Any]) -> None:
        super().__init__(file, protocol=5)
        self._parts, self._held = parts, held

    def persistent_id(self, value: Any) -> Any:
        kind = type(value)
        if kind in (int, str, float, bool, tuple, list, dict):
            return None
        if isinstance(value, torch.Tensor):
            self._held.append(value)
            return "tensor", id(value), _version(value), _hash(value)
        if isinstance(value, (torch.Generator, *_NAMED)) or any(value is part for part in self._parts):
            self._held.append(value)
            return "object", id(value)
        return None

    def reducer_override(self, value: Any) -> Any:
        if hasattr(value, "__dict__") and not hasattr(type(value), "__slots__"):
            return _blank, (type(value),), dict(vars(value))
        return NotImplemented


def _blank(kind: type) -> Any:
    """Stands in for objects in pickles that are never loaded."""


def _version(value: torch.Tensor) -> int:
    return -1 if value.is_inference() else value._version


def _hash(value: torch.Tensor) -> int | None:
    if value.device.type != "cpu" or value.is_sparse or value.element_size() * value.numel() > HASHED:
        return None
    return zlib.crc32(value.detach().contiguous().view(-1).view(torch.uint8).numpy().data)


_warned: set[str] = set()


def warn_not_prefetched(sampler: Any) -> None:
    """Warn once that the epochs of a sampler are not prefetched."""
    kind = type(sampler).__name__
    if kind not in _warned:
        _warned.add(kind)
        warnings.warn(
            f"prefetch_epochs=True does nothing for this loader, because changes to its {kind} between epochs cannot "
            f"be seen. To be compared, its attributes must pickle, to {MOST_OF_OTHERS >> 20} MiB at most ({MOST >> 20} "
            "MiB each for torch's samplers). Leave prefetch_epochs out, or keep large objects in the dataset.",
            RuntimeWarning,
            stacklevel=4,
        )
