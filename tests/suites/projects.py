"""Whose tests `make test-suites` runs, and which of them."""

from __future__ import annotations

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Project:
    """A project whose source archive has tests that iterate over loaders."""

    name: str
    version: str
    tests: tuple[str, ...]  # files and options for pytest
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)  # words of names of tests: why they cannot run
    classes: tuple[str, ...] = ()  # its subclasses of torch's loader that the patch has to cover
    needs: tuple[str, ...] = ()  # what its tests import besides
    path: tuple[str, ...] = (".",)  # what goes into PYTHONPATH
    workers: tuple[int, ...] = (0,)  # how many workers a loader gets that has none, run by run

    @property
    def archive(self) -> str:
        return f"{re.sub('[-.]', '_', self.name)}-{self.version}"

    @property
    def pytest(self) -> tuple[str, ...]:
        words = " or ".join(self.left_out)
        return (*self.tests, *(("-k", f"not ({words})") if words else ()))


PROJECTS = (
    Project("accelerate", "1.15.0", ("tests/test_data_loader.py", "tests/test_state_checkpointing.py", "tests/test_accelerator.py"), path=("src",), workers=(0, 2)),
    Project("datasets", "5.2.0", ("tests/test_iterable_dataset.py", "tests/test_distributed.py", "tests/test_arrow_dataset.py", "-k", "worker or torch or distributed"), path=("src",)),
    Project("mosaicml-streaming", "0.13.0", ("tests/test_eviction.py", "tests/test_distributed.py", "tests/test_streaming.py"), classes=("streaming.StreamingDataLoader",)),
    Project("opacus", "1.6.0", ("opacus/tests/poisson_test.py", "opacus/tests/dpdataloader_test.py", "opacus/tests/batch_memory_manager_test.py"), classes=("opacus.data_loader.DPDataLoader",), workers=(0,2)),
    Project("pytorch-ignite", "0.5.5", ("tests/ignite/engine/test_deterministic.py", "tests/ignite/distributed/test_auto.py", "tests/ignite/engine/test_engine.py"), workers=(0,2)),
    Project("skorch", "1.4.0", ("skorch/tests/test_dataset.py", "skorch/tests/test_net.py"), workers=(0, 2)),
    Project("timm", "1.0.31", ("tests/test_reader_wds.py", "tests/test_naflex_dataset.py", "tests/test_multilabel.py", "tests/test_data.py", "tests/test_scheduled_sampler.py"), {"hfds": "x", "hfids": "x", "cli": "x", "distributed": "x"}, classes=("timm.data.loader.MultiEpochsDataLoader",), workers=(0, 2)),
)
