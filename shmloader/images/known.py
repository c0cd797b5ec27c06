"""How a transform is recognised: by its class's module and name, if nothing about the object was changed."""

from __future__ import annotations

from typing import Any

from shmloader.images.filters import NEAREST, filter_number

__all__ = ["fill_of", "is_changed", "is_known", "key_of", "pair", "resample_of", "text_of", "version_of"]

_V1, _V2 = ("torchvision.transforms.transforms", "torchvision.transforms.autoaugment"), "torchvision.transforms.v2."
_ELSEWHERE = ("timm.data.", "open_clip.transform", "torchvision.transforms._presets", "torch.nn.modules.container")
# An instance that has one of these attributes itself does not behave as its class does.
_METHODS = (
    *("forward", "transform", "make_params", "_get_params", "get_params", "__call__"),
    *("_augmentation_space", "_apply_image_or_video_transform"),
)


def version_of(transform: Any) -> int:
    """1 or 2; 0 if it is not torchvision's."""
    module = type(transform).__module__
    return 1 if module in _V1 else 2 if module.startswith(_V2) else 0


def is_known(transform: Any) -> bool:
    """Whether it may be a transform whose attributes we read."""
    module = type(transform).__module__
    return bool(version_of(transform)) or (module.startswith(_ELSEWHERE) and hasattr(transform, "__dict__"))


def key_of(transform: Any) -> tuple[str, str]:
    """The module and name of its class; for a function, its own."""
    kind = transform if hasattr(transform, "__qualname__") else type(transform)
    return str(getattr(kind, "__module__", "")), str(getattr(kind, "__qualname__", ""))


def is_changed(transform: Any) -> bool:
    """Whether an object of a stock class does more than its class."""
    hooks = any(getattr(transform, name, None) for name in ("_forward_hooks", "_forward_pre_hooks"))
    return hooks or any(name in getattr(transform, "__dict__", ()) for name in _METHODS)


def text_of(transform: Any) -> str:
    """A transform's repr, in at most 80 characters."""
    text = " ".join(repr(transform).split())
    return text if len(text) <= 80 else text[:77] + "..."


def pair(size: Any) -> tuple[int, int]:
    """Height and width of a `size`, which gives both, or one number for both."""
    sizes = [size] if isinstance(size, int) else list(size)
    return int(sizes[0]), int(sizes[-1])


def resample_of(interpolation: Any) -> int | None:
    """Pillow's number of an interpolation; None if Pillow has none like it."""
    value = getattr(interpolation, "value", interpolation)
    try:
        return NEAREST if value == "nearest-exact" else filter_number(value)  # Pillow has one kind of nearest
    except ValueError:
        return None


def fill_of(transform: Any, version: int) -> Any:
    """The colour that fills a PIL image; v2 may have one for each kind of picture."""
    fill = transform.fill
    if version == 1 or not isinstance(fill, dict):
        return fill
    for kind, value in transform._fill.items():
        if getattr(kind, "__module__", "") == "PIL.Image":
            return value
    return transform._fill["others"]
