"""What default_collate put into the slot, and the collate function does not return, takes no room beside the result.

Head of cython_ext/batch/batch_writer.pyx.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import assert_same, compare
from hostile import BothSides
from torch.utils._pytree import tree_map
from torch.utils.data import default_collate

import shmloader

SIZE = 300_000  # bytes of a row
LITTLE = 10_000


def images(dtype: torch.dtype = torch.float32, rows: int = 4) -> list[torch.Tensor]:
    side = SIZE // dtype.itemsize
    return [(torch.arange(side) % 100 + k).to(dtype) for k in range(rows)]


def labels(rows: int = 4) -> list[int]:
    return list(range(rows))


class TestWriter:
    def used(self, ring: BothSides, batch: Any) -> int:
        """How many bytes of the slot the batch takes; it is compared."""
        expected = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, batch)
        ring.writer.write(batch)
        del batch
        used = ring.worker.used
        ring.worker.publish(0)
        assert_same(ring.take(), expected)
        return used

    def test_floats_of_bytes_begin_where_these_began(self) -> None:
        """Labels that were collated after the bytes are no hindrance."""
        with BothSides() as ring:
            for _ in range(3):
                ring.claim()
                x, y = ring.writer.stack(images(torch.uint8)), ring.writer.stack_numbers(labels())
                x = x.float()
                assert self.used(ring, [x, y]) < 16 * SIZE + LITTLE

    def test_the_last_part_is_freed_whatever_follows(self) -> None:
        with BothSides() as ring:
            ring.claim()
            y, x, z = ring.writer.stack_numbers(labels()), ring.writer.stack(images()), ring.writer.stack(images())
            x, z = x[:, ::2].contiguous(), torch.cat([z, z])
            assert self.used(ring, [x, y, z]) < 10 * SIZE + LITTLE

    def test_what_a_dead_end_took_goes_back(self) -> None:
        with BothSides() as ring:
            ring.claim()
            with pytest.raises(RuntimeError, match="equal size"):
                ring.writer.stack([*images(), torch.zeros(3)])
            x = ring.writer.stack(images())
            assert self.used(ring, x) < 4 * SIZE + LITTLE

    @pytest.mark.parametrize(
        "view",
        [
            lambda x: x,
            lambda x: x[1, 5:],
            lambda x: x.numpy(),
            lambda x: x.untyped_storage(),
            lambda x: x.detach(),
            lambda x: memoryview(x.numpy()),
            lambda x: x.view(torch.uint8),
            lambda x: torch.utils.dlpack.to_dlpack(x),
            torch.nn.Parameter,
        ],
    )
    def test_a_part_that_anything_views_is_left_alone(self, view: Callable[[torch.Tensor], Any]) -> None:
        with BothSides() as ring:
            ring.claim()
            x = ring.writer.stack(images())
            address, expected = x.data_ptr(), x.clone()
            kept = view(x)
            del x
            other = torch.cat(images()) * 2
            ring.writer.write([other])
            assert ring.worker.has_views() and ring.worker.used >= 8 * SIZE
            at = ring.worker.offset_of(address, 4 * SIZE)
            lies = torch.frombuffer(ring.worker.buffer(), dtype=torch.float32, offset=at, count=SIZE)
            assert torch.equal(lies, expected.view(-1))
            del kept, lies
            assert not ring.worker.has_views()
            ring.worker.publish(0)
            ring.take()

    @pytest.mark.parametrize("seed", range(20))
    def test_any_order_of_collating_keeping_and_dropping(self, seed: int) -> None:
        draw = random.Random(seed)
        with BothSides() as ring:
            for _ in range(12):
                ring.claim()
                made: list[Any] = []
                for _ in range(draw.randrange(1, 14)):
                    rows = [torch.full((draw.choice([8, 5000, 40_000]),), float(draw.random()))] * draw.randrange(1, 4)
                    one = ring.writer.stack(rows)
                    one = torch.stack(rows) if one is None else one
                    made.append([one, one.clone()])
                    for pair in made:
                        change = draw.randrange(12)
                        if change == 0:
                            pair[0], pair[1] = pair[0] * 2, pair[1] * 2
                        elif change == 1:
                            pair[0], pair[1] = pair[0].double(), pair[1].double()
                        elif change == 2:
                            pair[0], pair[1] = pair[0][:1], pair[1][:1]
                draw.shuffle(made)
                made = made[: draw.randrange(1, 14)]
                batch, expected = [pair[0] for pair in made], [pair[1] for pair in made]
                del made, one
                ring.writer.write(batch)
                del batch, pair
                assert not ring.worker.has_views()
                ring.worker.publish(0)
                assert_same(ring.take(), expected)


class Samples(torch.utils.data.Dataset):
    def __init__(self, dtype: torch.dtype) -> None:
        self.rows = images(dtype, 8)

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> Any:
        return self.rows[index % 8], index


def mixed(samples: list[Any]) -> Any:
    x, y = default_collate(samples)
    return x * 0.3 + x.flip(0) * 0.7, y


def one_hot(samples: list[Any]) -> Any:
    x, y = default_collate(samples)
    return x, torch.nn.functional.one_hot(y, 100)


def floats(samples: list[Any]) -> Any:
    x, y = default_collate(samples)
    return x.float() / 255, y


class Keeps:
    """Keeps the labels of its last batch."""

    def __call__(self, samples: list[Any]) -> Any:
        x, self.y = default_collate(samples)
        return x + 1, self.y


def in_a_cycle(samples: list[Any]) -> Any:
    x, y = default_collate(samples)
    cycle = [x, y]
    cycle.append(cycle)
    return x + 1, y


@pytest.mark.parametrize(
    ("collate", "dtype", "bytes_of"),
    [(mixed, torch.float32, 1), (one_hot, torch.float32, 1), (floats, torch.uint8, 4), (Keeps(), torch.float32, 1),
     (in_a_cycle, torch.float32, 1)],
    ids=["mixed", "one-hot", "floats", "keeps", "cycle"],
)  # fmt: skip
def test_slots_are_as_large_as_what_is_returned(collate: Any, dtype: torch.dtype, bytes_of: int) -> None:
    def loader(cls: Any) -> Any:
        return cls(Samples(dtype), batch_size=4, num_workers=1, collate_fn=collate)

    compare(lambda cls: list(loader(cls)))
    batches = iter(loader(shmloader.DataLoader))
    for _ in range(20):
        next(batches)
    sizes = sorted(batches._ring.committed(k) for k in range(batches._ring.payloads))
    batches.close()
    result = 4 * SIZE * bytes_of + 200_000
    assert sizes[-1] <= result * 5 // 4
