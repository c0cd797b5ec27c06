"""What a loader tells of its place: one flat dict of what JSON has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

VERSION = 1
# accelerate takes whatever state_dict() returns for torchdata's, and changes these where they are not zero; without
# them it raises.  Here they mean nothing.
_ACCELERATES = {"_sampler_iter_yielded": 0, "_num_yielded": 0, "_index_sampler_state": None}


@dataclass  # frozen ones take three times as long to make
class State:
    """A loader's place.  The fields are the keys of its dict, which has a version as well.

    In a dict that the user gets, `sampler_state`, `streams` and `next` are closed().

    Attributes:
        epoch: The number of the epoch that is under way, or of the next one.
        begun: Whether it is under way; if not, nothing of it was drawn yet.
        batches: How many batches of it this rank has got.
        samples: How many samples of it all ranks together have got.
        beyond: Out of order: numbers and samples of the batches that this rank has got behind one that it has not; they
            are not among the above.
        ranks: How many ranks share its samples.
        base_seed: What the iterator drew, as torch's does, and seeds its workers from; None: the next one draws.
        served: How many epochs the iterator had begun with that seed before this one.
        drawn: Whether the sampler has drawn what it draws at its beginning; without workers, that is when the first
            batch is asked for.
        sampler: What gives the samples' order.
        sampler_seed: The seed that a RandomSampler drew for this epoch, or is about to draw.
        sampler_epoch: What the sampler was told by set_epoch().
        dataset_epoch: What the dataset was told.
        loader_generator, sampler_generator, global_generator: Where generators were when the epoch began; the global
            one's only if the sampler draws all its samples from that.
        rank: The rank whose state this is, if it is not for all: it has what follows.
        sampler_state: What the sampler says of itself, if it has a state_dict() of its own.
        used_up: Whether that sampler has given all of this epoch's indices: many begin anew as they give the last one,
            so that their state is the next epoch's.
        workers: If the dataset is a stream: how many workers have a part of it, 0 without workers.
        streams: For each of them (without workers, for the trainer): the batches and the samples that it has given,
            how many samples it had given each time that it raised, whether it has ended, and what it says of itself
            behind the last batch, or at its end.  Between epochs, what it says before the next one, or None where
            each epoch begins as the dataset is made.
        latest: The worker that has given the last batch; -1: none has.
        next: The state of the epoch after this one, if that was begun early: what it has drawn is not drawn again.
    """

    epoch: int = 0
    begun: bool = False
    batches: int = 0
    samples: int = 0
    beyond: tuple[tuple[int, int], ...] = ()
    ranks: int = 1
    base_seed: int | None = None
    served: int = 0
    drawn: bool = False
    sampler: str = ""
    sampler_seed: int | None = None
    sampler_epoch: int | None = None
    dataset_epoch: int | None = None
    loader_generator: str | None = None
    sampler_generator: str | None = None
    global_generator: str | None = None
    rank: int | None = None
    sampler_state: Any = None
    used_up: bool = False
    workers: int | None = None
    streams: Any = None
    latest: int = -1
    next: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            **_ACCELERATES,
            **vars(self),
            "beyond": [list(each) for each in self.beyond],
        }


_NAMES = [field.name for field in fields(State)]
_ADDED = {"used_up": False}  # fields that states of the first release lack
_MOST = 1 << 63
_COUNTS = ("epoch", "batches", "samples", "ranks", "served")
_TEXTS = ("loader_generator", "sampler_generator", "global_generator")
_SHAPED = ("sampler_state", "streams", "next")
_SEEDS = ("base_seed", "sampler_seed", "sampler_epoch", "dataset_epoch", "rank", "workers")


def state_of(given: Any) -> State:
    """The State of a dict that as_dict() made.  Keys that others have added are left out.

    Raises:
        TypeError: It is no dict.
        ValueError: A loader of ours has not made it, or a newer one has, or it was changed.
    """
    if not isinstance(given, Mapping):
        raise TypeError(f"state_dict should be what state_dict() returned, but got a {type(given).__name__}.")
    given = _ADDED | dict(given)
    if missing := [name for name in ("version", *_NAMES) if name not in given]:
        raise ValueError(
            f"this is no state of a shmloader.DataLoader: it has no {', '.join(missing)}. Its keys are {[*given][:20]}."
        )
    if given["version"] != VERSION:
        raise ValueError(
            f"the state has version {given['version']!r}, and this shmloader reads version {VERSION}. Load it with the "
            "shmloader that saved it."
        )
    found = {name: given[name] for name in _NAMES}
    if found["next"] is not None:
        state_of(found["next"])
    for name, value in found.items():
        _check(name, value)
    found["beyond"] = tuple((number, samples) for number, samples in found["beyond"])
    return State(**found)


def closed(told: dict[str, Any]) -> dict[str, Any]:
    """The same dict, with what has a shape of its own in tuples of one.

    torch.distributed.checkpoint takes apart dicts, and lists of dicts, to any depth, and looks for the keys that a
    fresh loader's state has.  A tuple it leaves whole, so that the keys are always the same.
    """
    for name in _SHAPED:
        if told[name] is not None:
            told[name] = (told[name],)
    return told


def opened(given: Any) -> Any:
    """What closed() was given; of JSON, tuples come back as lists.

    Raises:
        ValueError: It was changed.
    """
    if not isinstance(given, Mapping):
        return given
    found = dict(given)
    for name in _SHAPED:
        value = found.get(name)
        if value is not None:
            if not isinstance(value, list | tuple) or len(value) != 1:
                raise ValueError(f"the state was changed since it was saved: {name} is {value!r}")
            found[name] = value[0]
    return found


def _check(name: str, value: Any) -> None:
    """Raise where a value is none that as_dict() writes."""
    right = True
    if name in _COUNTS:
        right = type(value) is int and (0 if name != "epoch" else -_MOST) <= value < _MOST
    elif name in _SEEDS:
        right = value is None or (type(value) is int and -_MOST <= value < 2 * _MOST)
    elif name in _TEXTS:
        right = value is None or type(value) is str
    elif name == "beyond":
        right = isinstance(value, (list, tuple)) and all(map(_are_two_counts, value))
    elif name == "used_up":
        right = type(value) is bool
    elif name == "streams":
        right = value is None or (isinstance(value, (list, tuple)) and all(map(_is_a_stream, value)))
    if not right:
        raise ValueError(f"the state was changed since it was saved: {name} is {value!r}")


def _are_two_counts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(type(one) is int for one in value)


def _is_a_stream(value: Any) -> bool:
    return isinstance(value, Mapping) and {"batches", "ended", "state"} <= set(value) and type(value["batches"]) is int


def changed(state: State, **to: Any) -> State:
    """The state, with other values in these fields."""
    return State(**{**{name: getattr(state, name) for name in _NAMES}, **to})
