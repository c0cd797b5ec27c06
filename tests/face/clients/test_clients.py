"""Loaders of other projects under patch_torch(): the batches of torch's loader, and the ring has served them.

They have an environment of their own, which `make test-ecosystem` makes.
"""

from __future__ import annotations

import importlib.util
import pathlib
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import Augmented, assert_same, seed_all
from scripts import run_script

import shmloader

_missing: list[Any] = []  # a library's operators go with it


@pytest.fixture(scope="module")
def torchvision() -> None:
    """torchvision of PyPI does not load beside a torch for the CPU: two operators have to be declared."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        _missing.append(torch.library.Library("torchvision", "FRAGMENT"))
        for name in "nms", "qnms":
            _missing[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


@pytest.fixture(autouse=True)
def _only_ours_is_said() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def assert_rides(kind: Any, dataset: Callable[[], Any], seen: Any = lambda batch: batch, **options: Any) -> Any:
    """Two epochs through their class, as it is and patched: equal batches, each of which the ring has carried."""

    def epochs() -> Any:
        seed_all()
        loader = kind(dataset(), **{"batch_size": 3, "num_workers": 2, **options})
        return loader, [[seen(batch) for batch in loader] for _ in range(2)]

    _, theirs = epochs()
    with shmloader.patch_torch(classes=[kind]):
        loader, ours = epochs()
    assert_same(ours, theirs)
    assert loader.rides_ring and isinstance(loader, kind) and isinstance(loader, shmloader.DataLoader)
    assert loader.stats().batches == sum(map(len, ours)) > 0 and loader.stats().ring_bytes is not None
    return loader


def test_ultralytics(torchvision: None) -> None:
    build = pytest.importorskip("ultralytics.data.build")
    loader = assert_rides(build.InfiniteDataLoader, Augmented, shuffle=True)
    loader.reset()
    assert len(list(loader)) == 8 and type(loader.iterator).__name__ == "RingIterator"
    loader.close()


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("name", ["DataLoader", "NodeLoader in the trainer", "NodeLoader in a worker"])
def test_geometric(name: str, persistent: bool) -> None:
    data = pytest.importorskip("torch_geometric.data")
    from torch_geometric.loader import DataLoader, NodeLoader
    from torch_geometric.sampler import BaseSampler, SamplerOutput

    class Alone(BaseSampler):  # pyg-lib's is no package of PyPI
        def sample_from_nodes(self, asked: Any, **_: Any) -> Any:
            count = torch.arange(len(asked.node))
            more = asked.input_id, asked.time
            return SamplerOutput(node=asked.node, row=count, col=count, edge=count, batch=None, metadata=more)

        def sample_from_edges(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

    edges = torch.stack([torch.arange(10)] * 2)
    options: dict[str, Any] = {"shuffle": True, "persistent_workers": persistent, "seen": lambda b: [b.x, b.edge_index]}
    if name == "DataLoader":
        graphs = [
            data.Data(x=torch.full((k % 3 + 2, 4), float(k)), edge_index=torch.ones(2, 2).long()) for k in range(10)
        ]
        assert_rides(DataLoader, lambda: graphs, **options)
        return
    whole = data.Data(x=torch.arange(40.0).view(10, 4), edge_index=edges)
    assert_rides(NodeLoader, lambda: whole, node_sampler=Alone(), filter_per_worker="a worker" in name, **options)


@pytest.mark.parametrize("name", ["DataLoader", "ThreadDataLoader"])
def test_monai(name: str) -> None:
    monai = pytest.importorskip("monai")
    from monai.transforms import Compose, EnsureType, RandGaussianNoise

    def dataset() -> Any:
        monai.utils.set_determinism(5)
        items = [torch.full((1, 4, 4), float(k)) for k in range(8)]
        return monai.data.Dataset(items, Compose([EnsureType(), RandGaussianNoise(prob=1.0)]))

    kind = getattr(monai.data, name)
    assert_rides(kind, dataset, torch.clone, shuffle=True)
    with shmloader.patch_torch(classes=[monai.data.ThreadDataLoader]):
        threads = monai.data.ThreadDataLoader(dataset(), num_workers=1, use_thread_workers=True)
    assert "threads" in threads.why_not_ring()


def test_timms_multi_epoch_loader(torchvision: None) -> None:
    loaders = pytest.importorskip("timm.data.loader")
    assert_rides(loaders.MultiEpochsDataLoader, Augmented, shuffle=True)


STREAMING = """
    import sys, tempfile, torch
    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        missing = torch.library.Library("torchvision", "FRAGMENT")
        for name in "nms", "qnms":
            missing.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import shmloader, streaming

    folder = tempfile.mkdtemp()
    with streaming.MDSWriter(out=folder, columns={"x": "int"}) as writer:
        for k in range(20):
            writer.write({"x": k})

    def epochs():
        streaming.base.util.clean_stale_shared_memory()
        dataset = streaming.StreamingDataset(local=folder, shuffle=True, batch_size=3, shuffle_seed=3)
        loader = streaming.StreamingDataLoader(dataset, batch_size=3, num_workers=2)
        return loader, [[batch["x"].tolist() for batch in loader] for _ in range(2)]

    theirs = epochs()[1]
    with shmloader.patch_torch(classes=[streaming.StreamingDataLoader]):
        loader, ours = epochs()
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()  # its own
    carried = loader.stats().batches == sum(map(len, ours)) + 1
    print(ours == theirs, loader.rides_ring, carried, state["sample_in_epoch"])
