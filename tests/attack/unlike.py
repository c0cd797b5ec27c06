"""What users' loaders, datasets, samplers and functions may be like that nobody has to compare or look up."""

from __future__ import annotations

from typing import Any


class Unlike:
    """Whoever compares one, hashes it or asks whether it is true gets an error."""

    def _refuse(self, *_: object) -> Any:
        raise LookupError(f"a {type(self).__name__} was compared, hashed or asked whether it is true")

    __eq__ = __ne__ = _refuse
    __hash__ = __bool__ = _refuse


class Unready:
    """Has attributes that raise until something is set up, and nobody sets it up."""

    def _raise(self) -> Any:
        raise KeyError("it is not set up")

    generator = sampler = batch_sampler = dataset = datasets = data_source = indices = property(_raise)
    num_processes = process_index = batch_size = drop_last = epoch = shuffle = replacement = property(_raise)
    state_dict = load_state_dict = set_epoch = thread_safe = aclose = property(_raise)
    __place__ = __prefetch__ = row_spec = property(_raise)


class Lazy:
    """Asks something that is not set up for each attribute that it does not have itself."""

    def __getattr__(self, name: str) -> Any:
        if name == "__getitems__":  # torch looks it up too
            raise AttributeError(name)
        raise KeyError(name)
