# cython: language_level=3, boundscheck=False, wraparound=False
"""The JPEG decoder (jpeg.h) for Python.  It runs without the GIL.
Reads a file, but no FIFO or device, checks crop, `out` and filter, and keeps no buffer of a large file.
"""

import os
import stat

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_STRIDES, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t
from libc.string cimport memcpy

cdef extern from "jpeg/jpeg.h" nogil:
    enum: JPEG_OK, JPEG_NO_MEMORY
    ctypedef struct jpeg_path:
        const char *name
    ctypedef struct jpeg_header:
        int width, height, orientation
    ctypedef struct jpeg_mark:
        pass
    ctypedef enum resize_filter:
        RESIZE_BILINEAR, RESIZE_FILTERS
    ctypedef struct jpeg_request:
        int left, top, width, height, out_width, out_height, all_width, all_height, out_left, out_top
        bint is_kept, is_exact, may_go_down_first, is_mirrored, is_smooth
        resize_filter filter
        uint8_t *to
        Py_ssize_t channel, row, column
        const jpeg_mark *marks
        jpeg_mark *new_marks
    ctypedef struct jpeg_shape:
        pass
    ctypedef struct jpeg_decoder:
        pass
    const jpeg_path *jpeg_choose(const char *name)
    jpeg_decoder *jpeg_new(const jpeg_path *path)
    void jpeg_free(jpeg_decoder *decoder)
    int jpeg_open(jpeg_decoder *decoder, const uint8_t *data, size_t bytes)
    const jpeg_header *jpeg_opened(const jpeg_decoder *decoder)
    int jpeg_decode(jpeg_decoder *decoder, const jpeg_request *request)
    int jpeg_rows(const jpeg_decoder *decoder)
    int jpeg_skim(jpeg_decoder *decoder, const jpeg_request *request)
    jpeg_shape jpeg_shape_of(const jpeg_decoder *decoder)
    size_t jpeg_planes_bytes(const jpeg_shape *shape)
    int jpeg_write_planes(jpeg_decoder *decoder, uint8_t *to)
    bint jpeg_open_planes(jpeg_decoder *decoder, const jpeg_shape *shape, const uint8_t *planes)


cdef enum:
    FIRST = 1 << 20     # bytes that are read before the check that a file is a JPEG; most photographs are shorter
    KEPT = 16 << 20     # bytes: a larger buffer is not kept for the next file


def as_stream(path, int file):
    """A file object of an open file.  It has a descriptor of its own."""
    return open(path, "rb", opener=lambda *_: os.dup(file))


def paths() -> list[str]:
    """The paths that this processor has, the fastest first."""
    return [name for name in ("avx512", "avx2", "neon", "plain") if jpeg_choose(name.encode()) != NULL]


