# Checks arguments: a side has 1 to 65535 pixels, a colour one number or three, and only Pillow's nearest, bilinear and
# bicubic move pixels.

cdef enum:
    LONGEST = 65535  # of a side, in pixels

cdef char *FORMAT = b"B"  # of bytes, in a buffer

cdef int check_size(object width, object height) except -1:
    if not (1 <= width <= LONGEST and 1 <= height <= LONGEST):
        raise ValueError(f"a picture of {width} x {height} pixels: each side may be 1 to {LONGEST}")
    return 0


cdef int check_memory(int status) except -1:
    if status != PIXELS_OK:
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
        raise ValueError(
            f"interpolation {interpolation} cannot be used: only Pillow's 0 (nearest), 2 (bilinear) and 3 (bicubic)"
        )
    return 0


cdef int numbers(object matrix, double *to, int n) except -1:
    cdef int k
    if len(matrix) < n:
        raise ValueError(f"{len(matrix)} coefficients are too few: {n} are needed")
    for k in range(n):
        to[k] = matrix[k]
    return 0


cdef bytes floats(object weights):
    """The bytes of a contiguous array of float32."""
    view = memoryview(weights)
    if view.format != "f" or not view.c_contiguous:
        raise ValueError(f"weights of format {view.format!r}: they should be a contiguous array of float32")
    return view.tobytes()


cdef int take_scales(scales, pixels_scale by[3]) except -1:
    """A contiguous array of 3 x 4 floats, as C has them."""
    cdef Py_buffer view
    PyObject_GetBuffer(scales, &view, PyBUF_ANY_CONTIGUOUS)
    try:
        if view.itemsize != 4 or view.len != 3 * sizeof(pixels_scale):
            raise ValueError(f"scales has {view.len} bytes, of items of {view.itemsize}: it needs 3 x 4 float32")
        memcpy(by, view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return 0
