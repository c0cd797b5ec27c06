"""What torch.utils.data exports: two are ours, the rest are torch's own objects, and its modules stay as they were."""

from __future__ import annotations

from typing import Any

import torch.utils.data
import torch.utils.data.dataloader as torchs
from conftest import Augmented, compare
from scripts import run_script
from torch.utils.data import _utils

import shmloader

# Served by torch's own iterator, and imported from torch: docs/api.md lists the datasets, samplers and functions that
# `shmloader` has as well.
DATAPIPES = {
    name
    for name in torch.utils.data.__all__
    if getattr(torch.utils.data, name).__module__.startswith("torch.utils.data.datapipes")
}


def test_export() -> None:
    """A new name of torch's that ours has not got fails here."""
    for name in {*torch.utils.data.__all__} - DATAPIPES - {"_DatasetKind"}:
        assert name in shmloader.__all__
        if name in ("DataLoader", "DistributedSampler"):
            assert issubclass(getattr(shmloader, name), getattr(torch.utils.data, name))
        else:
            assert getattr(shmloader, name) is getattr(torch.utils.data, name), name


def test_export_nothing_else() -> None:
    ours = {"AsyncDataLoader", "Shards", "attach", "freeze", "patch_torch", "row_wise", "tune"}
    assert set(shmloader.__all__) - set(torch.utils.data.__all__) == ours


def test_export_left_to_torch() -> None:
    assert not {*DATAPIPES, "_DatasetKind"} & {*shmloader.__all__}


DATALOADER = """
    _BaseDataLoaderIter _SingleProcessDataLoaderIter _MultiProcessingDataLoaderIter _InfiniteConstantSampler
    _DatasetKind _collate_fn_t _worker_init_fn_t default_collate default_convert get_worker_info
    _sharding_worker_init_fn _share_dist_seed
"""
UTILS = "MP_STATUS_CHECK_INTERVAL python_exit_status ExceptionWrapper collate fetch pin_memory signal_handling worker"


def test_export_of_torch_stays_torchs() -> None:
    """There is nothing to patch: importing and using shmloader has left it in place."""
    places = {torch.utils.data: "DataLoader", torchs: f"DataLoader {DATALOADER}", _utils: UTILS}
    values = [getattr(module, name) for module, names in places.items() for name in names.split()]
    assert not [each for each in values if str(getattr(each, "__module__", "torch")).startswith("shmloader")]


def test_export_importing_and_iterating_changes_nothing_in_torch() -> None:
    ran = run_script(
        """
        import sys
        import torch.utils.data, torch.utils.data.dataloader, torch.multiprocessing.reductions
        from multiprocessing.reduction import ForkingPickler

        def everything():
            found = {}
            for name, module in list(sys.modules.items()):
                if name.startswith("torch.utils.data") or name.startswith("torch.multiprocessing"):
                    for key, value in vars(module).items():
                        found[name, key] = id(value)
                        if isinstance(value, type):
                            found.update({(name, key, k): id(v) for k, v in vars(value).items() if callable(v)})
            found["map"] = list(torch.utils.data._utils.collate.default_collate_fn_map.items())
            found["reducers"] = dict(ForkingPickler._extra_reducers)
            return found

        if __name__ == "__main__":
            list(torch.utils.data.DataLoader([1, 2], num_workers=1))
            before = everything()
            import shmloader
            list(shmloader.DataLoader([1, 2], num_workers=1))
            after = everything()
            print([key for key in before if after.get(key) != before[key]])
        """,
        fresh=True,
    )
    assert (ran.status, ran.out) == (0, "[]\n"), ran.err


def test_export_no_thread_workers_and_only_our_loaders_tell_their_place() -> None:
    def absent(kind: Any) -> Any:
        loader = kind(Augmented(), num_workers=1)
        for name in ("state_dict", "load_state_dict"):
            assert hasattr(loader, name) == (kind is shmloader.DataLoader) and not hasattr(iter(loader), name)
        return hasattr(loader, "worker_method"), hasattr(iter(loader), "worker_method")

    compare(absent)
    compare(lambda kind: kind(Augmented(), worker_method="thread"))
