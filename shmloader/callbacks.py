"""Sends a loader's stats to a framework's logger.  It needs lightning, or pytorch_lightning.

trainer = Trainer(callbacks=[LoaderStats()])
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from shmloader.measured import Measured

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    try:
        from pytorch_lightning.callbacks import Callback
    except ImportError:
        raise ImportError(
            "shmloader.callbacks needs lightning or pytorch_lightning, and neither is installed. Run pip install "
            "lightning. Without it, log loader.stats('last').to_dict() where you log your loss."
        ) from None


class LoaderStats(Callback):  # type: ignore[misc]
    """Logs the measurements of the training loader since the last log, as often as the trainer logs.

    It calls `stats("last")`, so other callers of that get only the time since this call.

    Args:
        prefix: Each name begins with it.  With several loaders, their places follow it.

    Example:
        >>> trainer = Trainer(callbacks=[LoaderStats()], logger=WandbLogger())
    """

    def __init__(self, prefix: str = "loader/") -> None:
        super().__init__()
        self.prefix = prefix
        self._logged = 0  # the step of the last log

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        """Called before the first batch, also when a run resumes."""
        self._logged = trainer.global_step

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Called after each batch."""
        step = trainer.global_step
        if step == self._logged:  # gradients are accumulated: several batches make a step, and one of them logs it
            return
        if not trainer.loggers or not trainer.log_every_n_steps or step % trainer.log_every_n_steps:
            return
        self._logged = step
        loaders = list(loaders_in(trainer.train_dataloader))
        metrics: dict[str, float] = {}
        for place, loader in enumerate(loaders):
            prefix = self.prefix if len(loaders) == 1 else f"{self.prefix}{place}/"
            metrics.update(loader.stats("last").to_dict(prefix))
        for logger in trainer.loggers if metrics else ():
            logger.log_metrics(metrics, step=step)


def loaders_in(what: Any) -> Iterator[Measured]:
    """Our loaders in the trainer's loader: one, several in a container, or a CombinedLoader."""
    if isinstance(what, Measured):
        yield what
        return
    what = getattr(what, "flattened", what)
    if isinstance(what, dict):
        what = what.values()
    if isinstance(what, Iterable) and not isinstance(what, (str, bytes)) and not hasattr(what, "dataset"):
        for each in what:
            yield from loaders_in(each)