"""


def test_streaming() -> None:
    """In a process of its own, whose end takes with it what Streaming leaves in /dev/shm."""
    if importlib.util.find_spec("streaming") is None:
        pytest.skip("Streaming is not installed")
    ran = run_script(STREAMING, seconds=100, flags=["-W", "ignore"])
    assert ran.out.splitlines()[-1:] == ["True True True 3"], ran.err
    assert "Traceback" not in ran.err  # its __del__ ends the workers when the interpreter goes down


def test_litdata(tmp_path: pathlib.Path) -> None:
    """Its dataset rides in a loader of ours; its own loader makes its iterators, and naming it raises."""
    litdata = pytest.importorskip("litdata")
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(tmp_path), chunk_size=10)
    for k in range(20):
        writer[k] = {"x": k}
    writer.done()
    writer.merge()

    def epochs(kind: Any) -> Any:
        loader = kind(litdata.StreamingDataset(str(tmp_path), shuffle=False), batch_size=4, num_workers=2)
        return loader, [[batch["x"] for batch in loader] for _ in range(2)]

    (_, theirs), (loader, ours) = epochs(torch.utils.data.DataLoader), epochs(shmloader.DataLoader)
    assert_same(ours, theirs)
    assert loader.rides_ring and loader.stats().batches == sum(map(len, ours))
    with pytest.raises(ValueError, match=r"StreamingDataLoader has a _get_iterator\(\) of its own"):
        shmloader.patch_torch(classes=[litdata.StreamingDataLoader])


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_webdataset(tmp_path: pathlib.Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    paths = [str(tmp_path / f"{part}.tar") for part in range(2)]
    for path in paths:
        with webdataset.TarWriter(path) as tar:
            for k in range(10):
                tar.write({"__key__": f"{k}", "cls": k})

    def epochs() -> Any:
        dataset = webdataset.WebDataset(paths, shardshuffle=False).decode().to_tuple("cls").batched(4)
        loader = webdataset.WebLoader(dataset, batch_size=None, num_workers=2)
        return loader, [list(loader) for _ in range(2)]

    _, theirs = epochs()
    with shmloader.patch_torch():
        loader, ours = epochs()
    assert_same(ours, theirs)
    assert loader.pipeline[0].rides_ring and loader.pipeline[0].stats().batches == sum(map(len, ours))


def test_fastai() -> None:
    """A Learner takes loaders of ours; fastai's own loader is not reached, with a warning."""
    load = pytest.importorskip("fastai.data.load")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        random.seed(3)
        with shmloader.patch_torch():
            assert len(list(load.DataLoader(Augmented(), bs=4, num_workers=1))) == 6
    assert any("does not reach fastai" in str(one.message) for one in caught)
