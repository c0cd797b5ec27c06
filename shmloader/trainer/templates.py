"""Decides which loaders share a template process, and when it ends: NOTE [ Template ] in template/server.py.

Loaders over one dataset share its templates.  They need not exist at the same time, because frameworks and scripts make
new loaders in each epoch.  So a template lives as long as the dataset or any of its loaders.  Stand-ins of far workers
need no dataset, so all loaders without local workers share theirs, whatever they load.

DatasetTemplates._having in template/of_dataset.py decides whether a template is used again as it is, or has to unpickle
the dataset again.  If its process has died, Template.give() starts a new one.

They are kept beside loader and dataset, and not in them, because frameworks copy a loader's __dict__, and a dataset is
pickled with all its attributes.
"""

from __future__ import annotations

import multiprocessing
import weakref
from typing import Any

import torch

from shmloader.far_workers import local_workers
from shmloader.options import Options
from shmloader.system.by_identity import ByIdentity
from shmloader.template.context import Share, TemplateContext
from shmloader.template.of_dataset import DatasetTemplates

_shares: ByIdentity[Share] = ByIdentity()  # by loader
_of_datasets: dict[tuple[int, bool], tuple[weakref.ref[Any], DatasetTemplates]] = {}  # by its id, and for stand-ins
_of_stand_ins: weakref.ref[DatasetTemplates] | None = None


def context_of(loader: Any, options: Options) -> Any:
    """What starts the workers of a loader: multiprocessing, or a context of it or of ours."""
    given = loader.multiprocessing_context
    plain = torch.multiprocessing if given is None else given
    if not options.template and options.far_workers is None:
        return plain
    if isinstance(plain, str):
        plain = multiprocessing.get_context(plain)
    if plain.get_start_method() == "fork":  # of far workers: their engine's threads run in this process
        plain = multiprocessing.get_context("spawn")
    of_stand_ins = options.far_workers is not None and not local_workers(loader)  # they need nothing of the dataset
    share = _share_of(loader, of_stand_ins)
    return TemplateContext(share, plain.get_context(), loader.timeout, options.workers_outlive_signals)


def end_template(loader: Any) -> None:
    """End the templates that no other loader uses, because this loader was closed."""
    share = _shares.pop(loader, None)
    if share is not None:
        share.templates.leave(loader)


def _share_of(loader: Any, of_stand_ins: bool) -> Share:
    known = _shares.get(loader)
    templates = _templates_of(loader.dataset, known, of_stand_ins)
    if known is None or known.templates is not templates:
        if known is not None:
            known.templates.leave(loader)
        known = _shares[loader] = Share(templates, weakref.ref(loader))
    return known


def _templates_of(dataset: Any, known: Share | None, of_stand_ins: bool) -> DatasetTemplates:
    """The dataset's templates.  If it allows no weak references, as a list, only the same loader finds them again."""
    mine = known.templates if known is not None and known.templates.is_mine else None
    at = id(dataset), of_stand_ins
    new = _templates_of_stand_ins() if of_stand_ins else DatasetTemplates()
    try:
        made = weakref.ref(dataset, lambda gone: _forget(at, gone)), new
    except TypeError:
        return mine or new
    known_as, templates = _of_datasets.setdefault(at, made)  # another thread may be doing the same
    if known_as() is not dataset or not templates.is_mine:
        _of_datasets[at] = made
    return _of_datasets[at][1]


def _templates_of_stand_ins() -> DatasetTemplates:
    """Those of all loaders that have far workers alone.  They live as long as any of these loaders, or its dataset."""
    global _of_stand_ins
    known = None if _of_stand_ins is None else _of_stand_ins()
    if known is None or not known.is_mine:
        known = DatasetTemplates()
        _of_stand_ins = weakref.ref(known)
    return known


def _forget(at: tuple[int, bool], gone: weakref.ref[Any]) -> None:
    """Forget a dataset that has died, unless another one has its id now."""
    if at in _of_datasets and _of_datasets[at][0] is gone:
        del _of_datasets[at]
