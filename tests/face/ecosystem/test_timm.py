"""timm's create_loader, over a folder of images."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy
import pytest
import torch
from epochs import Record, assert_same_epochs, recording
from PIL import Image
from timm.data import create_dataset, create_loader


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("images")
    random = numpy.random.default_rng(0)
    for k in range(22):
        (root / f"class{k % 2}").mkdir(exist_ok=True)
        Image.fromarray(random.integers(0, 256, (40, 48, 3), "uint8")).save(root / f"class{k % 2}" / f"{k}.png")
    return root


CASES: dict[str, dict[str, Any]] = {
    "training": {"is_training": True, "re_prob": 0.5, "auto_augment": "rand-m9-mstd0.5"},
    "evaluating": {"is_training": False},
    "workers not kept": {"is_training": True, "persistent_workers": False},
    "without its prefetcher": {"is_training": True, "use_prefetcher": False},
    "batches of changing size": {
        "is_training": True,
        "input_size_choices": [(3, 32, 32), (3, 24, 24)],
        "batch_size_choices": [4, 6],
        "batch_choice_seed": 1,
    },
}


@pytest.mark.parametrize("case", CASES)
def test_create_loader(case: str, folder: pathlib.Path) -> None:
    def train(kind: Any) -> list[Record]:
        with recording() as record:
            loader = create_loader(
                create_dataset("", root=str(folder)),
                **{"input_size": (3, 32, 32), "batch_size": 4, "num_workers": 2, **CASES[case]},
                device=torch.device("cpu"),
            )
            for _ in range(2):
                for images, classes in loader:
                    record.see((images, classes))
        return [record]

    (record,) = assert_same_epochs(train, "patched torch")
    assert len(record.seen) >= 2 * 3


def test_its_own_subclass_stays_torchs(folder: pathlib.Path) -> None:
    """A limit of patch_torch(): once this fails, README and docstring may say more."""
    import shmloader

    with shmloader.patch_torch(), recording() as record:
        loader = create_loader(
            create_dataset("", root=str(folder)),
            (3, 32, 32),
            4,
            device=torch.device("cpu"),
            use_multi_epochs_loader=True,
        )
        assert len(list(loader)) == 6
        del loader
    assert record.iterators == ["_MultiProcessingDataLoaderIter"]
