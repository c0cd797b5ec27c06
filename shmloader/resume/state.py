"""The state of a loader: one dict of JSON types, in which `streams` and `sampler_state` may be nested.
A dict is refused that is no state, was changed, or has another version.

Place._state() in place.py makes it, in mid-epoch by Epoch.state() in epoch.py.  Place.load() loads it.  NOTE [ Place ]
there says which batches it counts, and Place.load() what may have changed in between.  The state of a stream comes from
its worker, after each batch: NOTE [ Cells ] in stream_states.py.  The random states of workers are not in it:
worker/random_states.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

VERSION = 2
# accelerate treats the state as torchdata's, and raises if these keys are missing.  It changes them if they are not
# zero.  shmloader does not read them.
_ACCELERATES = {"_sampler_iter_yielded": 0, "_num_yielded": 0, "_index_sampler_state": None}


@dataclass  # not frozen, because a frozen one takes three times as long to make
class State:
    """A loader's place.  The fields are the keys of its dict, which has a version as well.

    In the user's dict, `sampler_state` and `streams` are in tuples of one element: nested_in_tuples().

    Attributes:
        epoch: The number of the epoch that is under way, or of the next one.
        begun: Whether it is under way.  If not, nothing was drawn for it.
        batches: How many of its batches this rank has received.
        samples: How many of its samples all ranks together have received.
        ranks: How many ranks share its samples.
        base_seed: The seed that the iterator drew, as torch's does, and from which it seeds its workers; None: the next
            iterator draws one.
        served: How many epochs the iterator had begun with that seed before this one.
        drawn: Whether the sampler has made the draws of its iter().  Without workers most make them at the first batch.
        sampler: The name of the sampler that orders the samples; in mid-epoch also what else decides their order:
            order.py.
        sampler_seed: The seed that a RandomSampler drew for this epoch, or is about to draw.
        sampler_epoch: The last argument of the sampler's set_epoch().
        dataset_epoch: The last argument of the dataset's set_epoch().
        loader_generator, sampler_generator, global_generator: The states of generators when the epoch began.  The
            global one's is there only if the sampler draws all its samples from it.  Beside a `sampler_state` that is
            drawn again, it has all of them: sampler_generators.py.
        rank: The rank that saved the state, if only this rank can load it (it has `sampler_state` or `streams`); None
            if any rank can.
        sampler_state: The sampler's own state_dict(), if it has one: at the place, or, if there is a `global_generator`
            too, at the epoch's start.
        used_up: Whether that sampler has given all of this epoch's indices.  Many samplers start over when they give
            the last one, so their state is already that of the next epoch.
        workers: For a stream: how many workers read a part of it, 0 without workers.
        streams: For each of them (without workers, for the trainer): the batches and the samples that it has given, how
            many samples it had given each time that it raised, whether it has ended, and its state after the last
            batch, or at its end.  Between epochs, its state before the next one, or None if each epoch begins as the
            dataset is made.
        latest: The worker that has given the last batch; -1: none has.
    """

    epoch: int = 0
    begun: bool = False
    batches: int = 0
    samples: int = 0
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

    @property
    def draws_again(self) -> bool:
        """Whether `sampler_state` is that of the epoch's start: NOTE [ Sampler states ], 2."""
        return self.sampler_state is not None and self.global_generator is not None

    def as_dict(self) -> dict[str, Any]:
        return {"version": VERSION, **_ACCELERATES, **vars(self)}


_NAMES = [field.name for field in fields(State)]
_NESTED = ("sampler_state", "streams")


def state_of(given: Any) -> State:
    """The State in the dict that a user has got.  Keys that others have added are left out.

    Raises:
        TypeError: It is no dict.
        ValueError: It is not from shmloader, from another version of it, or was changed.
    """
    if not isinstance(given, Mapping):
        raise TypeError(f"state_dict should be what state_dict() returned, but got a {type(given).__name__}.")
    if missing := [name for name in ("version", *_NAMES) if name not in given]:
        raise ValueError(
            f"this is no state of a shmloader.DataLoader: it has no {', '.join(missing)}. Its keys are {[*given][:20]}."
            " Give what loader.state_dict() returned."
        )
    if given["version"] != VERSION:
        raise ValueError(
            f"the state has version {given['version']!r}, and this shmloader reads version {VERSION}. Load it with the "
            "shmloader that saved it."
        )
    found = {name: given[name] for name in _NAMES}
    for name, value in found.items():
        usual = getattr(State, name)
        if name in _NESTED and isinstance(value, list | tuple) and len(value) == 1:  # JSON turns tuples into lists
            found[name] = value[0]
        elif (name in _NESTED and value is not None) or (usual is not None and type(value) is not type(usual)):
            raise ValueError(
                f"the state was changed since it was saved: {name} is {value!r}. Load it as state_dict() returned it."
            )
    return State(**found)


def nested_in_tuples(text: dict[str, Any]) -> dict[str, Any]:
    """The dict of a state, with nested values in tuples of one element.

    torch.distributed.checkpoint flattens dicts, and lists of dicts, to any depth, and expects the keys of a fresh
    loader's state.  It does not flatten a tuple, so the keys are always the same.
    """
    for name in _NESTED:
        if text[name] is not None:
            text[name] = (text[name],)
    return text
