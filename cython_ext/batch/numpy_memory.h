/* Finds the elements of NumPy's arrays and scalars.  The structs are the heads of NumPy's objects, as its C API defines
 * them for NumPy 1 and 2.  We read them directly because an attribute takes 30 ns and the buffer protocol 100, and a
 * column has hundreds of rows.  columns.pxi first checks that they agree with NumPy's attributes. */
#pragma once
#include <Python.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    PyObject_HEAD
    char *data;
    int sides;
    Py_ssize_t *shape, *strides; /* in bytes */
    PyObject *base, *dtype;
    int flags;
} numpy_array;

enum { NUMPY_WRITEABLE = 0x0400, NUMPY_MOST_SIDES = 32 };

static inline const numpy_array *numpy_head(PyObject *array)
{
    return (const numpy_array *)array;
}

/* The element of a scalar follows the head that every object has. */
static inline const char *numpy_element(PyObject *scalar)
{
    return (const char *)scalar + sizeof(PyObject);
}

/* The bytes of an array's elements, if torch accepts the array and the elements are row-major without gaps; otherwise
 * -1.  torch refuses strides that are negative or no multiple of an element, even if a side is 1. */
static inline Py_ssize_t numpy_dense_bytes(const numpy_array *array, Py_ssize_t item)
{
    Py_ssize_t bytes = item;
    if (!(array->flags & NUMPY_WRITEABLE) || array->sides > NUMPY_MOST_SIDES) return -1;
    for (int k = array->sides - 1; k >= 0; k--) {
        Py_ssize_t stride = array->strides[k];
        if (stride != bytes && (array->shape[k] != 1 || stride < 0 || stride % item)) return -1;
        if (__builtin_mul_overflow(bytes, array->shape[k], &bytes)) return -1;
    }
    return bytes;
}

static inline int numpy_same_shape(const numpy_array *a, const numpy_array *b)
{
    if (a->sides != b->sides) return 0;
    for (int k = 0; k < a->sides; k++)
        if (a->shape[k] != b->shape[k]) return 0;
    return 1;
}

#define NUMPY_ANY_NAN(type)                        \
    for (; item; item -= sizeof(type), at += sizeof(type)) { \
        type number;                               \
        memcpy(&number, at, sizeof number);        \
        if (number != number) return 1;            \
    }                                              \
    return 0

/* Whether an element of `item` bytes contains a NaN.  It consists of floating-point numbers of `part` bytes each. */
static inline int numpy_is_nan(const char *at, Py_ssize_t item, int part)
{
    uint16_t half;
    if (part == 8) { NUMPY_ANY_NAN(double); }
    if (part == 4) { NUMPY_ANY_NAN(float); }
    memcpy(&half, at, sizeof half);
    return (half & 0x7fff) > 0x7c00;
}
