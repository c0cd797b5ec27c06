"""The patterns: what the dataset returns, how the loader is made, and what the loop does with it.

With torch's loader each takes 0.5 to 2 seconds on 2 cores.  A new one is a line here.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor as threads
from itertools import chain, islice, repeat
from typing import Any, NamedTuple

import numpy
import torch
from PIL import Image
from torch.nn.functional import one_hot
from torch.utils import data
from torch.utils.data import TensorDataset

from bench.patterns import samples as of
from bench.patterns.loops import Loop, by_pipe, by_queue, each, fold, in_turns, take
from bench.patterns.samples import Make, Samples, Stream, annotation, image, sized, then, varies

HUGE, BIG, SMALL, TINY = image(224), image(128), image(64), image(16)  # 10, 3, 0.8 and 0.05 MB a batch
MB = 1 << 20
OWN = torch.zeros(MB)  # a tensor of the dataset's own
PREPARED = TensorDataset(torch.empty(25600, 3, 16, 16, dtype=torch.uint8), torch.arange(25600))
FLOATS = image(224, torch.float32)
HALF = torch.arange(32)
KEPT: list[Any] = []  # by a worker
PLAIN, merged = each(), chain.from_iterable


class Pattern(NamedTuple):
    name: str
    dataset: Callable[[], Any]
    loop: Loop
    options: dict[str, Any]


def way(name: str, sample: Make, batches: int, loop: Loop = PLAIN, **more: Any) -> Pattern:
    """A pattern; more is `kind` and `length` of the dataset, if it is no other or longer one, and options."""
    options = {"num_workers": 2, "batch_size": 1 if "batch_sampler" in more else 64} | more
    kind, length = options.pop("kind", Samples), options.pop("length", 0)
    length = length or batches * (options["batch_size"] or 1)
    return Pattern(name, lambda: kind(sample, length), loop, options)


GROUPS: dict[str, tuple[Pattern, ...]] = {
    "What is kept": (
        way("nothing kept", BIG, 100),
        way("labels kept", BIG, 35, each(lambda k, b: k.append(b[1]), epochs=4)),
        way("view of a picture kept", SMALL, 200, each(lambda k, b: k.append(b[0][0]))),
        way("every tenth batch kept", BIG, 100, each(lambda k, b: k.append(b if b[1][0] % 640 == 0 else 0))),
        way("hard examples kept", BIG, 100, each(lambda k, b: k.append(b[0][b[1] % 61 == 0]))),
        way("ten batches kept", BIG, 100, each(lambda k, b: (k.append(b), k.__delitem__(slice(-10))))),  # type: ignore[func-returns-value]
        way("all kept", BIG, 100, each(lambda k, b: k.append(b))),
        way("all small ones kept", TINY, 300, each(lambda k, b: k.append(b))),
        way("clones kept", SMALL, 200, each(lambda k, b: k.append(b[0].clone()))),
    ),
    "Sizes": (
        way("lengths vary", sized(lambda i: varies(i // 64, 1 << 12, 1 << 16)), 150),
        way("one outlier", sized(lambda i: MB if 6400 <= i < 6464 else 1 << 14), 200),
        way("six huge, then small", sized(lambda i: MB if i < 384 else 3000), 500),
        way("tiny", lambda i: torch.tensor(i), 500, batch_size=1),
        way("one number a sample", float, 500),
        way("300 MB", image(1024), 5, each(epochs=4), batch_size=100),
        way("38 MB", HUGE, 20, batch_size=256),
        way("0.4 MB", image(32), 200, batch_size=128),
        way("a sample a batch", SMALL, 500, batch_size=None),
        way("batches of one", SMALL, 300, batch_size=1),
    ),
    "Structures": (
        way("200 keys", lambda i: {f"key{k}": i for k in range(200)}, 12),
        way("nested", lambda i: {"a": {"b": [torch.tensor(i), {"c": (i, torch.ones(64))}]}, "d": (1.5, i)}, 120),
        way("raw annotations", annotation, 500, collate_fn=list),
        way("keyed by id", int, 1100, batch_size=512, collate_fn=lambda b: {f"train/{i:08}": i % 10 for i in b}),
        way("a tensor in each record", lambda i: annotation(i) | {"is": torch.full((8,), 1.5)}, 40, collate_fn=list),
        way("detection", of.detection, 40, collate_fn=lambda b: tuple(zip(*b, strict=True)), batch_size=16),
        way("strings", lambda i: {"text": f"a sentence of number {i}", "path": f"train/{i:012}.jpg"}, 1500),
        way("dates", of.dates, 600, collate_fn=list),
        way("NumPy scalars in a list", lambda i: (numpy.float32(i), numpy.int64(i)), 700, collate_fn=list),
        way("NumPy arrays", lambda i: (numpy.full((3, 64, 64), 1.5, numpy.float32), i), 80),
        way("Enums and dtypes", lambda i: (of.Colour.RED, torch.int64, torch.Size([i])), 1000, collate_fn=list),
        way("PIL pictures", lambda i: Image.new("RGB", (64, 64)), 100, collate_fn=list),
        way("sparse tensors", of.sparse, 20, collate_fn=list, batch_size=16),
        way("the same tensor twice", HUGE, 80, batch_size=256, collate_fn=then(lambda x, y: (x, x, y))),
        way("a tensor of the dataset's own", lambda i: OWN, 200, batch_size=None),
    ),
    "Collating": (
        way("mixup of floats", FLOATS, 40, collate_fn=then(lambda x, y: (x * 0.7 + x.roll(1, 0) * 0.3, y))),
        way("cutmix", SMALL, 150, collate_fn=then(lambda x, y: (x.index_copy_(2, HALF, x.roll(1, 0)[:, :, HALF]), y))),
        way("one-hot labels", SMALL, 150, collate_fn=then(lambda x, y: (x, one_hot(y % 1000, 1000).float()))),
        way("floats of bytes", HUGE, 80, collate_fn=then(lambda x, y: (x.float().div_(255), y))),
        way("two views", SMALL, 120, collate_fn=then(lambda x, y: ((x, x.flip(-1)), y))),
        way("tensors in a list", SMALL, 20, collate_fn=list),
        way("padded", lambda i: torch.ones(varies(i, 10, 200), 16), 150, collate_fn=of.padded),
        way("a worker that keeps labels", SMALL, 200, collate_fn=then(lambda x, y: (x, KEPT.append(y) or y))),  # type: ignore[func-returns-value]
    ),
    "Driving": (
        way("break", SMALL, 100, each(epochs=10, stop=8)),
        way("next(iter())", SMALL, 100, each(epochs=10, stop=1)),
        way("zip", SMALL, 80, lambda make: take(merged(zip(make(), make(), strict=True)))),
        way("cycle", SMALL, 20, lambda make: take(islice(merged(repeat(make())), 140))),
        way("a loader a fold", SMALL, 60, lambda make: [take(fold(make, k)) and None for k in range(5)]),
        way("eight at once", SMALL, 20, lambda make: take(merged(zip(*(make() for _ in range(8)), strict=True)))),
        way("six at rest", HUGE, 8, in_turns(6, [*range(6), 0, 0, 0] * 4), batch_size=128, persistent_workers=True),
        way("train and validate", SMALL, 10, in_turns(2, [0, 1] * 4)),
        way("train and validate, persistent", SMALL, 10, in_turns(2, [0, 1] * 10), persistent_workers=True),
        way("short epochs", SMALL, 3, each(epochs=10)),
        way("short epochs, persistent", SMALL, 3, each(epochs=60), persistent_workers=True),
        way("a loader a thread", SMALL, 60, lambda make: [*threads(3).map(lambda _: take(make()), "abc")]),
        way("to another process by Queue", SMALL, 150, by_queue),
        way("to another process by Pipe", SMALL, 150, by_pipe),
        way("torch.save", SMALL, 150, each(lambda _, b: torch.save(b, io.BytesIO()))),
        way("changed in place", SMALL, 150, each(lambda _, b: b[0].mul_(2).add_(1))),
        way("a small net", SMALL, 60, each(lambda _, b: b[0].flatten(1).float() @ torch.ones(3 << 12, 16))),
        way("a slow loop", SMALL, 60, each(lambda _, b: time.sleep(0.01))),
        way("5,000 loaders made", SMALL, 100, lambda make: [make() and None for _ in range(5000)]),
    ),
    "Workers, prefetching, streams": (
        way("no workers", SMALL, 1000, num_workers=0),
        way("no workers, annotations", annotation, 1500, num_workers=0, collate_fn=list),
        way("1 worker", SMALL, 200, num_workers=1),
        way("8 workers", SMALL, 120, num_workers=8),
        way("16 workers", SMALL, 80, num_workers=16),
        way("32 workers", SMALL, 80, num_workers=32),
        way("prefetch_factor=1", SMALL, 200, prefetch_factor=1),
        way("prefetch_factor=16", SMALL, 200, prefetch_factor=16),
        way("slow workers, prefetch_factor=16", lambda i: (time.sleep(1e-4), BIG(i))[1], 80, prefetch_factor=16),  # type: ignore[func-returns-value]
        way("a stream", SMALL, 200, kind=Stream),
        way("a stream of batches", lambda i: torch.full((64, 3, 64, 64), i), 60, kind=Stream, batch_size=None),
        way("a stream of lines", lambda i: f"a line of text, number {i}", 3000, kind=Stream),
        way("a stream, break", SMALL, 250, each(epochs=8, stop=12), kind=Stream),
    ),
    "Samplers": (
        way("shuffled", SMALL, 200, shuffle=True),
        way("weights of 10^7", int, 200, sampler=lambda: data.WeightedRandomSampler(torch.ones(10**7), 12800)),  # type: ignore[arg-type]
        way("10^8 indices", int, 400, each(stop=400), length=10**8),
        way("3,000,000 shuffled", int, 300, each(stop=300), length=3_000_000, shuffle=True),
        way("NumPy ints", int, 500, sampler=lambda: data.SubsetRandomSampler(numpy.arange(32000))),  # type: ignore[arg-type]
        way("pairs as indices", lambda i: i[0], 400, sampler=lambda: [(k, 64) for k in range(25600)]),
        way("batches of many lengths", int, 200, batch_sampler=lambda: [[*range(k)] for k in range(1, 201)]),
        way("TensorDataset", int, 400, kind=lambda *_: PREPARED),
    ),
}
PATTERNS = {pattern.name: pattern for group in GROUPS.values() for pattern in group}
