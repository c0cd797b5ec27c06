/* The part of DLPack's C interface that reads and makes tensors.  One call of 40 ns describes a tensor; torch's
 * attributes take five times as long.  One call of 270 ns makes a tensor over memory of ours; numpy's and torch's own
 * ways take 600 and more; they are used for torch < 2.10, which does not have this interface.
 * Source: the DLPack standard, version 1 (C exchange API); torch has it as Tensor.__dlpack_c_exchange_api__. */
#pragma once
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct { uint32_t major, minor; } dlpack_version;
typedef struct { uint8_t code, bits; uint16_t lanes; } dlpack_dtype;

typedef struct {
    void *data;
    struct { int32_t type, id; } device; /* type 1: the CPU */
    int32_t ndim;
    dlpack_dtype dtype;
    int64_t *shape, *strides; /* in elements; strides may be NULL: row-major */
    uint64_t byte_offset;
} dlpack_tensor;

typedef struct dlpack_managed {
    dlpack_version version;
    void *owner;
    void (*drop)(struct dlpack_managed *);
    uint64_t flags;
    dlpack_tensor tensor;
} dlpack_managed;

typedef struct dlpack_api {
    dlpack_version version;
    struct dlpack_api *before;
    int (*allocate)(dlpack_tensor *, void **, void *, void (*)(void *, const char *, const char *));
    int (*managed_from_object)(void *, void **);
    int (*make)(dlpack_managed *, PyObject **out); /* 0, or -1 with a Python exception set */
    int (*read)(PyObject *, dlpack_tensor *out);   /* the same */
    int (*stream)(int32_t, int32_t, void **);
} dlpack_api;

enum { DLPACK_CPU = 1 };
enum { DLPACK_FLOAT = 2, DLPACK_COMPLEX = 5 };

/* The interface in a capsule of torch's; NULL if the capsule holds something else, or another version. */
static inline const dlpack_api *dlpack_in(PyObject *capsule)
{
    if (!PyCapsule_IsValid(capsule, "dlpack_exchange_api")) return NULL;
    const dlpack_api *api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    return api->version.major == 1 && api->make && api->read ? api : NULL;
}

/* The bytes of all elements; at most PTRDIFF_MAX, because an expanded tensor may have any number of elements. */
static inline size_t dlpack_bytes(const dlpack_tensor *tensor)
{
    size_t bytes = (size_t)tensor->dtype.bits * tensor->dtype.lanes / 8;
    int over = 0;
    for (int32_t k = 0; k < tensor->ndim; k++) {
        if (!tensor->shape[k]) return 0;
        over |= __builtin_mul_overflow(bytes, (size_t)tensor->shape[k], &bytes);
    }
    return over || bytes > PTRDIFF_MAX ? PTRDIFF_MAX : bytes;
}

/* The bytes from the first element to the last, of which views may have more or fewer than all their elements. */
static inline size_t dlpack_span(const dlpack_tensor *tensor)
{
    size_t bytes = (size_t)tensor->dtype.bits * tensor->dtype.lanes / 8, last = 0, step;
    int over = 0;
    for (int32_t k = 0; k < tensor->ndim; k++) {
        if (!tensor->shape[k]) return 0;
        over |= __builtin_mul_overflow((size_t)tensor->shape[k] - 1, (size_t)tensor->strides[k], &step);
        over |= __builtin_add_overflow(last, step, &last);
    }
    over |= __builtin_add_overflow(last, 1, &last);
    over |= __builtin_mul_overflow(last, bytes, &bytes);
    return over || bytes > PTRDIFF_MAX ? PTRDIFF_MAX : bytes;
}

static inline char *dlpack_data(const dlpack_tensor *tensor)
{
    return (char *)tensor->data + tensor->byte_offset;
}

/* Whether a tensor is only elements in this process's memory.  If so, `out` describes them, for as long as the tensor
 * lives.  Sparse, nested, quantised and empty tensors are not, nor tensors on devices.  Never raises. */
static inline int dlpack_read(const dlpack_api *api, PyObject *tensor, dlpack_tensor *out)
{
    if (!api) return 0;
    if (api->read(tensor, out)) {
        PyErr_Clear();
        return 0;
    }
    return out->device.type == DLPACK_CPU && out->data;
}

/* Whether torch may store the negatives of the elements, as it does for the imaginary parts of conjugates. */
static inline int dlpack_may_be_negated(const dlpack_tensor *tensor)
{
    return tensor->dtype.code == DLPACK_FLOAT || tensor->dtype.code == DLPACK_COMPLEX;
}

/* Whether both have the same dtype and shape. */
static inline int dlpack_alike(const dlpack_tensor *a, const dlpack_tensor *b)
{
    if (a->ndim != b->ndim) return 0;
    if (a->dtype.code != b->dtype.code || a->dtype.bits != b->dtype.bits || a->dtype.lanes != b->dtype.lanes) return 0;
    for (int32_t k = 0; k < a->ndim; k++)
        if (a->shape[k] != b->shape[k]) return 0;
    return 1;
}

/* Whether the elements are row-major, without gaps.  The stride of a dimension of size 1 does not matter. */
static inline int dlpack_is_contiguous(const dlpack_tensor *tensor)
{
    int64_t expected = 1;
    if (!tensor->strides) return 1;
    for (int32_t k = tensor->ndim - 1; k >= 0; k--) {
        if (tensor->shape[k] != 1 && tensor->strides[k] != expected) return 0;
        expected *= tensor->shape[k];
    }
    return 1;
}

#if PY_VERSION_HEX >= 0x030D0000
#define DLPACK_FINALIZING Py_IsFinalizing()
#else
#define DLPACK_FINALIZING _Py_IsFinalizing()
#endif

/* Release the owner of some memory, because the last tensor over it has died.  Any thread may call this, with or
 * without the GIL.  While the interpreter exits, a thread that asks for the GIL would end (since Python 3.14: sleep for
 * ever) in the middle of torch's destructor.  So then the owner is not released, and lives until the process ends. */
static void dlpack_drop(dlpack_managed *managed)
{
    PyObject *owner = managed->owner;
    free(managed);
    if (!Py_IsInitialized() || (DLPACK_FINALIZING && !PyGILState_Check())) return;
    PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF(owner);
    PyGILState_Release(state);
}

/* A description of a tensor at `data` that keeps `owner` alive.  The caller fills in the shape and the strides, and
 * gives it to dlpack_make or to dlpack_drop.  NULL: no memory. */
static inline dlpack_managed *dlpack_describe(const dlpack_api *api, PyObject *owner, void *data, dlpack_dtype dtype,
                                              int32_t ndim)
{
    dlpack_managed *managed = calloc(1, sizeof(dlpack_managed) + 2 * ndim * sizeof(int64_t));
    if (!managed) return NULL;
    Py_INCREF(owner);
    if (api) managed->version = api->version;
    managed->owner = owner;
    managed->drop = dlpack_drop;
    managed->tensor = (dlpack_tensor){
        .data = data, .device = {DLPACK_CPU, 0}, .ndim = ndim, .dtype = dtype,
        .shape = (int64_t *)(managed + 1), .strides = (int64_t *)(managed + 1) + ndim,
    };
    return managed;
}

/* The tensor; NULL with a Python exception set.  If torch fails, it may or may not have freed `managed`; we cannot
 * know, so nothing is freed here. */
static inline PyObject *dlpack_make(const dlpack_api *api, dlpack_managed *managed)
{
    PyObject *tensor = NULL;
    return api->make(managed, &tensor) ? NULL : tensor;
}
