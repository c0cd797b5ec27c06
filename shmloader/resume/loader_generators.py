"""The generators of a loader and of its sampler: their states, restoring them, and whether they fit a state."""

from __future__ import annotations

import copy
from typing import Any

from shmloader.resume import epochs, seek
from shmloader.resume.generators import pack, unpack
from shmloader.resume.seek import sampler_of
from shmloader.resume.state import State


def restore(loader: Any, state: State) -> None:
    """Restore the generators of the loader and of its sampler, and a sampler that has a state."""
    sampler, number = sampler_of(loader), state.sampler_epoch
    keeper = seek.keeps_state(sampler)
    if not state.begun and state.sampler_state is not None and keeper is not None:
        keeper.load_state_dict(copy.deepcopy(state.sampler_state))  # lhotse empties it
        if number is not None and epochs.sampler_epoch(sampler) != number:  # its state is of the epoch before
            epochs.set_epoch_of_sampler(sampler, number)
    if loader.generator is not None and state.loader_generator is not None:
        loader.generator.set_state(unpack(state.loader_generator))
    other = _other_generator(sampler, loader.generator)
    if other is not None and state.sampler_generator is not None:
        other.set_state(unpack(state.sampler_generator))


def _other_generator(sampler: Any, loaders: Any) -> Any:
    """The sampler's own generator, if it is not the loader's."""
    found = seek.generator_of(sampler)
    return None if found is loaders else found


def where_generators_are(loader: Any) -> dict[str, Any]:
    """The fields of State for the generators, before anything of an epoch was drawn from them."""
    other = _other_generator(sampler_of(loader), loader.generator)
    return {"loader_generator": _packed(loader.generator), "sampler_generator": _packed(other)}


def why_not_generators(loader: Any, state: State) -> str | None:
    """Why the order would differ: the state has a generator and the loader has none, or the other way round."""
    sampler = sampler_of(loader)
    if (state.loader_generator is None) != (loader.generator is None):
        whose = "the loader"
        had = state.loader_generator is not None
    elif not seek.draws_for_itself(sampler):
        return None  # an unknown sampler may make its generator in its iter()
    else:
        whose = f"its {seek.name_of(sampler)}"
        had = state.sampler_generator is not None
        if had == (_other_generator(sampler, loader.generator) is not None):
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


def _packed(generator: Any) -> str | None:
    return None if generator is None else pack(generator.get_state())
