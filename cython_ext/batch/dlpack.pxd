"""dlpack.h for Cython: torch's tensors, read and made in C."""

from libc.stdint cimport int64_t

cdef extern from "batch/dlpack.h":
    enum: DLPACK_COMPLEX
    ctypedef struct dlpack_dtype:
        int code, bits, lanes
    ctypedef struct dlpack_tensor:
        int ndim
        dlpack_dtype dtype
        int64_t *shape
        int64_t *strides
    ctypedef struct dlpack_managed:
        dlpack_tensor tensor
    ctypedef struct dlpack_api:
        pass
    const dlpack_api *dlpack_in(object capsule)
    bint dlpack_read(const dlpack_api *api, object tensor, dlpack_tensor *out)
    bint dlpack_may_be_negated(const dlpack_tensor *tensor)
    bint dlpack_alike(const dlpack_tensor *a, const dlpack_tensor *b)
    bint dlpack_is_contiguous(const dlpack_tensor *tensor)
    size_t dlpack_span(const dlpack_tensor *tensor)
    size_t dlpack_bytes(const dlpack_tensor *tensor)
    char *dlpack_data(const dlpack_tensor *tensor)
    dlpack_managed *dlpack_describe(const dlpack_api *api, object owner, void *data, dlpack_dtype dtype, int ndim)
    object dlpack_make(const dlpack_api *api, dlpack_managed *managed)
    int dlpack_read_older(object capsule, dlpack_tensor *out) except -1
    object dlpack_make_older(object from_dlpack, dlpack_managed *managed)
    void dlpack_drop(dlpack_managed *managed)


cdef inline const dlpack_api *dlpack_of(object tensor_class) except? NULL:
    """The table of functions with which C reads and makes tensors (torch >= 2.10); NULL if torch has none."""
    return dlpack_in(getattr(tensor_class, "__dlpack_c_exchange_api__", None))
