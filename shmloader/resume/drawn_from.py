"""What an early epoch's order was drawn from, compared with what there is when that epoch is asked for.

NOTE [ Drawn from ]

An epoch that is prefetched, or begun by start(), has its order before the user asks for it.  A change that comes in
between, of a sampler's weights, say, would come one epoch late.  So all attributes of the sampler, and of what it draws
from, are looked at before the first draw, and again at iter().  If they differ, the order is drawn again.

    1. A look is one pickle for each attribute: lists and small objects by content, tensors by identity, version and,
       up to HASHED, by content, since an array may share their memory.  Datasets of torch's own samplers count by
       identity and length, which is all that these samplers ask.  What is larger than a bound, or cannot be pickled,
       cannot be compared, and is not prefetched.
    2. torch's samplers change no attribute when they draw.  Others may: they are looked at after each draw as well, so
       that a change between two draws is somebody else's.  Before such an order is drawn again, what the draws changed
       is put back, but for what somebody else has changed since.
    3. The same holds for the samplers' own generators: one that somebody has set since is left as it is.
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

from shmloader.resume import seek

MOST = 64 << 20  # bytes of an attribute of one of torch's samplers: indices, weights
MOST_OF_OTHERS = 1 << 20  # of all attributes of another one, which is looked at after each draw
HASHED = 64 << 20  # bytes of a tensor that are read
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.MethodType, torch.dtype)
_SIZED = ("data_source", "dataset")  # what torch's samplers call the dataset

Look = dict[tuple[int, str], bytes]


class Watch:
    """Looks at a sampler, and at what it draws from, as long as its draws are for an epoch that nobody has asked for.

    Args:
        sampler: The loader's.

    Raises:
        ValueError: It cannot be compared.
    """

    def __init__(self, sampler: Any) -> None:
        self._parts = seek.within(sampler)
        self._is_known = all(seek.is_known(part) for part in self._parts)
        self._held: list[Any] = []  # an object's id is another's once it is gone
        self._values = {
            (k, name): value for k, part in enumerate(self._parts) for name, value in _attributes(part).items()
        }
        self._first = self._last = self._look()
        self._last_states = self._states()
        self._first_global = self._last_global = torch.get_rng_state()
        self._is_changed = self._is_over = False
        self._theirs: set[tuple[int, str]] = set()  # attributes that somebody has changed between two draws
        self._set: dict[torch.Generator, torch.Tensor] = {}  # generators, and what they were set to between two draws

    def before_draw(self) -> None:
        """The sampler is about to be asked."""
        if self._is_over or not self._differs():
            return
        self._is_changed = True
        now = self._look_or_none() or {}
        self._theirs |= {key for key in now if now[key] != self._last.get(key)}
        for generator, state in self._states():
            if not self._is_last(generator, state):
                self._set[generator] = state

    def after_draw(self) -> None:
        """It was asked."""
        if not self._is_over:
            self._last_states, self._last_global = self._states(), torch.get_rng_state()
            if not self._is_known:
                self._last = self._look_or_none() or {}

    def end(self) -> None:
        """The epoch is the user's: what is changed from now on is for the next one."""
        self._is_over = True
        self._held.clear()
        self._values.clear()

    def is_changed(self) -> bool:
        """Whether anybody but the draws has changed anything."""
        return not self._is_over and (self._is_changed or self._differs())

    def state_set(self, generator: torch.Generator) -> torch.Tensor | None:
        """The state that anybody but the draws has put one of the sampler's generators into; None: nobody has."""
        now = generator.get_state()
        return self._set.get(generator) if self._is_last(generator, now) else now

    def _is_last(self, generator: torch.Generator, state: torch.Tensor) -> bool:
        return any(known is generator and torch.equal(last, state) for known, last in self._last_states)

    def put_global_back(self) -> bool:
        """Have torch's global generator be where it was before the draws, if nobody else has drawn from it since."""
        alone = torch.equal(torch.get_rng_state(), self._last_global)
        if alone:
            torch.set_rng_state(self._first_global)
        return alone

    def put_back(self) -> None:
        """Undo what the draws have changed, but for what somebody else has changed since."""
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
        found = (getattr(part, "generator", None) for part in seek.within(self._parts[0]))
        return [(each, each.get_state()) for each in found if isinstance(each, torch.Generator)]

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
                    continue  # which is assumed, and compared by itself: Place.holds()
                look[k, name] = _dump(value, parts, self._held, room, name in _SIZED and seek.is_known(part))
                room -= 0 if self._is_known else len(look[k, name])
        return look


def watch_of(sampler: Any) -> Watch | None:
    """What watches a sampler; None where it cannot be compared."""
    try:
        return Watch(sampler)
    except ValueError:
        return None


def _attributes(part: Any) -> dict[str, Any]:
    if isinstance(part, (list, tuple, range)):  # a plain list may be a sampler
        return {"": part}
    if not hasattr(part, "__dict__"):
        raise ValueError(f"{type(part).__name__} has no attributes that can be compared")
    attributes: dict[str, Any] = vars(part)
    return attributes


def _dump(value: Any, parts: list[Any], held: list[Any], most: int, is_sized: bool) -> bytes:
    file = _Bounded(most)
    try:
        if is_sized:
            held.append(value)
            value = id(value), _length(value)
        _Pickler(file, parts, held).dump(value)
    except Exception as error:
        raise ValueError(f"it cannot be compared: {error}") from None
    return file.getvalue()


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


class _Bounded(io.BytesIO):
    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > self._most:
            raise ValueError("it is too large")
        return super().write(data)


class _Pickler(pickle.Pickler):
    """Pickles what can be compared by content, and names the rest by identity."""

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
    """Stands in pickles, which nobody reads."""


def _version(value: torch.Tensor) -> int:
    return -1 if value.is_inference() else value._version


def _hash(value: torch.Tensor) -> int | None:
    if value.device.type != "cpu" or value.is_sparse or value.element_size() * value.numel() > HASHED:
        return None
    return zlib.crc32(value.detach().contiguous().view(-1).view(torch.uint8).numpy().data)


_said: set[str] = set()


def say_not_prefetched(sampler: Any) -> None:
    """Say once why the epochs of a sampler are not prefetched."""
    kind = type(sampler).__name__
    if kind not in _said:
        _said.add(kind)
        warnings.warn(
            f"prefetch_epochs=True does nothing for this loader, because changes to its {kind} between epochs cannot "
            f"be seen. To be compared, its attributes must pickle, to {MOST_OF_OTHERS >> 20} MiB at most ({MOST >> 20} "
            "MiB each for torch's samplers). Leave prefetch_epochs out, or keep large objects in the dataset.",
            RuntimeWarning,
            stacklevel=4,
        )
