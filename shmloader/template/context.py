"""A multiprocessing context that has a template process fork its workers; if it cannot, they start the plain way."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
import weakref
from typing import Any

from shmloader.system.group_signals import blocked_at_start
from shmloader.template.forked import TemplateProcess
from shmloader.template.of_dataset import DatasetTemplates
from shmloader.template.template import Refused


@dataclasses.dataclass
class Share:
    """A loader's part in the templates of its dataset."""

    templates: DatasetTemplates
    loader: weakref.ref[Any]
    refused: bool = False  # whether its workers start without a template, after a warning


class TemplateContext:
    """Starts workers by way of a template process.

    Args:
        share: The templates of the loader's dataset.
        plain: The loader's own context.
        timeout: Seconds that unpickling the dataset may take; 0: any number.
        outlives: Whether the workers ignore a signal that is sent to their group.
    """

    def __init__(self, share: Share, plain: Any, timeout: float, outlives: bool) -> None:
        self._share = share
        self._plain = plain
        self._timeout = timeout
        self._outlives = outlives

    def get_start_method(self) -> str:
        """A name that is no start method of multiprocessing's."""
        return "template"

    def Process(self, **arguments: Any) -> TemplateProcess:
        """A process that is not started yet."""
        return TemplateProcess(self._start, self._plain.get_start_method(), **arguments)

    def _start(self, worker: TemplateProcess) -> Any:
        if not self._share.refused:
            try:
                return self._share.templates.fork(worker, self._share.loader(), self._outlives, self._timeout)
            except Refused as why:
                self._share.refused = True
                warnings.warn(
                    f"template=True has no effect on this loader: {why}. Each worker is started by "
                    f"{self._plain.get_start_method()!r}.",
                    RuntimeWarning,
                    stacklevel=2,
                )
        with blocked_at_start(self._plain) if self._outlives else contextlib.nullcontext():
            return self._plain.Process._Popen(worker)
