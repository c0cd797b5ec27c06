"""A context of multiprocessing whose processes a template process forks; where it cannot, they start as without one."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

from shmloader.system.group_signals import blocked_at_start
from shmloader.template.forked import TemplateProcess
from shmloader.template.template import Refused, Template


class TemplateContext:
    """What a crew starts its workers with.

    Args:
        template: The loader's.
        plain: The loader's own context.
        outlives: Whether workers go on when their group is sent a signal.
    """

    def __init__(self, template: Template, plain: Any, outlives: bool) -> None:
        self._template = template
        self._plain = plain
        self._outlives = outlives

    def get_start_method(self) -> str:
        """No start method of multiprocessing's."""
        return "template"

    def Process(self, **arguments: Any) -> TemplateProcess:
        """A process that is not started yet."""
        return TemplateProcess(self._start, self._plain.get_start_method(), **arguments)

    def _start(self, worker: TemplateProcess) -> Any:
        if self._template.refusal is None:
            try:
                return self._template.fork(worker, self._outlives)
            except Refused as why:
                self._template.refusal = str(why)
                warnings.warn(
                    f"template=True has no effect on this loader: {why}. Its workers are started by "
                    f"{self._plain.get_start_method()!r}, each for itself.",
                    RuntimeWarning,
                    stacklevel=2,
                )
        with blocked_at_start(self._plain) if self._outlives else contextlib.nullcontext():
            return self._plain.Process._Popen(worker)
