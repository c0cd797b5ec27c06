# What is done to a sample's row without a Picture: bytes become numbers, and a box is overwritten.

def scale(planes, out, scales):
    """Bytes to numbers: of each channel (byte * times / by - mean) / deviation, rounded to float32 after each step.

    Args:
        planes: an array of bytes of shape (3, height, width).
        out: a writable array of float32 of that shape.
        scales: a contiguous array of float32 of shape (3, 4): times, by, mean and deviation of each channel.

    Returns:
        Whether it succeeded.  It cannot if the pixels of an array are not side by side in each row.

    Raises:
        ValueError: an array has another shape or other items.
    """
    cdef Py_buffer source, to
    cdef pixels_scale by[3]
    cdef pixels_numbers plan
    cdef const uint8_t *data
    cdef uint8_t *row
    cdef Py_ssize_t c, y
    take_scales(scales, by)
    PyObject_GetBuffer(planes, &source, PyBUF_STRIDES)
    try:
        PyObject_GetBuffer(out, &to, PyBUF_STRIDES | PyBUF_WRITABLE)
        try:
            if source.ndim != 3 or to.ndim != 3 or source.itemsize != 1 or to.itemsize != 4 or source.shape[0] != 3:
                raise ValueError("planes and out are no arrays of shape (3, height, width), of bytes and of float32")
            for c in range(3):
                if source.shape[c] != to.shape[c]:
                    raise ValueError("planes and out have not the same shape")
            if source.strides[2] != 1 or to.strides[2] != 4:
                return False
            with nogil:
                for c in range(3):
                    pixels_plan_numbers(&plan, pixels_choose(NULL), &by[c])
                    for y in range(source.shape[1]):
                        data = <const uint8_t *>source.buf + c * source.strides[0] + y * source.strides[1]
                        row = <uint8_t *>to.buf + c * to.strides[0] + y * to.strides[1]
                        pixels_calculate(&plan, data, <int>source.shape[2], <float *><void *>row)
        finally:
            PyBuffer_Release(&to)
    finally:
        PyBuffer_Release(&source)
    return True


def erase(row, box, value):
    """Overwrite a box of a finished row, as RandomErasing does.

    Args:
        row: a writable array of shape (channels, height, width), with any strides, of items of 1, 2 or 4 bytes.
        box: left, top, width and height, inside the row.
        value: a contiguous array of items of the same size: one item, one for each channel, or of the box's shape
            (channels, height, width).

    Raises:
        ValueError: the box is not inside, or an array has another shape or other items.
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
            if not (0 <= left <= to.shape[2] - width and 0 <= width
                    and 0 <= top <= to.shape[1] - height and 0 <= height):
                raise ValueError(f"box {box} is not inside a row of {to.shape[2]} x {to.shape[1]} pixels")
            items = source.len // source.itemsize
            if source.itemsize != to.itemsize or items not in (1, channels, channels * height * width):
                raise ValueError(
                    f"{items} values of {source.itemsize} bytes: there may be 1, {channels} or "
                    f"{channels * height * width}, of {to.itemsize} bytes"
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
