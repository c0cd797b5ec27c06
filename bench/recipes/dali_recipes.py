"""The recipes as pipelines of DALI on the CPU: a batch at a time, with threads instead of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

__all__ = ["NEEDS", "RECIPES", "batches"]

NEEDS = ("nvidia.dali",)
MEAN, STD = [0.485 * 255, 0.456 * 255, 0.406 * 255], [0.229 * 255, 0.224 * 255, 0.225 * 255]

_POLICIES: dict[str, tuple[str, str, dict[str, int]]] = {
    "trivial": ("trivial_augment", "trivial_augment_wide", {}),
    "rand": ("rand_augment", "rand_augment", {"n": 2, "m": 9}),
}

Steps = Callable[[Any, Any], Any]  # of nvidia.dali and the files' bytes


def _cropped(filter: str, policy: str = "") -> Steps:
    def steps(dali: Any, files: Any) -> Any:
        fn = dali.fn
        picture = fn.decoders.image_random_crop(files, random_area=(0.08, 1.0), random_aspect_ratio=(3 / 4, 4 / 3))
        interpolation = getattr(dali.types.DALIInterpType, filter)
        picture = fn.resize(picture, size=(224, 224), interp_type=interpolation, antialias=True)
        picture = fn.flip(picture, horizontal=fn.random.coin_flip())
        if policy:
            module, name, given = _POLICIES[policy]
            auto: Any = import_module(f"nvidia.dali.auto_aug.{module}")
            picture = getattr(auto, name)(picture, shape=(224, 224), **given)
        return _scaled(dali, picture)

    return steps


def _middle(resized: int, filter: str) -> Steps:
    def steps(dali: Any, files: Any) -> Any:
        fn = dali.fn
        picture = fn.decoders.image(files)
        interpolation = getattr(dali.types.DALIInterpType, filter)
        return _scaled(dali, fn.resize(picture, resize_shorter=resized, interp_type=interpolation, antialias=True))

    return steps


def _scaled(dali: Any, picture: Any) -> Any:
    return dali.fn.crop_mirror_normalize(picture, crop=(224, 224), mean=MEAN, std=STD, output_layout="CHW")


RECIPES: dict[str, Steps] = {
    "crop": _cropped("INTERP_LINEAR"),
    "bicubic": _cropped("INTERP_CUBIC"),
    "trivial": _cropped("INTERP_LINEAR", "trivial"),
    "rand": _cropped("INTERP_LINEAR", "rand"),
    "clip": _middle(224, "INTERP_CUBIC"),
    "evaluation": _middle(256, "INTERP_LINEAR"),
}


def batches(recipe: str, files: Sequence[str], batch_size: int, threads: int) -> Iterator[Any]:
    """Batches of samples as tensors of torch, without end.

    Args:
        recipe: A key of RECIPES.
        files: Their paths; they are read again and again.
        batch_size: Samples a batch.
        threads: What decodes.
    """
    dali: Any = import_module("nvidia.dali")
    for name in ("fn", "types"):
        import_module(f"nvidia.dali.{name}")
    plugin: Any = import_module("nvidia.dali.plugin.pytorch")

    def described() -> Any:
        read, _ = dali.fn.readers.file(files=list(files), random_shuffle=True, name="files")
        return RECIPES[recipe](dali, read)

    made = dali.pipeline_def(
        batch_size=batch_size, num_threads=threads, device_id=None, prefetch_queue_depth=2, enable_conditionals=True
    )
    for batch in plugin.DALIGenericIterator([made(described)()], ["images"]):
        yield batch[0]["images"]
