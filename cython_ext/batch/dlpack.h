/* The part of DLPack's C interface that reads and makes tensors: one call of 40 ns says what a tensor is, where torch's
 * attributes take five times as long, and one of 270 ns makes one over memory of ours, where numpy's and torch's ways
 * take 600 and more.  torch < 2.10 has the older interface alone, by capsules: that makes tensors too, in 1 us.
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

typedef struct dlpack_older { /* before version 1 */
    dlpack_tensor tensor;
    void *owner;
    void (*drop)(struct dlpack_older *);
} dlpack_older;

typedef struct dlpack_api {
    dlpack_version version;
    struct dlpack_api *older;
    int (*allocate)(dlpack_tensor *, void **, void *, void (*)(void *, const char *, const char *));
    int (*managed_from_object)(void *, void **);
    int (*make)(dlpack_managed *, PyObject **out); /* 0, or -1 with a Python exception set */
    int (*read)(PyObject *, dlpack_tensor *out);   /* the same */
    int (*stream)(int32_t, int32_t, void **);
} dlpack_api;

enum { DLPACK_CPU = 1 };
enum { DLPACK_FLOAT = 2, DLPACK_COMPLEX = 5 };

/* The interface that a capsule of torch's holds; NULL where there is none, or one of another kind. */
static inline const dlpack_api *dlpack_in(PyObject *capsule)
{
    if (!PyCapsule_IsValid(capsule, "dlpack_exchange_api")) return NULL;
    const dlpack_api *api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    return api->version.major == 1 && api->make && api->read ? api : NULL;
}

/* PTRDIFF_MAX where it would be more: an expanded tensor may have more elements than there is memory. */
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

static inline char *dlpack_data(const dlpack_tensor *tensor)
{
    return (char *)tensor->data + tensor->byte_offset;
}

/* Whether a tensor is nothing but elements in this process's memory; `out` then says which, as long as it lives.  Not
 * so: sparse, nested and quantised tensors, those on devices and those without memory, empty ones too.  Never raises. */
static inline int dlpack_read(const dlpack_api *api, PyObject *tensor, dlpack_tensor *out)
{
    if (!api) return 0;
    if (api->read(tensor, out)) {
        PyErr_Clear();
        return 0;
    }
    return out->device.type == DLPACK_CPU && out->data;
}

/* Whether torch may hold the negatives of the elements for them: the imaginary parts of conjugates. */
static inline int dlpack_may_be_negated(const dlpack_tensor *tensor)
{
    return tensor->dtype.code == DLPACK_FLOAT || tensor->dtype.code == DLPACK_COMPLEX;
}

/* Both of one dtype and one shape. */
static inline int dlpack_alike(const dlpack_tensor *a, const dlpack_tensor *b)
{
    if (a->ndim != b->ndim) return 0;
    if (a->dtype.code != b->dtype.code || a->dtype.bits != b->dtype.bits || a->dtype.lanes != b->dtype.lanes) return 0;
    for (int32_t k = 0; k < a->ndim; k++)
        if (a->shape[k] != b->shape[k]) return 0;
    return 1;
}

/* Row-major, without gaps; the stride of a dimension of size 1 says nothing. */
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

/* The last tensor over some memory has died: let go of the memory's owner.  In any thread, with the GIL or without it.
 * Where the interpreter is going down, a thread that asks for the GIL is ended (since Python 3.14: sleeps for ever) in
 * the middle of torch's destructor: then the owner stays, and goes with the process. */
static void dlpack_drop(dlpack_managed *managed)
{
    PyObject *owner = managed->owner;
    free(managed);
    if (!Py_IsInitialized() || (DLPACK_FINALIZING && !PyGILState_Check())) return;
    PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF(owner);
    PyGILState_Release(state);
}

/* Room for a description of a tensor at `data` which keeps `owner` alive; its shape and strides are to be filled in.
 * To be given to dlpack_make, or to dlpack_drop.  NULL: no memory. */
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

/* The tensor; NULL with a Python exception set.  What torch does not take it lets go of, or loses: there is no telling. */
static inline PyObject *dlpack_make(const dlpack_api *api, dlpack_managed *managed)
{
    PyObject *tensor = NULL;
    return api->make(managed, &tensor) ? NULL : tensor;
}

#define DLPACK_OLDER "dltensor" /* torch renames a capsule that it has taken the tensor from */

/* What a capsule of the older interface describes, as long as the capsule lives; -1 with a Python exception set. */
static inline int dlpack_read_older(PyObject *capsule, dlpack_tensor *out)
{
    dlpack_older *older = PyCapsule_GetPointer(capsule, DLPACK_OLDER);
    if (!older) return -1;
    *out = older->tensor;
    return 0;
}

static void dlpack_drop_older(dlpack_older *older)
{
    dlpack_managed *managed = older->owner;
    free(older);
    dlpack_drop(managed);
}

/* dlpack_make by the older interface; `from_dlpack` is torch's. */
static inline PyObject *dlpack_make_older(PyObject *from_dlpack, dlpack_managed *managed)
{
    dlpack_older *older = malloc(sizeof *older);
    if (!older) {
        dlpack_drop(managed);
        return PyErr_NoMemory();
    }
    *older = (dlpack_older){managed->tensor, managed, dlpack_drop_older};
    PyObject *capsule = PyCapsule_New(older, DLPACK_OLDER, NULL);
    PyObject *tensor = capsule ? PyObject_CallFunctionObjArgs(from_dlpack, capsule, NULL) : NULL;
    if (!capsule || PyCapsule_IsValid(capsule, DLPACK_OLDER)) dlpack_drop_older(older); /* torch has not taken it */
    Py_XDECREF(capsule);
    return tensor;
}
