"""A state after more samples than the dataset now has: one warning says that nothing is left of the epoch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from test_resume_order import IN_ORDER, LENGTH, after
from torch.utils.data import RandomSampler, Sampler, SequentialSampler

import shmloader

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
]


class OwnBatches(Sampler[list[int]]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return -(-self.length // 5)

    def __iter__(self) -> Iterator[list[int]]:
        return iter([list(range(k, min(k + 5, self.length))) for k in range(0, self.length, 5)])


SHORTER: dict[str, Callable[[int], dict[str, Any]]] = {
    "in order": lambda length: {"batch_size": 5, "sampler": SequentialSampler(range(length))},
    "drawn": lambda length: {"batch_size": 5, "sampler": RandomSampler(range(length))},
    "without batches": lambda length: {"batch_size": None, "sampler": SequentialSampler(range(length))},
    "ours": lambda length: {"batch_size": 5, "sampler": shmloader.DistributedSampler(range(length), 2, 0)},
    "torch's": lambda length: {"batch_size": 5, "sampler": IN_ORDER["DistributedSampler without shuffle"](length)},
    "its own": lambda length: {"batch_size": 5, "sampler": Own(length)},
    "its own batches": lambda length: {"batch_sampler": OwnBatches(length)},
}


class Own(OwnBatches):
    def __iter__(self) -> Iterator[Any]:
        return iter(range(self.length))

    def __len__(self) -> int:
        return self.length


@pytest.mark.filterwarnings("ignore:the sampler .* has no state_dict")
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("what", SHORTER)
def test_a_place_past_the_end_of_a_shorter_dataset_is_one_warning(what: str, workers: int) -> None:
    def made(length: int) -> Any:
        return shmloader.DataLoader(range(200), num_workers=workers, **SHORTER[what](length))  # type: ignore[arg-type]

    def warned(length: int, state: Any) -> tuple[int, list[str]]:
        with warnings.catch_warnings(record=True) as caught, made(length) as again:
            warnings.simplefilter("always")
            again.load_state_dict(state)
            got = len(list(again))
            list(again)
        assert all(each.filename == __file__ for each in caught if "is past the end" in str(each.message))
        texts = [str(each.message) for each in caught]
        return got, [text for text in texts if "is past the end" in text or "drawn from" in text]

    state = after(made(LENGTH), 30 if what == "without batches" else 4)[1]
    got, texts = warned(11, state)
    assert got == 0 and len(texts) == 1
    assert texts[0].startswith("the loaded place, after ") and "so nothing is left of this epoch" in texts[0]
    whole = made(LENGTH)
    behind = after(whole, len(whole))[1]
    assert warned(LENGTH, behind) == (0, []) and warned(LENGTH, state)[1] == []
