"""Whose tests `make test-suites` runs.  `python -m tests.suites.projects` prints what they have to have installed."""

from __future__ import annotations

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Project:
    """A project whose source archive on PyPI has tests that iterate over loaders."""

    name: str
    version: str
    tests: list[str]  # files, and more arguments for pytest
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)  # a part of tests' names: why they cannot run
    classes: str = ""  # its subclasses of torch's loader that the patch has to cover
    workers: tuple[int, ...] = (0,)  # how many workers a loader gets that has none, run by run
    path: str = "."  # what goes into PYTHONPATH
    installed: bool = True  # whether pip installs it, too; otherwise `needs` has all that it imports
    needs: str = ""

    @property
    def archive(self) -> str:
        return f"{re.sub('[-.]', '_', self.name)}-{self.version}"

    @property
    def pytest(self) -> list[str]:
        return [*self.tests, *(["-k", f"not ({' or '.join(self.left_out)})"] if self.left_out else [])]


def _files(pattern: str, names: str) -> list[str]:
    return [pattern.format(name) for name in names.split()]


# Tests that need a network, a hub, a GPU or packages that are not installed skip themselves, or fail with torch too.
# `left_out` has those that take long.  Some archives lack what their tests import: stand_ins/ has that.
PROJECTS = (
    Project(
        "accelerate",
        "1.15.0",
        _files("tests/test_{}.py", "data_loader state_checkpointing accelerator"),
        left_out={"compile": "compiles a model for seconds, without a loader"},
        workers=(0, 2),
        path="src",
        needs="torchdata==0.11.0 parameterized==0.9.0",
    ),
    Project(
        "datasets",
        "5.2.0",
        ["tests/test_iterable_dataset.py"],
        path="src",
    ),
    Project(
        "mosaicml-streaming",
        "0.13.0",
        ["tests/test_streaming.py"],
        left_out={"dataset_no_shuffle": "no loader"},
        classes="streaming.StreamingDataLoader",
        installed=False,  # because it asks for transformers < 5, with which the others cannot be installed
        needs="transformers==5.23.0 brotli==1.2.1 catalogue==2.0.10 matplotlib python-snappy==0.7.3 zstd==1.5.7.2",
    ),
    Project(
        "opacus",
        "1.6.0",
        _files("opacus/tests/{}_test.py", "poisson dpdataloader batch_memory_manager"),
        classes="opacus.data_loader.DPDataLoader",
        needs="hypothesis==6.170.15",
    ),
    Project(
        "pytorch-ignite",
        "0.5.5",
        _files("tests/ignite/{}.py", "engine/test_deterministic distributed/test_auto engine/test_engine"),
        left_out={"gradients_on_resume": "trains for minutes, without workers"},
    ),
    Project(
        "skorch",
        "1.4.0",
        [
            *_files("skorch/tests/test_{}.py", "dataset net"),
            "-k",
            "(test_dataset or iterator or partial) and not compile",
        ],
        workers=(2,),
        needs="flaky==3.8.1",
    ),
    Project(
        "timm",
        "1.0.31",
        _files("tests/test_{}.py", "reader_wds naflex_dataset multilabel data scheduled_sampler"),
        left_out={
            "_cli": "the archive lacks timm's scripts",
            "_script": "the archive lacks timm's scripts",
            "distributed_metrics": "spawned processes, in which torchvision does not load beside a torch for the CPU",
            "without_workers": "asserts that a loader has no workers",
        },
        classes="timm.data.loader.MultiEpochsDataLoader",
        workers=(0, 2),
    ),
    Project("webdataset", "1.0.2", ["tests/test_loaders.py"], path="src"),
)

if __name__ == "__main__":
    print("torch==2.13.0 torchvision==0.28.0 pytest==9.2.0 pytest-timeout==2.4.0 posix_ipc==1.3.2")
    print("\n".join(f"{project.name}=={project.version}" for project in PROJECTS if project.installed))
    print("\n".join(project.needs for project in PROJECTS if project.needs))
