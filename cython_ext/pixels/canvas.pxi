# The memory of a Picture, which serves one picture after another.  Takes arrays and PIL images (only RGB and L), writes
# rows, and refuses every change while a view of it is in use (BufferError).

cdef class Canvas:
    """The memory of a Picture: pixels go in, and out to a row.

    Its buffer is a writable array of shape (3, height, width) with strides (1, 4 * width, 4).  While a buffer is in
    use, all methods raise BufferError.
    """

    cdef pixels_picture *picture
    cdef readonly str path
    cdef readonly Py_ssize_t views
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
        """Start another picture, whose pixels are undefined.

        Args:
            width, height: in pixels, 1 to 65535.
            channels: 3, or 1: a picture of mode L, whose three channels are equal.
        """
        cdef int status, across, down, planes
        self.check_free()
        check_size(width, height)
        if channels not in (1, 3):
            raise ValueError(f"{channels} channels: there may be 1 or 3")
        across, down, planes = width, height, channels
        with nogil:
            status = pixels_start(self.picture, across, down, planes)
        check_memory(status)

    def load(self, pixels):
        """Copy an array of bytes of shape (height, width) or (height, width, 1, 3 or 4), with any strides."""
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

    def load_picture(self, Canvas other):
        """Copy another Picture, with its pending look-ups."""
        cdef int status
        if other is self:
            return
        self.check_free()
        other.check()
        with nogil:
            status = pixels_copy(self.picture, other.picture)
        check_memory(status)

    def image(self):
        """A PIL image with its own memory, of mode RGB, or L if there is one channel."""
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
            pixels_write(self.picture, place, NULL, 1, NULL)
        return Image.frombytes("L", (self.width, self.height), bytes(data))

    def write(self, out, table=None, scales=None):
        """Write the pixels to an array.

        Args:
            out: a writable array of shape (channels, height, width), with any strides, of bytes or the table's items.
            table, scales: see write_at().
        """
        cdef Py_buffer view
        self.check()
        PyObject_GetBuffer(out, &view, PyBUF_STRIDES | PyBUF_WRITABLE)
        try:
            shape = self.channels, self.height, self.width
            if view.ndim != 3 or (view.shape[0], view.shape[1], view.shape[2]) != shape:
                raise ValueError(f"out is no array of shape ({self.channels}, {self.height}, {self.width})")
            self.put(<uintptr_t>view.buf, view.strides[0], view.strides[1], view.strides[2], table, view.itemsize, scales)
        finally:
            PyBuffer_Release(&view)

    def write_at(self, address, strides, table=None, scales=None):
        """Write the pixels to an address.  The caller must know that it is valid.

        Args:
            address: of the first pixel's first channel.
            strides: from a channel, a row and a column to the next one, in bytes.  They may be negative, so a flip from
                left to right is free: begin at the last column.
            table: the value of each byte in each channel: a contiguous array of `channels` times 256 items of 1, 2 or 4
                bytes.  None: bytes stay as they are.  Pending look-ups are combined with it.
            scales: the arguments with which scale() computes the table's floats.  It is used where that is quicker.
        """
        self.check()
        self.put(address, strides[0], strides[1], strides[2], table, 0, scales)

    cdef int put(self, uintptr_t address, Py_ssize_t channel, Py_ssize_t row, Py_ssize_t column, table,
                 Py_ssize_t item, scales) except -1:
        """`item`: the bytes of each item of the row; 0: as many as the table's."""
        cdef pixels_place place
        cdef Py_buffer view
        cdef pixels_scale by[3]
        cdef const pixels_scale *calculated = NULL
        cdef int status
        if scales is not None and table is not None:
            take_scales(scales, by)
            calculated = by
        place.to, place.channel, place.row, place.column = <uint8_t *>address, channel, row, column
        if table is None:
            if item > 1:
                raise ValueError(f"out has items of {item} bytes, and without a table pixels are single bytes")
            with nogil:
                status = pixels_write(self.picture, place, NULL, 1, NULL)
            return check_memory(status)
        PyObject_GetBuffer(table, &view, PyBUF_ANY_CONTIGUOUS)
        try:
            if view.itemsize not in (1, 2, 4) or view.len != 256 * self.picture.channels * view.itemsize:
                raise ValueError(
                    f"table has {view.len} bytes, of items of {view.itemsize}: it needs "
                    f"{self.channels} x 256 items of 1, 2 or 4 bytes"
                )
            if item not in (0, view.itemsize):
                raise ValueError(f"out has items of {item} bytes, and the table of {view.itemsize}")
            with nogil:
                status = pixels_write(self.picture, place, view.buf, <int>view.itemsize, calculated)
        finally:
            PyBuffer_Release(&view)
        return check_memory(status)
