# cython: language_level=3, boundscheck=False, wraparound=False
"""Pillow's operations in pixels/, on one picture after another in the same memory, without the GIL."""

import math

from cpython.buffer cimport (
    PyBUF_ANY_CONTIGUOUS, PyBUF_FORMAT, PyBUF_STRIDES, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.stdint cimport int64_t, uint8_t, uint32_t, uintptr_t
from libc.string cimport memcpy

cdef extern from "pixels/pixels.h" nogil:
    enum: PIXELS_OK, NEAREST, BILINEAR, BICUBIC, PAD_CONSTANT, PAD_EDGE, PAD_REFLECT, PAD_SYMMETRIC
    ctypedef struct pixels_path:
        const char *name
    ctypedef struct pixels_picture:
        uint8_t *now
        int width, height, channels, is_pending
    ctypedef struct pixels_place:
        uint8_t *to
        Py_ssize_t channel, row, column
    ctypedef struct pixels_values:
        const uint8_t *values
        Py_ssize_t channel, row, column
    const pixels_path *pixels_choose(const char *name)
    pixels_picture *pixels_new(const pixels_path *path)
    void pixels_free(pixels_picture *picture)
    int pixels_start(pixels_picture *picture, int width, int height, int channels)
    void pixels_load(pixels_picture *picture, const uint8_t *data, Py_ssize_t row, Py_ssize_t column, Py_ssize_t channel)
    int pixels_copy(pixels_picture *picture, const pixels_picture *other)
    void pixels_apply_pending(pixels_picture *picture)
    void pixels_look_up(pixels_picture *picture, const uint8_t (*tables)[256])
    void pixels_look_up_all(pixels_picture *picture, const uint8_t *table)
    void pixels_brightness(pixels_picture *picture, float factor)
    void pixels_contrast(pixels_picture *picture, float factor)
    void pixels_autocontrast(pixels_picture *picture)
    void pixels_equalize(pixels_picture *picture)
    void pixels_saturation(pixels_picture *picture, float factor)
    void pixels_hue(pixels_picture *picture, int shift)
    void pixels_grayscale(pixels_picture *picture, int channels)
    void pixels_permute(pixels_picture *picture, const int *order)
    int pixels_sharpness(pixels_picture *picture, float factor)
    void pixels_blend(pixels_picture *picture, pixels_picture *other, float alpha)
    int pixels_gaussian_blur(pixels_picture *picture, float across, float down)
    int pixels_convolve(pixels_picture *picture, const float *across, int taps_across, const float *down, int taps_down)
    int pixels_affine(pixels_picture *picture, int width, int height, const double *matrix, int interpolation,
                      uint32_t fill)
    int pixels_perspective(pixels_picture *picture, int width, int height, const double *matrix, int interpolation,
                           uint32_t fill)
    int pixels_frame(pixels_picture *picture, int left, int top, int width, int height, int mode, uint32_t fill)
    int pixels_flip_left_right(pixels_picture *picture)
    int pixels_flip_top_bottom(pixels_picture *picture)
    int pixels_turn_quarters(pixels_picture *picture, int quarters)
    void pixels_fill_box(pixels_picture *picture, int left, int top, int width, int height, uint32_t colour)
    int pixels_write(pixels_picture *picture, pixels_place place, const void *tables, int item)
    void pixels_erase(pixels_place place, int channels, int width, int height, pixels_values values, int item)

DEF LONGEST = 65535  # of a side, in pixels

cdef char *FORMAT = b"B"  # of bytes, in a buffer

cdef dict MODES = {
    "constant": PAD_CONSTANT, "edge": PAD_EDGE, "reflect": PAD_REFLECT, "symmetric": PAD_SYMMETRIC,
}


def paths() -> list[str]:
    """The ways of calculating that this processor has, the fastest first."""
    return [name for name in ("avx2", "neon", "plain") if pixels_choose(name.encode()) != NULL]


cdef int check_size(object width, object height) except -1:
    if not (1 <= width <= LONGEST and 1 <= height <= LONGEST):
        raise ValueError(f"a picture of {width} x {height} pixels: each side may be 1 to {LONGEST}")
    return 0


cdef int check_memory(int said) except -1:
    if said != PIXELS_OK:
        raise MemoryError("no memory for a picture")
    return 0


cdef uint32_t packed(object colour) except? 0xffffffff:
    """One number for all channels, or three, as a pixel."""
    if colour is None:
        return 0
    if hasattr(colour, "__len__"):
        values = tuple(colour) * (3 if len(colour) == 1 else 1)
        if len(values) != 3:
            raise ValueError(f"a colour of {len(values)} numbers: it may have one or three")
    else:
        values = (colour,) * 3
    values = [max(0, min(255, int(value))) for value in values]
    return values[0] | values[1] << 8 | values[2] << 16


cdef int check_interpolation(int interpolation) except -1:
    if interpolation not in (NEAREST, BILINEAR, BICUBIC):
        raise ValueError(f"interpolation {interpolation} cannot be used: only Pillow's 0 (nearest), 2 (bilinear), 3 (bicubic)")
    return 0


cdef int numbers(object matrix, double *to, int n) except -1:
    cdef int k
    if len(matrix) < n:
        raise ValueError(f"{len(matrix)} coefficients are too few: {n} are needed")
    for k in range(n):
        to[k] = matrix[k]
    return 0


def erase(row, box, value):
    """Overwrite a box of a finished row: what RandomErasing does to a tensor.

    Args:
        row: a writable array of shape (channels, height, width), with any strides, of items of 1, 2 or 4 bytes.
        box: left, top, width and height, inside the row.
        value: a contiguous array of items as long: of one, of one for each channel, or of shape (channels, height,
            width) of the box.

    Raises:
        ValueError: the box is not inside, or an array is of another shape or has other items.
    """
    cdef Py_buffer to, source
    cdef pixels_place place
    cdef pixels_values values
    cdef Py_ssize_t items, left, top, width, height, channels
    left, top, width, height = box
    PyObject_GetBuffer(row, &to, PyBUF_STRIDES | PyBUF_WRITABLE)
    try:
        PyObject_GetBuffer(value, &source, PyBUF_ANY_CONTIGUOUS)
        try:
            if to.ndim != 3 or to.itemsize not in (1, 2, 4):
                raise ValueError("row is no array of shape (channels, height, width), of items of 1, 2 or 4 bytes")
            channels = to.shape[0]
            if not (0 <= left <= to.shape[2] - width and 0 <= width and 0 <= top <= to.shape[1] - height and 0 <= height):
                raise ValueError(f"box {box} is not inside a row of {to.shape[2]} x {to.shape[1]} pixels")
            items = source.len // source.itemsize
            if source.itemsize != to.itemsize or items not in (1, channels, channels * height * width):
                raise ValueError(
                    f"{items} values of {source.itemsize} bytes: there may be 1, {channels} or {channels * height * width}, "
                    f"of {to.itemsize} bytes"
                )
            place.to = <uint8_t *>to.buf + top * to.strides[1] + left * to.strides[2]
            place.channel, place.row, place.column = to.strides[0], to.strides[1], to.strides[2]
            values.values = <const uint8_t *>source.buf
            values.channel = values.row = values.column = 0
            if items == channels * height * width:
                values.column = to.itemsize
                values.row = width * to.itemsize
                values.channel = height * values.row
            elif items == channels:
                values.channel = to.itemsize
            with nogil:
                pixels_erase(place, <int>channels, <int>width, <int>height, values, <int>to.itemsize)
        finally:
            PyBuffer_Release(&source)
    finally:
        PyBuffer_Release(&to)


cdef class Picture:
    """One picture, RGBX, in memory that serves one picture after another.  Not for two threads at once.

    Look-ups wait until somebody needs the pixels: they are put together, and the last ones with the scaling of the row.
    As a buffer it is a writable array of shape (3, height, width) with strides (1, 4 * width, 4).  While somebody holds
    that, all methods raise BufferError.

    Args:
        path: one of `paths()`; the fastest by default.
    """

    cdef pixels_picture *picture
    cdef readonly str path
    cdef Py_ssize_t views
    cdef Py_ssize_t shape[3]
    cdef Py_ssize_t strides[3]

    def __cinit__(self, path=None):
        cdef const pixels_path *chosen
        cdef bytes name
        if path is None:
            chosen = pixels_choose(NULL)
        else:
            name = path.encode()
            chosen = pixels_choose(name)
            if chosen == NULL:
                raise ValueError(f"this processor has no path {path!r}: one of {paths()}")
        self.picture = pixels_new(chosen)
        if self.picture == NULL:
            raise MemoryError()
        self.path = chosen.name.decode()

    def __dealloc__(self):
        pixels_free(self.picture)

    def __reduce__(self):
        raise TypeError("a Picture is memory of one process: it cannot be pickled")

    @property
    def width(self):
        return self.picture.width

    @property
    def height(self):
        return self.picture.height

    @property
    def channels(self):
        return self.picture.channels

    cdef int check_free(self) except -1:
        if self.views:
            raise BufferError(f"{self.views} views of this picture are in use: release them first")
        return 0

    cdef int check(self) except -1:
        self.check_free()
        if self.picture.width == 0:
            raise ValueError("there is no picture yet: start or load one first")
        return 0

    def __getbuffer__(self, Py_buffer *view, int flags):
        if self.picture.width == 0:
            raise BufferError("there is no picture yet: start or load one first")
        if not flags & PyBUF_STRIDES == PyBUF_STRIDES:
            raise BufferError("a Picture's channels are strided: ask for strides")
        if self.views == 0:
            pixels_apply_pending(self.picture)
            self.shape[:] = [3, self.picture.height, self.picture.width]
            self.strides[:] = [1, 4 * self.picture.width, 4]
        view.buf, view.obj, view.readonly = self.picture.now, self, 0
        view.len = 3 * <Py_ssize_t>self.picture.width * self.picture.height
        view.itemsize, view.ndim, view.format = 1, 3, FORMAT if flags & PyBUF_FORMAT else NULL
        view.shape, view.strides, view.suboffsets, view.internal = self.shape, self.strides, NULL, NULL
        self.views += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.views -= 1

    def start(self, width, height, channels=3):
        """Have another picture, whose pixels are undefined.

        Args:
            width, height: in pixels, 1 to 65535.
            channels: 3, or 1: a picture of mode L, whose three channels are equal.
        """
        cdef int said, across, down, planes
        self.check_free()
        check_size(width, height)
        if channels not in (1, 3):
            raise ValueError(f"{channels} channels: there may be 1 or 3")
        across, down, planes = width, height, channels
        with nogil:
            said = pixels_start(self.picture, across, down, planes)
        check_memory(said)

    def load(self, pixels):
        """Copy an array of bytes of shape (height, width), or with 1, 3 or 4 channels behind that; with any strides."""
        cdef Py_buffer view
        cdef Py_ssize_t channels = 1, channel = 0
        PyObject_GetBuffer(pixels, &view, PyBUF_STRIDES)
        try:
            if view.ndim == 3:
                channels, channel = view.shape[2], view.strides[2]
            if view.itemsize != 1 or view.ndim not in (2, 3) or channels not in (1, 3, 4):
                raise ValueError("pixels are no array of bytes of shape (height, width) or (height, width, 1, 3 or 4)")
            self.start(view.shape[1], view.shape[0], 1 if channels == 1 else 3)
            if channels == 1:
                channel = 0
            with nogil:
                pixels_load(self.picture, <const uint8_t *>view.buf, view.strides[0], view.strides[1], channel)
        finally:
            PyBuffer_Release(&view)

    def load_image(self, image):
        """Copy a PIL image of mode RGB or L."""
        if image.mode not in ("RGB", "L"):
            raise ValueError(f"a picture of mode {image.mode}: only RGB and L are known")
        width, height = image.size
        cdef const uint8_t *data
        cdef Py_ssize_t column = 4 if image.mode == "RGB" else 1
        self.start(width, height, 3 if column == 4 else 1)
        cdef bytes pixels = image.tobytes("raw", "RGBX" if column == 4 else "L")
        if len(pixels) != width * height * column:
            raise ValueError(f"a picture of {width} x {height} pixels has {len(pixels)} bytes")
        data = pixels
        with nogil:
            pixels_load(self.picture, data, column * self.picture.width, column, 1 if column == 4 else 0)

    def load_picture(self, Picture other):
        """Copy another Picture, and which look-ups wait there."""
        cdef int said
        if other is self:
            return
        self.check_free()
        other.check()
        with nogil:
            said = pixels_copy(self.picture, other.picture)
        check_memory(said)

    def image(self):
        """A PIL image of mode RGB, or L where there is one channel, with memory of its own."""
        from PIL import Image

        cdef Py_ssize_t size
        self.check()
        cdef pixels_place place
        cdef uint8_t *to
        if self.picture.channels == 3:
            pixels_apply_pending(self.picture)
            size = 4 * <Py_ssize_t>self.picture.width * self.picture.height
            return Image.frombytes("RGB", (self.width, self.height), self.picture.now[:size], "raw", "RGBX", 0, 1)
        data = bytearray(self.picture.width * <Py_ssize_t>self.picture.height)
        to = data
        place.to, place.channel, place.row, place.column = to, 0, self.picture.width, 1
        with nogil:
            pixels_write(self.picture, place, NULL, 1)
        return Image.frombytes("L", (self.width, self.height), bytes(data))

    def write(self, out, table=None):
        """Write the pixels to an array.

        Args:
            out: writable, of shape (channels, height, width), with any strides; of bytes, or of items as the table's.
            table: see write_at().
        """
        cdef Py_buffer view
        self.check()
        PyObject_GetBuffer(out, &view, PyBUF_STRIDES | PyBUF_WRITABLE)
        try:
            if view.ndim != 3 or (view.shape[0], view.shape[1], view.shape[2]) != (self.channels, self.height, self.width):
                raise ValueError(f"out is no array of shape ({self.channels}, {self.height}, {self.width})")
            self.put(<uintptr_t>view.buf, view.strides[0], view.strides[1], view.strides[2], table, view.itemsize)
        finally:
            PyBuffer_Release(&view)

    def write_at(self, address, strides, table=None):
        """Write the pixels to an address, which nobody checks.

        Args:
            address: of the first pixel's first channel.
            strides: from a channel, a row and a column to the next one, in bytes.  They may be negative, so a flip from
                left to right is free: begin at the last column.
            table: a contiguous array of `channels` times 256 items of 1, 2 or 4 bytes: what each byte of each channel
                becomes.  None: bytes stay as they are.  Look-ups that wait go into it.
        """
        self.check()
        self.put(address, strides[0], strides[1], strides[2], table, 0)

    cdef int put(self, uintptr_t address, Py_ssize_t channel, Py_ssize_t row, Py_ssize_t column, table,
                 Py_ssize_t item) except -1:
        """`item`: how long the items of the row are; 0: as the table's."""
        cdef pixels_place place
        cdef Py_buffer view
        cdef int said
        place.to, place.channel, place.row, place.column = <uint8_t *>address, channel, row, column
        if table is None:
            if item > 1:
                raise ValueError(f"out has items of {item} bytes, and without a table pixels are single bytes")
            with nogil:
                said = pixels_write(self.picture, place, NULL, 1)
            return check_memory(said)
        PyObject_GetBuffer(table, &view, PyBUF_ANY_CONTIGUOUS)
        try:
            if view.itemsize not in (1, 2, 4) or view.len != 256 * self.picture.channels * view.itemsize:
                raise ValueError(
                    f"table has {view.len} bytes, of items of {view.itemsize}: it needs {self.channels} x 256 items of 1, 2 "
                    f"or 4 bytes"
                )
            if item not in (0, view.itemsize):
                raise ValueError(f"out has items of {item} bytes, and the table of {view.itemsize}")
            with nogil:
                said = pixels_write(self.picture, place, view.buf, <int>view.itemsize)
        finally:
            PyBuffer_Release(&view)
        return check_memory(said)

    def apply_pending(self):
        """Apply the look-ups that wait.  Every operation that needs the pixels does so itself."""
        self.check()
        with nogil:
            pixels_apply_pending(self.picture)

    def look_up(self, table):
        """Image.point: a table of 256 bytes for all channels, or one of 768."""
        cdef const uint8_t[::1] entries = bytes(table)
        self.check()
        if entries.shape[0] == 256:
            pixels_look_up_all(self.picture, &entries[0])
        elif entries.shape[0] == 768:
            pixels_look_up(self.picture, <const uint8_t (*)[256]>&entries[0])
        else:
            raise ValueError(f"a table of {entries.shape[0]} entries: it may have 256 or 768")

    cdef int look_up_by(self, object function) except -1:
        cdef uint8_t table[256]
        cdef int v
        self.check()
        for v in range(256):
            table[v] = function(v)
        pixels_look_up_all(self.picture, table)
        return 0

    def brightness(self, float factor):
        """ImageEnhance.Brightness(image).enhance(factor)."""
        self.check()
        pixels_brightness(self.picture, factor)

    def contrast(self, float factor):
        """ImageEnhance.Contrast(image).enhance(factor)."""
        self.check()
        with nogil:
            pixels_contrast(self.picture, factor)

    def invert(self):
        """ImageOps.invert(image)."""
        cdef uint8_t table[256]
        cdef int v
        self.check()
        for v in range(256):
            table[v] = 255 - v
        pixels_look_up_all(self.picture, table)

    def posterize(self, bits):
        """ImageOps.posterize(image, bits), and with 0 bits what Pillow made of that before version 12: black."""
        cdef uint8_t table[256]
        cdef int v, mask
        self.check()
        if not 0 <= bits <= 8:
            raise ValueError(f"bits={bits}: there may be 0 to 8")
        mask = ~((1 << (8 - <int>bits)) - 1)
        for v in range(256):
            table[v] = v & mask & 255
        pixels_look_up_all(self.picture, table)

    def solarize(self, double threshold=128):
        """ImageOps.solarize(image, threshold)."""
        cdef uint8_t table[256]
        cdef int v
        self.check()
        for v in range(256):
            table[v] = v if v < threshold else 255 - v
        pixels_look_up_all(self.picture, table)

    def solarize_add(self, int add, double threshold=128):
        """timm's solarize_add(image, add, threshold)."""
        cdef uint8_t table[256]
        cdef int v
        self.check()
        for v in range(256):
            table[v] = max(0, min(255, <int64_t>v + add)) if v < threshold else v
        pixels_look_up_all(self.picture, table)

    def autocontrast(self):
        """ImageOps.autocontrast(image)."""
        self.check()
        with nogil:
            pixels_autocontrast(self.picture)

    def equalize(self):
        """ImageOps.equalize(image)."""
        self.check()
        with nogil:
            pixels_equalize(self.picture)

    def saturation(self, float factor):
        """ImageEnhance.Color(image).enhance(factor)."""
        self.check()
        with nogil:
            pixels_saturation(self.picture, factor)

    def hue(self, double factor):
        """torchvision's adjust_hue(image, factor) of a PIL image; factor: a part of a turn, -0.5 to 0.5."""
        cdef int shift
        self.check()
        if not -1 <= factor <= 1:
            raise ValueError(f"hue by {factor} turns: it may be -1 to 1")
        shift = <int>(factor * 255) & 255
        with nogil:
            pixels_hue(self.picture, shift)

    def grayscale(self, int channels=3):
        """image.convert("L"), as three equal channels or as one."""
        self.check()
        if channels not in (1, 3):
            raise ValueError(f"{channels} channels: there may be 1 or 3")
        with nogil:
            pixels_grayscale(self.picture, channels)

    def permute(self, order):
        """Each channel becomes another one: order[c] says which."""
        cdef int channels[3]
        self.check()
        if len(order) != 3 or not all(0 <= c < 3 for c in order):
            raise ValueError(f"order={order!r}: it should be three of the channels 0, 1 and 2")
        channels[:] = [order[0], order[1], order[2]]
        with nogil:
            pixels_permute(self.picture, channels)

    def sharpness(self, float factor):
        """ImageEnhance.Sharpness(image).enhance(factor)."""
        cdef int said
        self.check()
        with nogil:
            said = pixels_sharpness(self.picture, factor)
        check_memory(said)

    def gaussian_blur(self, double radius, vertical=None):
        """image.filter(ImageFilter.GaussianBlur(radius)); `vertical` is the radius down the picture, if it is another."""
        cdef int said
        cdef double down = radius if vertical is None else vertical
        self.check()
        if not (abs(radius) <= LONGEST and abs(down) <= LONGEST):
            raise ValueError(f"a blur by {radius}, {down} pixels: they may be 0 to {LONGEST}")
        with nogil:
            said = pixels_gaussian_blur(self.picture, <float>radius, <float>down)
        check_memory(said)

    def convolve(self, across, down):
        """Blur with weights across and down; edges are mirrored.

        Args:
            across, down: float32 arrays of an odd number of weights, of which the sum is 1.

        A byte differs by at most 1 from what the sums make of it in another order, or in two dimensions at once.
        """
        cdef int said
        cdef const float[::1] x = across, y = down
        self.check()
        if x.shape[0] % 2 == 0 or y.shape[0] % 2 == 0 or x.shape[0] > LONGEST or y.shape[0] > LONGEST:
            raise ValueError(f"{x.shape[0]} and {y.shape[0]} weights: both should be odd, and at most {LONGEST}")
        with nogil:
            said = pixels_convolve(self.picture, &x[0], <int>x.shape[0], &y[0], <int>y.shape[0])
        check_memory(said)

    def affine(self, matrix, int interpolation=0, fill=None, size=None):
        """image.transform(size, Image.Transform.AFFINE, matrix, interpolation, fillcolor=fill)."""
        cdef int said, width, height
        cdef uint32_t colour = packed(fill)
        cdef double m[6]
        self.check()
        check_interpolation(interpolation)
        numbers(matrix, m, 6)
        if size is not None:
            check_size(size[0], size[1])
        width, height = (self.width, self.height) if size is None else size
        with nogil:
            said = pixels_affine(self.picture, width, height, m, interpolation, colour)
        check_memory(said)

    def perspective(self, coefficients, int interpolation=0, fill=None, size=None):
        """image.transform(size, Image.Transform.PERSPECTIVE, coefficients, interpolation, fillcolor=fill)."""
        cdef int said, width, height
        cdef uint32_t colour = packed(fill)
        cdef double m[8]
        self.check()
        check_interpolation(interpolation)
        numbers(coefficients, m, 8)
        if size is not None:
            check_size(size[0], size[1])
        width, height = (self.width, self.height) if size is None else size
        with nogil:
            said = pixels_perspective(self.picture, width, height, m, interpolation, colour)
        check_memory(said)

    def rotate(self, double angle, int interpolation=0, bint expand=False, center=None, fill=None):
        """image.rotate(angle, interpolation, expand, center, fillcolor=fill), against the clock."""
        cdef double a, b, d, e, x, y, middle_x, middle_y
        cdef int width, height
        self.check()
        check_interpolation(interpolation)
        angle = angle % 360.0
        width, height = self.picture.width, self.picture.height
        if not center:
            if angle == 0:
                return
            if angle == 180 or (angle in (90, 270) and (expand or width == height)):
                pixels_apply_pending(self.picture)
                check_memory(pixels_turn_quarters(self.picture, <int>angle // 90))
                return
        middle_x, middle_y = (width / 2.0, height / 2.0) if center is None else center
        angle = -math.radians(angle)
        a, b = round(math.cos(angle), 15), round(math.sin(angle), 15)
        d, e = round(-math.sin(angle), 15), round(math.cos(angle), 15)
        x = a * -middle_x + b * -middle_y + middle_x
        y = d * -middle_x + e * -middle_y + middle_y
        if expand:
            corners = [(0, 0), (width, 0), (width, height), (0, height)]
            xs, ys = [a * i + b * j + x for i, j in corners], [d * i + e * j + y for i, j in corners]
            wide, high = math.ceil(max(xs)) - math.floor(min(xs)), math.ceil(max(ys)) - math.floor(min(ys))
            left, top = -(wide - width) / 2.0, -(high - height) / 2.0
            x, y = a * left + b * top + x, d * left + e * top + y
            width, height = wide, high
        self.affine((a, b, x, d, e, y), interpolation, fill, (width, height))

    cdef int frame(self, left, top, width, height, int mode, uint32_t fill) except -1:
        cdef int said, from_left, from_top, wide, high
        self.check()
        if not (1 <= width <= LONGEST and 1 <= height <= LONGEST and abs(left) < 1 << 30 and abs(top) < 1 << 30):
            raise ValueError(f"a picture of {width} x {height} pixels from {left}, {top}: each side may be 1 to {LONGEST}")
        from_left, from_top, wide, high = left, top, width, height
        with nogil:
            said = pixels_frame(self.picture, from_left, from_top, wide, high, mode, fill)
        return check_memory(said)

    def crop(self, left, top, width, height):
        """image.crop((left, top, left + width, top + height)): what lies outside is black."""
        self.frame(left, top, width, height, PAD_CONSTANT, 0)

    def pad(self, left, top, right, bottom, mode="constant", fill=None):
        """torchvision's pad of a PIL image: so many pixels more on each side; less where a number is negative.

        Args:
            mode: constant (the colour `fill`), edge, reflect or symmetric, as numpy.pad has them.
        """
        cdef int kind
        if mode not in MODES:
            raise ValueError(f"mode={mode!r}: it should be one of {', '.join(MODES)}")
        kind = MODES[mode]
        if kind != PAD_CONSTANT and min(left, top, right, bottom) < 0:  # cut first: what is gone is not mirrored
            self.crop(max(0, -left), max(0, -top), self.width + min(0, left) + min(0, right),
                      self.height + min(0, top) + min(0, bottom))
            left, top, right, bottom = max(0, left), max(0, top), max(0, right), max(0, bottom)
        self.frame(-left, -top, self.width + left + right, self.height + top + bottom, kind, packed(fill))

    def flip_left_right(self):
        """image.transpose(Image.Transpose.FLIP_LEFT_RIGHT); look-ups go on waiting."""
        cdef int said
        self.check()
        with nogil:
            said = pixels_flip_left_right(self.picture)
        check_memory(said)

    def flip_top_bottom(self):
        """image.transpose(Image.Transpose.FLIP_TOP_BOTTOM); look-ups go on waiting."""
        cdef int said
        self.check()
        with nogil:
            said = pixels_flip_top_bottom(self.picture)
        check_memory(said)

    def blend(self, Picture other, float alpha):
        """Image.blend(image, other, alpha), of pictures of one size."""
        self.check()
        other.check()
        if (self.width, self.height) != (other.width, other.height):
            raise ValueError(
                f"pictures of {self.width} x {self.height} and {other.width} x {other.height} pixels cannot be blended"
            )
        with nogil:
            pixels_blend(self.picture, other.picture, alpha)

    def erase(self, box, colour=None):
        """One colour in a box (left, top, width, height) inside the picture."""
        cdef int left, top, width, height
        cdef uint32_t pixel = packed(colour)
        self.check()
        left, top, width, height = box
        if not (0 <= width and 0 <= left <= self.picture.width - width
                and 0 <= height and 0 <= top <= self.picture.height - height):
            raise ValueError(f"box {box} is not inside a picture of {self.width} x {self.height} pixels")
        with nogil:
            pixels_fill_box(self.picture, left, top, width, height, pixel)
