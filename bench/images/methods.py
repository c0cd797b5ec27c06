"""The ways from JPEG files to rows that are measured: each decodes, cuts a box out, resizes it and flips it.

A row is a uint8 tensor of shape (3, 224, 224), as it stands in a batch.  All get the same boxes and flips.  What cannot
be asked of a way stands in its note.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bench.core.loaders import missing

SIZE = 224
Box = tuple[int, int, int, int]  # left, top, width, height
One = Callable[[Any, Box, bool, torch.Tensor], None]  # a file's bytes, its box, whether it is flipped, its row
Pass = Callable[[Sequence[bytes], Sequence[Box], Sequence[bool], Sequence[torch.Tensor]], None]


@dataclass(frozen=True)
class Method:
    """One that is measured.

    Args:
        label: for tables and pictures.
        open: makes the function that makes one row.
        needs: modules that it imports, besides torch and numpy.
        distributions: whose versions are noted.
        note: what is different about it.
        opens_pass: instead, makes a function for many files at a time.
        has_pixels: whether it makes any.
    """

    label: str
    open: Callable[[], One] | None
    needs: tuple[str, ...] = ()
    distributions: tuple[str, ...] = ()
    note: str = ""
    opens_pass: Callable[[], Pass] | None = None
    has_pixels: bool = True

    def why_not(self) -> str:
        """Why it cannot be measured here; empty where it can."""
        return missing(self.needs)

    def all_of(self) -> Pass:
        """A function that makes the rows of many files."""
        if self.opens_pass is not None:
            return self.opens_pass()
        assert self.open is not None
        one = self.open()

        def every(files: Sequence[bytes], boxes: Sequence[Box], flips: Sequence[bool], rows: Any) -> None:
            for file, box, flip, row in zip(files, boxes, flips, rows, strict=True):
                one(file, box, flip, row)

        return every


def _put(pixels: Any, flip: bool, row: torch.Tensor) -> None:
    """Pixels of shape (height, width, 3) into their row."""
    row.numpy()[...] = (pixels[:, ::-1] if flip else pixels).transpose(2, 0, 1)


def _pil() -> One:
    import io

    from PIL import Image

    def one(file: Any, box: Box, flip: bool, row: torch.Tensor) -> None:
        left, top, width, height = box
        image = Image.open(io.BytesIO(file)).convert("RGB").crop((left, top, left + width, top + height))
        _put(np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR)), flip, row)

    return one


def _pil_torchvision() -> One:
    import io

    from PIL import Image
    from torchvision.transforms.functional import hflip, pil_to_tensor, resized_crop

    def one(file: Any, box: Box, flip: bool, row: torch.Tensor) -> None:
        image = _cut_and_resized(resized_crop, Image.open(io.BytesIO(file)).convert("RGB"), box)
        row.copy_(pil_to_tensor(hflip(image) if flip else image))

    return one


def _torchvision() -> One:
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms.v2.functional import horizontal_flip, resized_crop

    def one(file: Any, box: Box, flip: bool, row: torch.Tensor) -> None:
        image = decode_jpeg(torch.frombuffer(bytearray(file), dtype=torch.uint8), ImageReadMode.RGB)
        image = _cut_and_resized(resized_crop, image, box)
        row.copy_(horizontal_flip(image) if flip else image)

    return one


def _cut_and_resized(resized_crop: Any, image: Any, box: Box) -> Any:
    left, top, width, height = box
    return resized_crop(image, top, left, height, width, [SIZE, SIZE], antialias=True)


def _torchcodec() -> One:
    from torchcodec.decoders import decode_jpeg
    from torchvision.transforms.v2.functional import horizontal_flip, resized_crop

    def one(file: Any, box: Box, flip: bool, row: torch.Tensor) -> None:
        image = _cut_and_resized(resized_crop, decode_jpeg(file, mode="RGB"), box)
        row.copy_(horizontal_flip(image) if flip else image)

    return one


def _simplejpeg() -> One:
    import cv2
    import simplejpeg

    cv2.setNumThreads(1)  # a worker has one core, and a fork must not inherit a pool of threads

    def one(file: Any, box: Box, flip: bool, row: torch.Tensor) -> None:
        left, top, width, height = box
        pixels = simplejpeg.decode_jpeg(file, "RGB")[top : top + height, left : left + width]
        _put(cv2.resize(pixels, (SIZE, SIZE), interpolation=cv2.INTER_LINEAR), flip, row)

    return one


def _kornia() -> One:
    import kornia_rs

    def one(file: Any, box: Box, flip: bool, row: torch.Tensor) -> None:
        left, top, width, height = box
        pixels = kornia_rs.io.decode_image_jpegturbo(file, "rgb")
        cut = np.ascontiguousarray(pixels[top : top + height, left : left + width])
        _put(np.asarray(kornia_rs.imgproc.resize(cut, (SIZE, SIZE), "bilinear")), flip, row)

    return one


def _spdl() -> One:
    import spdl.io

    def one(file: Any, box: Box, flip: bool, row: torch.Tensor) -> None:
        left, top, width, height = box
        # swscale's bilinear filter is antialiased when it makes a picture smaller.
        filters = f"format=rgb24,crop={width}:{height}:{left}:{top}:exact=1,scale={SIZE}:{SIZE}:flags=bilinear"
        frames = spdl.io.decode_packets(spdl.io.demux_image(file), filter_desc=filters)
        _put(spdl.io.to_numpy(spdl.io.convert_frames(frames)), flip, row)

    return one


_DALI_BATCH = 32  # files at a time


def _dali() -> Pass:
    from nvidia.dali import fn, pipeline_def, types

    given: list[Any] = []  # files, boxes, flips: the same in each pass, because it reads in advance

    def source(info: Any) -> tuple[Any, ...]:
        files, boxes, flips = given
        begin = info.iteration % -(-len(files) // _DALI_BATCH) * _DALI_BATCH
        at = [k % len(files) for k in range(begin, begin + _DALI_BATCH)]
        return (
            [np.frombuffer(files[k], np.uint8) for k in at],
            [np.array(boxes[k][:2], np.int32) for k in at],
            [np.array(boxes[k][2:], np.int32) for k in at],
            [np.array(flips[k], np.int32) for k in at],
        )

    def described() -> Any:
        jpegs, start, shape, flip = fn.external_source(source, num_outputs=4, batch_info=True, batch=True)
        image = fn.decoders.image_slice(jpegs, start=start, shape=shape, axis_names="WH", adjust_orientation=False)
        linear = types.DALIInterpType.INTERP_LINEAR
        image = fn.resize(image, resize_x=SIZE, resize_y=SIZE, interp_type=linear, antialias=True)
        return fn.transpose(fn.flip(image, horizontal=flip), perm=[2, 0, 1])

    made = pipeline_def(batch_size=_DALI_BATCH, num_threads=1, device_id=None, prefetch_queue_depth=1)
    pipeline: Any = made(described)()

    def every(files: Sequence[bytes], boxes: Sequence[Box], flips: Sequence[bool], rows: Any) -> None:
        given[:] = [files, boxes, flips]
        for begin in range(0, len(files), _DALI_BATCH):
            (batch,) = pipeline.run()
            for k, row in enumerate(rows[begin : begin + _DALI_BATCH]):
                row.copy_(torch.from_numpy(np.asarray(batch[k])))

    return every


def _ours(exact: bool) -> Callable[[], One]:
    def opened() -> One:
        from shmloader import images

        def one(file: Any, box: Box, flip: bool, row: torch.Tensor) -> None:
            images.decode(file, box, (SIZE, SIZE), flip, row, exact)

        return one

    return opened


def _marked() -> One:
    """With marks of each file's rows, as fuse(..., rows=FILE) keeps them; the first pass makes them."""
    from shmloader.core import jpeg

    decoder = jpeg.Decoder()
    marks: dict[int, bytes | None] = {}

    def one(file: Any, box: Box, flip: bool, row: torch.Tensor) -> None:
        pixels = row.numpy()[:, :, ::-1] if flip else row.numpy()
        known = marks.get(id(file))
        if decoder.open(file) is None or not decoder.decode(box, pixels, False, marks=known, marking=known is None):
            raise ValueError("no JPEG file for our decoder")
        marks.setdefault(id(file), decoder.marks)
        decoder.close()

    return one