cdef class Decoder:
    """Decodes one file at a time.  It keeps its memory for the next file, unless that is large.

    Open a file (`open` or `read`), `decode` from it, and `close` it.  Not for two threads at once.
    """

    cdef jpeg_decoder *decoder
    cdef Py_buffer file         # the open file; obj NULL: none
    cdef bint is_open, is_of_planes
    cdef readonly str path
    cdef readonly object status # of the file that was read: its size in bytes, and its mtime in ns
    cdef readonly object marks  # bytes: those that the last decode() made; None if it made none
    cdef readonly object stream # the open file, if read() found no regular one; close() closes it
    cdef object buffer          # the bytearray that `read` reads into

    def __cinit__(self, path=None):
        cdef const jpeg_path *chosen
        cdef bytes name
        if path is None:
            chosen = jpeg_choose(NULL)
        else:
            name = path.encode()
            chosen = jpeg_choose(name)
            if chosen == NULL:
                raise ValueError(f"this processor has no path {path!r}: one of {paths()}")
        self.decoder = jpeg_new(chosen)
        if self.decoder == NULL:
            raise MemoryError()
        self.path = chosen.name.decode()
        self.buffer = bytearray()

    def __dealloc__(self):
        if self.is_open:
            PyBuffer_Release(&self.file)
        jpeg_free(self.decoder)

    def close(self):
        """Release the file's bytes.  Without an open file, nothing happens."""
        if self.is_open:
            self.is_open = self.is_of_planes = False
            PyBuffer_Release(&self.file)
        if len(self.buffer) > KEPT:
            self.buffer = bytearray()
        if self.stream is not None:
            stream, self.stream = self.stream, None
            stream.close()

    cdef Py_ssize_t read_up_to(self, int file, Py_ssize_t begin, Py_ssize_t end) except -1:
        """Read bytes `begin` to `end` of a file into the buffer, or fewer if it ends; returns where they end."""
        cdef Py_ssize_t more = 1
        if len(self.buffer) < end:
            larger = bytearray(end + end // 4)
            larger[:begin] = self.buffer[:begin]
            self.buffer = larger
        with memoryview(self.buffer) as view:
            while begin < end and more:
                more = os.readv(file, [view[begin:end]])
                begin += more
        return begin

    def open(self, data, Py_ssize_t bytes=-1, status=None):
        """Read a file's header.

        Args:
            data: the file's bytes, as any object with a buffer.
            bytes: how many of them are the file; all by default.
            status: of the file, if it was read early: its size in bytes, and its mtime in ns.

        Returns:
            Its width, height and EXIF orientation (1 to 8; 0: only Pillow can read it); None if this decoder does not
            take the file.
        """
        cdef int result
        cdef const jpeg_header *header
        self.close()
        if status is not None:
            self.status = status
        PyObject_GetBuffer(data, &self.file, PyBUF_SIMPLE)
        self.is_open = True
        if bytes < 0 or bytes > self.file.len:
            bytes = self.file.len
        with nogil:
            result = jpeg_open(self.decoder, <const uint8_t *>self.file.buf, bytes)
        if result != JPEG_OK:
            self.close()
            return None
        header = jpeg_opened(self.decoder)
        return header.width, header.height, header.orientation

    def read(self, path):
        """Read a file by its path, and open it; returns as open().  Raises OSError if it cannot be read.

        What is no regular file is not read.  It becomes `stream`, because the writer of a FIFO would notice if the file
        were closed and opened again, and its data would be lost.
        """
        cdef Py_ssize_t room, got
        self.close()
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(file)
            self.status = status.st_size, status.st_mtime_ns
            if not stat.S_ISREG(status.st_mode):
                self.stream = as_stream(path, file)
                return None
            room = status.st_size
            got = self.read_up_to(file, 0, min(room, FIRST))
            if got < 2 or self.buffer[0] != 0xff or self.buffer[1] != 0xd8:     # the first bytes of each JPEG
                return None
            got = self.read_up_to(file, got, room)
        finally:
            os.close(file)
        return self.open(self.buffer, got)

    cdef int place(self, crop, jpeg_request *request) except -1:
        """Write the wanted part into a request, without marks; raises if it is not inside the picture."""
        cdef const jpeg_header *header = jpeg_opened(self.decoder)
        if not self.is_open:
            raise ValueError("no file is open: open or read one first")
        request.left, request.top, request.width, request.height = crop
        request.marks, request.new_marks = NULL, NULL
        request.all_width, request.all_height, request.out_left, request.out_top = 0, 0, 0, 0
        if not (0 <= request.left < header.width and 0 < request.width <= header.width - request.left
                and 0 <= request.top < header.height and 0 < request.height <= header.height - request.top):
            raise ValueError(f"crop {crop} is not inside a picture of {header.width} x {header.height}")
        return 0

    def planes_bytes(self):
        """The number of bytes that planes() returns for the open file."""
        cdef jpeg_shape shape
        if not self.is_open:
            raise ValueError("no file is open: open or read one first")
        shape = jpeg_shape_of(self.decoder)
        return sizeof(jpeg_shape) + jpeg_planes_bytes(&shape)

    def planes(self):
        """Read the open file whole, and keep it, as decode(keep=True) does.

        Returns:
            Its samples, for open_planes() of any decoder; None if the file cannot be read to its end.
        """
        cdef int result
        cdef jpeg_shape shape
        cdef uint8_t *to
        cdef bytes made = PyBytes_FromStringAndSize(NULL, self.planes_bytes())
        if self.is_of_planes:
            raise ValueError("these are planes already: open a file")
        to = <uint8_t *>PyBytes_AS_STRING(made)
        shape = jpeg_shape_of(self.decoder)
        memcpy(to, &shape, sizeof(jpeg_shape))
        with nogil:
            result = jpeg_write_planes(self.decoder, to + sizeof(jpeg_shape))
        return made if result == JPEG_OK else None

    def open_planes(self, data, Py_ssize_t at=0, Py_ssize_t bytes=-1):
        """Open the result of planes(), in place of a file.  It is read in place, until another file is opened.

        Args:
            data: any object with a buffer that contains it.
            at: its offset in the buffer.
            bytes: its size; by default everything from `at` on.

        Returns:
            As open(); None if these are no planes.
        """
        cdef jpeg_shape shape
        cdef const jpeg_header *header
        cdef const uint8_t *begin
        cdef size_t room
        self.close()
        PyObject_GetBuffer(data, &self.file, PyBUF_SIMPLE)
        self.is_open = self.is_of_planes = True
        if bytes < 0:
            bytes = self.file.len - at
        if 0 <= at <= self.file.len and <Py_ssize_t>sizeof(jpeg_shape) <= bytes <= self.file.len - at:
            begin = <const uint8_t *>self.file.buf + at
            memcpy(&shape, begin, sizeof(jpeg_shape))
            room = jpeg_planes_bytes(&shape)
            if room and room + sizeof(jpeg_shape) == <size_t>bytes:
                jpeg_open_planes(self.decoder, &shape, begin + sizeof(jpeg_shape))
                header = jpeg_opened(self.decoder)
                return header.width, header.height, header.orientation
        self.close()
        return None

    def skim(self, crop):
        """Read the open file down to the end of a part, and decode nothing: the least that decoding can take.

        Args:
            crop: left, top, width and height, inside the picture.

        Returns:
            Whether the file is whole.
        """
        cdef jpeg_request request
        cdef int result
        self.place(crop, &request)
        if self.is_of_planes:
            raise ValueError("planes have no entropy-coded data: open a file")
        request.is_smooth = True
        with nogil:
            result = jpeg_skim(self.decoder, &request)
        return result == JPEG_OK

    def decode(self, crop, out, bint exact=True, bint down_first=True, bint smooth=True, bytes marks=None,
               bint marking=False, window=None, int filter=RESIZE_BILINEAR, bint keep=False, bint mirrored=False):
        """Decode a part of the open file.

        Args:
            crop: left, top, width and height, inside the picture.
            out: a writable array of bytes of shape (3, height, width), with any strides; the part is resized to it.
            exact: give Pillow's pixels, bit for bit; otherwise it is faster, and within a shade of them.
            down_first: resize as Pillow does since its version 13, which resizes some pictures down before across.
            smooth: upsample chroma as Pillow does; otherwise repeat it.
            marks: of the same file, from an earlier decode().  Each row of the crop is read from its mark to the crop's
                right end, and nothing checks whether the file is complete.
            window: left, top, width and height: the part is resized to that width and height, and `out` is the section
                of it that begins at left and top.  Always exact.
            filter: for resizing, 0 to 5, as Pillow's Resampling numbers them.
            keep: read the file whole, and keep it until another file is opened, because more parts will be wanted.
                Marks are neither used nor made.
            mirrored: exchange left and right before the part is resized.  A flip after it is free: give an `out` whose
                columns are reversed.
            marking: make `marks` of all rows, so the whole file is read; they are None if it can have none.

        Returns:
            Whether it succeeded.  If not, `out` is unchanged.
        """
        cdef Py_buffer view
        cdef jpeg_request request
        cdef int result
        cdef Py_ssize_t bytes_of_marks
        cdef object new_marks = None
        self.place(crop, &request)
        if not 0 <= filter < RESIZE_FILTERS:
            raise ValueError(f"there is no filter {filter}: 0 to {RESIZE_FILTERS - 1}, as Pillow numbers them")
        request.filter = <resize_filter>filter
        self.marks = None
        bytes_of_marks = 0 if self.is_of_planes else jpeg_rows(self.decoder) * sizeof(jpeg_mark)
        if marks is not None and bytes_of_marks and PyBytes_GET_SIZE(marks) == bytes_of_marks:
            request.marks = <const jpeg_mark *>PyBytes_AS_STRING(marks)
        elif marking and bytes_of_marks:
            new_marks = PyBytes_FromStringAndSize(NULL, bytes_of_marks)
            request.new_marks = <jpeg_mark *>PyBytes_AS_STRING(new_marks)
        PyObject_GetBuffer(out, &view, PyBUF_STRIDES | PyBUF_WRITABLE)
        try:
            if view.itemsize != 1 or view.ndim != 3 or view.shape[0] != 3:
                raise ValueError("out is no array of bytes of shape (3, height, width)")
            if not 0 < view.shape[1] <= 65535 or not 0 < view.shape[2] <= 65535:
                raise ValueError(f"out is {view.shape[2]} x {view.shape[1]}: each may be 1 to 65535")
            request.out_height, request.out_width = <int>view.shape[1], <int>view.shape[2]
            if window is not None:
                request.out_left, request.out_top, request.all_width, request.all_height = window
                if not (0 <= request.out_left <= request.all_width - request.out_width and request.all_width <= 65535
                        and 0 <= request.out_top <= request.all_height - request.out_height
                        and request.all_height <= 65535):
                    raise ValueError(f"out, {view.shape[2]} x {view.shape[1]}, is not inside the window {window}")
            request.to = <uint8_t *>view.buf
            request.channel, request.row, request.column = view.strides[0], view.strides[1], view.strides[2]
            request.is_kept, request.is_mirrored = keep, mirrored
            request.is_exact, request.may_go_down_first, request.is_smooth = exact, down_first, smooth
            with nogil:
                result = jpeg_decode(self.decoder, &request)
        finally:
            PyBuffer_Release(&view)
        if result == JPEG_NO_MEMORY:
            raise MemoryError(f"no memory to decode {request.width} x {request.height} pixels")
        if result == JPEG_OK and not keep:
            self.marks = new_marks
        return result == JPEG_OK
