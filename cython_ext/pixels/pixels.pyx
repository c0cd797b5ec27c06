# cython: language_level=3, boundscheck=False, wraparound=False
"""Pillow's operations (pixels.h), on one picture after another in the same memory.  They run without the GIL.
Picture checks their arguments, and makes the tables of posterize, solarize and invert, and the matrix of rotate.
"""

import math

from cpython.buffer cimport (
    PyBUF_ANY_CONTIGUOUS, PyBUF_FORMAT, PyBUF_STRIDES, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.stdint cimport int64_t, uint8_t, uint32_t, uintptr_t
from libc.string cimport memcpy

include "pixels/arguments.pxi"
include "pixels/canvas.pxi"
include "pixels/rows.pxi"

cdef dict MODES = {
    "constant": PAD_CONSTANT, "edge": PAD_EDGE, "reflect": PAD_REFLECT, "symmetric": PAD_SYMMETRIC,
}


def paths() -> list[str]:
    """The paths that this processor has, the fastest first."""
    return [name for name in ("avx2", "neon", "plain") if pixels_choose(name.encode()) != NULL]


cdef class Picture(Canvas):
    """One picture, RGBX, in memory that serves one picture after another.  Not for two threads at once.

    Look-ups are pending until the pixels are needed: they are combined, the last ones with the scaling of the row.
    Its buffer is a writable array of shape (3, height, width) with strides (1, 4 * width, 4).  While a buffer is in
    use, all methods raise BufferError.

    Args:
        path: one of `paths()`; the fastest by default.
    """

    def apply_pending(self):
        """Apply the pending look-ups.  Every operation that needs the pixels does so itself."""
        self.check()
        with nogil:
            pixels_apply_pending(self.picture)

    def look_up(self, table):
        """Image.point: a table of 256 bytes for all channels, or one of 768."""
        cdef bytes entries = bytes(table)
        cdef const uint8_t *at = entries
        self.check()
        if len(entries) == 256:
            pixels_look_up_all(self.picture, at)
        elif len(entries) == 768:
            pixels_look_up(self.picture, <const uint8_t (*)[256]>at)
        else:
            raise ValueError(f"a table of {len(entries)} entries: it may have 256 or 768")

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
        """ImageOps.posterize(image, bits).  With 0 bits the picture becomes black, as in Pillow before version 13."""
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
        """torchvision's adjust_hue(image, factor) of a PIL image; factor: a fraction of a turn, -0.5 to 0.5."""
        cdef int shift
        self.check()
        if not -1 <= factor <= 1:
            raise ValueError(f"hue by {factor} turns: it may be -1 to 1")
        shift = <int>(factor * 255) & 255
        with nogil:
            pixels_hue(self.picture, shift)

    def grayscale(self, int channels=3):
        """image.convert("L"), as three equal channels or as one channel."""
        self.check()
        if channels not in (1, 3):
            raise ValueError(f"{channels} channels: there may be 1 or 3")
        with nogil:
            pixels_grayscale(self.picture, channels)

    def permute(self, order):
        """Reorder the channels: channel c of the result is channel order[c]."""
        cdef int channels[3]
        self.check()
        if len(order) != 3 or not all([0 <= c < 3 for c in order]):
            raise ValueError(f"order={order!r}: it should be three of the channels 0, 1 and 2")
        channels[:] = [order[0], order[1], order[2]]
        with nogil:
            pixels_permute(self.picture, channels)

    def sharpness(self, float factor):
        """ImageEnhance.Sharpness(image).enhance(factor)."""
        cdef int status
        self.check()
        with nogil:
            status = pixels_sharpness(self.picture, factor)
        check_memory(status)

    def gaussian_blur(self, double radius, vertical=None):
        """image.filter(ImageFilter.GaussianBlur(radius)); `vertical`: the radius down the picture, if it differs."""
        cdef int status
        cdef double down = radius if vertical is None else vertical
        self.check()
        if not (abs(radius) <= LONGEST and abs(down) <= LONGEST):
            raise ValueError(f"a blur by {radius}, {down} pixels: they may be 0 to {LONGEST}")
        with nogil:
            status = pixels_gaussian_blur(self.picture, <float>radius, <float>down)
        check_memory(status)

    def convolve(self, across, down):
        """Blur with weights across and down; edges are mirrored.

        Args:
            across, down: float32 arrays of an odd number of weights, whose sum is 1.

        A byte differs by at most 1 from the result of sums in another order, or in two dimensions at once.
        """
        cdef int status
        cdef bytes x = floats(across), y = floats(down)
        cdef const float *x_at = <const float *><const char *>x
        cdef const float *y_at = <const float *><const char *>y
        cdef int wide = len(across), high = len(down)
        self.check()
        if wide % 2 == 0 or high % 2 == 0 or wide > LONGEST or high > LONGEST:
            raise ValueError(f"{wide} and {high} weights: both should be odd, and at most {LONGEST}")
        with nogil:
            status = pixels_convolve(self.picture, x_at, wide, y_at, high)
        check_memory(status)

    def convolve_window(self, weights):
        """Blur with a window of weights, as torch's convolution does for each channel; edges are mirrored.

        Args:
            weights: a contiguous float32 array of shape (down, across), both odd, whose sum is 1.

        Returns:
            Whether it succeeded.  It cannot if the processor lacks a fused multiply-add, or if the window reaches
            beyond the mirrored picture.
        """
        cdef int status
        cdef bytes window = floats(weights)
        cdef const float *first = <const float *><const char *>window
        cdef int wide, high
        high, wide = weights.shape
        self.check()
        if wide % 2 == 0 or high % 2 == 0 or max(wide, high) > LONGEST:
            raise ValueError(f"{high} x {wide} weights: both should be odd, and at most {LONGEST}")
        with nogil:
            status = pixels_convolve_window(self.picture, first, wide, high)
        if status == PIXELS_NO_WAY:
            return False
        check_memory(status)
        return True

    cdef tuple wanted_size(self, size):
        """The width and height of a result: this picture's, where none are given."""
        if size is None:
            return self.width, self.height
        check_size(size[0], size[1])
        return size[0], size[1]

    def affine(self, matrix, int interpolation=0, fill=None, size=None):
        """image.transform(size, Image.Transform.AFFINE, matrix, interpolation, fillcolor=fill)."""
        cdef int status, width, height
        cdef uint32_t colour = packed(fill)
        cdef double m[6]
        self.check()
        check_interpolation(interpolation)
        numbers(matrix, m, 6)
        width, height = self.wanted_size(size)
        with nogil:
            status = pixels_affine(self.picture, width, height, m, interpolation, colour)
        check_memory(status)

    def perspective(self, coefficients, int interpolation=0, fill=None, size=None):
        """image.transform(size, Image.Transform.PERSPECTIVE, coefficients, interpolation, fillcolor=fill)."""
        cdef int status, width, height
        cdef uint32_t colour = packed(fill)
        cdef double m[8]
        self.check()
        check_interpolation(interpolation)
        numbers(coefficients, m, 8)
        width, height = self.wanted_size(size)
        with nogil:
            status = pixels_perspective(self.picture, width, height, m, interpolation, colour)
        check_memory(status)

    def rotate(self, double angle, int interpolation=0, bint expand=False, center=None, fill=None):
        """image.rotate(angle, interpolation, expand, center, fillcolor=fill), counterclockwise."""
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
        cdef int status, from_left, from_top, wide, high
        self.check()
        if not (1 <= width <= LONGEST and 1 <= height <= LONGEST and abs(left) < 1 << 30 and abs(top) < 1 << 30):
            raise ValueError(
                f"a picture of {width} x {height} pixels from {left}, {top}: each side may be 1 to {LONGEST}"
            )
        from_left, from_top, wide, high = left, top, width, height
        with nogil:
            status = pixels_frame(self.picture, from_left, from_top, wide, high, mode, fill)
        return check_memory(status)

    def crop(self, left, top, width, height):
        """image.crop((left, top, left + width, top + height)): pixels outside of the image are black."""
        self.frame(left, top, width, height, PAD_CONSTANT, 0)

    def pad(self, left, top, right, bottom, mode="constant", fill=None):
        """torchvision's pad of a PIL image, by that number of pixels on each side; a negative number crops.

        Args:
            mode: constant (the colour `fill`), edge, reflect or symmetric, as numpy.pad has them.
        """
        cdef int kind
        if mode not in MODES:
            raise ValueError(f"mode={mode!r}: it should be one of {', '.join(MODES)}")
        kind = MODES[mode]
        if kind != PAD_CONSTANT and min(left, top, right, bottom) < 0:  # crop first: cropped pixels are not mirrored
            self.crop(max(0, -left), max(0, -top), self.width + min(0, left) + min(0, right),
                      self.height + min(0, top) + min(0, bottom))
            left, top, right, bottom = max(0, left), max(0, top), max(0, right), max(0, bottom)
        self.frame(-left, -top, self.width + left + right, self.height + top + bottom, kind, packed(fill))

    def resize(self, width, height, int filter=BILINEAR, down_first=True, window=None, canvas=None, fill=None,
               bint mirrored=False, bint flipped=False):
        """image.resize((width, height), filter), byte for byte.

        Args:
            width, height: of the result, in pixels.
            filter: 0 to 5, as Pillow's Resampling numbers them.
            down_first: resize as Pillow does since its version 13, which resizes some pictures down before across.
            window: left, top, width and height of the part of the result that is wanted (default: all of it).
            canvas: width, height, left and top: the picture lies on a canvas of that size, at that place, inside, and
                the canvas is resized.
            fill: the canvas's colour: one number or three (default: black).
            mirrored: mirror the canvas left and right before it is resized.
            flipped: mirror the window left and right.
        """
        cdef resize_request request
        cdef uint32_t colour = packed(fill)
        cdef int status, c
        self.check()
        check_size(width, height)
        request.all_width, request.all_height = width, height
        request.out_left, request.out_top, request.out_width, request.out_height = window or (0, 0, width, height)
        if not (0 <= request.out_left and 1 <= request.out_width <= width - request.out_left
                and 0 <= request.out_top and 1 <= request.out_height <= height - request.out_top):
            raise ValueError(f"window {window} is not inside a picture of {width} x {height} pixels")
        request.canvas_width, request.canvas_height, request.left, request.top = canvas or (self.width, self.height, 0, 0)
        check_size(request.canvas_width, request.canvas_height)
        if not (0 <= request.left <= request.canvas_width - self.picture.width
                and 0 <= request.top <= request.canvas_height - self.picture.height):
            raise ValueError(f"a picture of {self.width} x {self.height} pixels is not inside the canvas {canvas}")
        if not 0 <= filter < RESIZE_FILTERS:
            raise ValueError(f"there is no filter {filter}: 0 to {RESIZE_FILTERS - 1}, as Pillow numbers them")
        for c in range(3):
            request.fill[c] = colour >> 8 * c & 255
        request.filter, request.may_go_down_first = <resize_filter>filter, down_first
        request.is_mirrored, request.is_flipped = mirrored, flipped
        with nogil:
            status = pixels_resize(self.picture, request)
        check_memory(status)

    def flip_left_right(self):
        """image.transpose(Image.Transpose.FLIP_LEFT_RIGHT); look-ups stay pending."""
        cdef int status
        self.check()
        with nogil:
            status = pixels_flip_left_right(self.picture)
        check_memory(status)

    def flip_top_bottom(self):
        """image.transpose(Image.Transpose.FLIP_TOP_BOTTOM); look-ups stay pending."""
        cdef int status
        self.check()
        with nogil:
            status = pixels_flip_top_bottom(self.picture)
        check_memory(status)

    def blend(self, Picture other, float alpha):
        """Image.blend(image, other, alpha), for pictures of one size."""
        self.check()
        other.check()
        if (self.width, self.height) != (other.width, other.height):
            raise ValueError(
                f"pictures of {self.width} x {self.height} and {other.width} x {other.height} pixels cannot be blended"
            )
        with nogil:
            pixels_blend(self.picture, other.picture, alpha)

    def erase(self, box, colour=None):
        """Fill a box (left, top, width, height) inside the picture with one colour."""
        cdef int left, top, width, height
        cdef uint32_t pixel = packed(colour)
        self.check()
        left, top, width, height = box
        if not (0 <= width and 0 <= left <= self.picture.width - width
                and 0 <= height and 0 <= top <= self.picture.height - height):
            raise ValueError(f"box {box} is not inside a picture of {self.width} x {self.height} pixels")
        with nogil:
            pixels_fill_box(self.picture, left, top, width, height, pixel)
