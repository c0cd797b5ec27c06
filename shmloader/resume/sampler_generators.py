"""The generators from which a loader's sampler draws: their states, restoring them, and whether they fit a state.

A sampler that has a state of its own may draw its order from any generator when its epoch starts: torch's, Python's and
NumPy's global ones, and those in the attributes of the sampler and of the samplers inside it.  So their states belong
to a state from which that epoch is drawn again: NOTE [ Sampler states ], 2.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy.random  # here, because NumPy imports it at its first use
import torch

from shmloader.protocols.user_objects import attribute
from shmloader.resume.generators import KINDS, Kind, as_text, from_text, is_same, kind_of, pack, seed_drawn_from, unpack
from shmloader.resume.samplers import Samplers, load_sampler, samplers_of, within
from shmloader.resume.state import State


class Generators:
    """The states of the generators from which a sampler may draw.

    Args:
        samplers: The sampler, and those inside it.
        loader_generator: The loader's generator.

    Attributes:
        of_global, of_loader: The states of torch's global one and of the loader's; None: the loader has none.
        own: The generators of the sampler and of those inside it, and their states.
    """

    def __init__(self, samplers: Samplers, loader_generator: torch.Generator | None) -> None:
        self._loader_generator = loader_generator
        self.of_global = torch.get_rng_state()
        self.of_loader = None if loader_generator is None else loader_generator.get_state()
        self.own = [(each, each.get_state()) for each in samplers.generators]

    def fields(self) -> dict[str, Any]:
        """The fields of State for the loader's, and for the first one of the sampler's that is not the loader's."""
        apart = (state for each, state in self.own if each is not self._loader_generator)
        return {
            "loader_generator": None if self.of_loader is None else pack(self.of_loader),
            "sampler_generator": next(map(pack, apart), None),
        }

    def were_drawn_from(self, base_seed: int | None) -> bool:
        """Whether a sampler has drawn from them, in its iter(), since an iterator of torch's has begun.

        Args:
            base_seed: The seed that the iterator drew.  It makes the sampler's iterator first, so if the seed is the
                first draw from its generator, the sampler has drawn nothing from that one.
        """
        loaders = self._loader_generator
        seeded = self.of_global if self.of_loader is None else self.of_loader
        if seed_drawn_from(seeded) != base_seed:
            return True
        if self.of_loader is not None and not torch.equal(self.of_global, torch.get_rng_state()):
            return True
        return any(each is not loaders and not torch.equal(each.get_state(), state) for each, state in self.own)


def restore_sampling(loader: Any, state: State) -> None:
    """Restore the generators of the loader and of its sampler, and a sampler that has a state."""
    samplers = samplers_of(loader)
    if not state.begun and state.sampler_state is not None and samplers.keeper is not None:
        load_sampler(samplers, state)
    if loader.generator is not None and state.loader_generator is not None:
        loader.generator.set_state(unpack(state.loader_generator))
    own = _own_generator(samplers_of(loader), loader.generator)  # now, because set_epoch() may make samplers
    if own is not None and state.sampler_generator is not None:
        own.set_state(unpack(state.sampler_generator))


def _own_generator(samplers: Samplers, loaders: Any) -> Any:
    """The generator that a state has as the sampler's: the first one that is not the loader's; None: there is none."""
    return next((each for each in samplers.generators if each is not loaders), None)


def why_not_generators(loader: Any, state: State) -> str | None:
    """Why the order would differ: the state has a generator and the loader has none, or the other way round."""
    samplers = samplers_of(loader)
    own = _own_generator(samplers, loader.generator)
    if (state.loader_generator is None) != (loader.generator is None):
        whose, has = "the loader", loader.generator is not None
    elif samplers.draws_for_itself and (state.sampler_generator is None) != (own is None):
        whose, has = f"its {samplers.name}", own is not None  # an unknown sampler may make its generator in its iter()
    else:
        return None
    return (
        f"{whose} has {'a' if has else 'no'} generator now, and had {'none' if has else 'one'} in the run that saved "
        "it, so the order would differ. Give generator=torch.Generator() if it had one, and leave it out if it had "
        "none. Its state is loaded."
    )


# ------------------------------------------------------------------------------- of a sampler with a state of its own

_GLOBAL = {
    "torch": (KINDS[torch.Generator], torch.default_generator),
    "random": (KINDS[random.Random], random),
    "numpy": (KINDS[numpy.random.RandomState], numpy.random),
}


class AllGenerators:
    """The states of all generators from which a sampler may draw, as they are now.

    Args:
        sampler: The sampler.
    """

    def __init__(self, sampler: Any) -> None:
        self._states = [(place, name, kind.get(each)) for place, name, each, kind in _all(sampler)]

    def text(self) -> str:
        """Them as text for a state."""
        return json.dumps([(place, name, as_text(state)) for place, name, state in self._states])


@contextmanager
def drawing_from(text: str, sampler: Any, load: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Inside the `with`, draw from the generators of such a text.  Then the global ones get their present states back.

    A global one that the sampler restores from its own state stays where the draws have left it, as the sampler's own
    ones do: the rest of the epoch is drawn from there.

    Args:
        text: What text() has returned.
        sampler: The sampler.  A generator that it does not have is left out.
        load: Gives the sampler its state.  It is called when the `with` begins.

    Yields:
        A function that sets all generators to the states of the text.
    """
    given = {(place, name): state for place, name, state in json.loads(text)}

    def begin() -> None:
        for place, name, each, kind in list(_all(sampler)):
            if (place, name) in given:
                kind.set(each, from_text(given[place, name]))

    former, elsewhere = _states_of_global(), _elsewhere()
    try:
        _set_global(elsewhere)  # otherwise one that the sampler restores may be there already, by a seed
        load()
        for name, state in _states_of_global().items():
            if not is_same(elsewhere[name], state):
                del former[name]
        _set_global(former)
        yield begin
    finally:
        _set_global(former)


def _elsewhere() -> dict[str, Any]:
    """States in which none of the global generators is."""
    seed = 0x5EED_ABCD
    new = {
        "torch": torch.Generator().manual_seed(seed),
        "random": random.Random(seed),
        "numpy": numpy.random.RandomState(seed),
    }
    return {name: kind.get(new[name]) for name, (kind, _) in _GLOBAL.items()}


def _states_of_global() -> dict[str, Any]:
    return {name: kind.get(of) for name, (kind, of) in _GLOBAL.items()}


def _set_global(states: dict[str, Any]) -> None:
    for name, state in states.items():
        kind, of = _GLOBAL[name]
        kind.set(of, state)


def _all(sampler: Any) -> Iterator[tuple[int, str, Any, Kind]]:
    """The global generators, and each in an attribute: of which sampler, the name, the generator, and its kind."""
    for name, (kind, of) in _GLOBAL.items():
        yield -1, name, of, kind
    for place, part in enumerate(within(sampler)):
        for name, value in list(attribute(part, "__dict__", {}).items()):
            if (found := kind_of(value)) is not None:
                yield place, name, value, found