def _floor() -> One:
    from shmloader.core import jpeg

    decoder = jpeg.Decoder()

    def one(file: Any, box: Box, flip: bool, row: torch.Tensor) -> None:
        if decoder.open(file) is None or not decoder.skim(box):
            raise ValueError("no JPEG file for our decoder")
        decoder.close()

    return one


PIL, EXACT, FAST, ROWS, FLOOR = "pil", "exact", "fast", "rows", "floor"
METHODS = {
    PIL: Method("PIL", _pil, ("PIL",), ("pillow",), "as torchvision does, without its Python"),
    "pil-torchvision": Method(
        "PIL + torchvision", _pil_torchvision, ("PIL", "torchvision"), ("torchvision",), "transforms of PIL's images"
    ),
    "torchvision": Method(
        "torchvision.io + v2", _torchvision, ("torchvision",), ("torchvision",), "resizes tensors, antialiased"
    ),
    "torchcodec": Method(
        "torchcodec + v2",
        _torchcodec,
        ("torchcodec", "torchvision"),
        ("torchcodec",),
        "the same; turns pictures as their EXIF orientation says",
    ),
    "simplejpeg": Method(
        "simplejpeg + cv2", _simplejpeg, ("simplejpeg", "cv2"), ("simplejpeg",), "resizes without antialiasing"
    ),
    "kornia": Method("kornia-rs", _kornia, ("kornia_rs",), ("kornia-rs",), "resizes without antialiasing"),
    "spdl": Method("SPDL", _spdl, ("spdl.io",), ("spdl-io",), "by FFmpeg"),
    "dali": Method(
        "DALI, CPU",
        None,
        ("nvidia.dali",),
        ("nvidia-dali-cuda120", "nvidia-nvimgcodec-cu12"),
        "32 at a time",
        opens_pass=_dali,
    ),
    EXACT: Method("shmloader.images, exact", _ours(True), (), ("shmloader",), "PIL's pixels to the bit"),
    FAST: Method("shmloader.images, fast", _ours(False), (), ("shmloader",), "exact=False"),
    ROWS: Method(
        "shmloader.images, fast, rows", _marked, (), ("shmloader",), "from the second epoch on, with rows=FILE"
    ),
    FLOOR: Method(
        "entropy decoding alone",
        _floor,
        note="what no decoder that reads the file from its beginning can be quicker than; makes no pixels",
        has_pixels=False,
    ),
}
