"""The generators of a loader and of its sampler: their states, restoring them, and whether they fit a state."""

from __future__ import annotations

import copy
from typing import Any

import torch

from shmloader.resume import epochs
from shmloader.resume.generators import pack, seed_drawn_from, unpack
from shmloader.resume.seek import Samplers, samplers_of
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


def restore(loader: Any, state: State) -> None:
    """Restore the generators of the loader and of its sampler, and a sampler that has a state."""
    samplers, number = samplers_of(loader), state.sampler_epoch
    keeper = samplers.keeper
    if not state.begun and state.sampler_state is not None and keeper is not None:
        keeper.load_state_dict(copy.deepcopy(state.sampler_state))  # lhotse empties it
        if number is not None and samplers_of(loader).epoch != number:  # its state is of the epoch before
            epochs.set_epoch_of_samplers(number, samplers.outer)
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
    if (state.loader_generator is None) != (loader.generator is None):
        whose = "the loader"
        had = state.loader_generator is not None
    elif not samplers.draws_for_itself:
        return None  # an unknown sampler may make its generator in its iter()
    else:
        whose = f"its {samplers.name}"
        had = state.sampler_generator is not None
        if had == (_own_generator(samplers, loader.generator) is not None):
            return None
    if had:
        return (
            f"it has the state of a generator, and {whose} has none now, so the order would differ. Give "
            "generator=torch.Generator(); its state is loaded."
        )
    return (
        f"{whose} has a generator now, and the state has none, so the order would differ. Leave generator= out, as in "
        "the run that saved the state."
    )
