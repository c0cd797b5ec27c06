"""Which loader has which template process: NOTE [ Template ] in server.py.

A template is kept beside its loader, and not in it, because frameworks copy a loader's __dict__, and two loaders must
not end one template.
"""

from __future__ import annotations

import multiprocessing
import weakref
from typing import Any

import torch

from shmloader.options import Options
from shmloader.template.context import TemplateContext
from shmloader.template.template import Template

_templates: weakref.WeakKeyDictionary[Any, Template] = weakref.WeakKeyDictionary()


def context_of(loader: Any, options: Options) -> Any:
    """What the workers of a loader are started with: multiprocessing, or a context of it or of ours."""
    plain = loader.multiprocessing_context or torch.multiprocessing
    if not options.template:
        return plain
    template = _templates.get(loader)
    if template is None or not template.is_mine:
        template = _templates[loader] = Template()
    if isinstance(plain, str):
        plain = multiprocessing.get_context(plain)
    return TemplateContext(template, plain.get_context(), options.workers_outlive_signals)


def end_template(loader: Any) -> None:
    """The loader was closed."""
    template = _templates.pop(loader, None)
    if template is not None:
        template.end()
