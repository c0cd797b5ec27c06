/* Buffers that only grow: one that is too small is replaced by one with a quarter more room than is needed. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64 };

static inline size_t up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

/* Make room for this many bytes.  A buffer that is too small loses its contents, and a new one is all zeros.  Returns 0
 * if there is no memory. */
static inline int make_room(void **buffer, size_t *room, size_t bytes)
{
    if (bytes <= *room) return 1;
    bytes = up(bytes + bytes / 4, ALIGN);
    free(*buffer);
    *buffer = aligned_alloc(ALIGN, bytes);
    *room = *buffer ? bytes : 0;
    if (*buffer) memset(*buffer, 0, bytes);
    return *buffer != NULL;
}

/* A distance between lines that are written one below the other.  If it were a multiple of many cache lines, they would
 * all fall into the same few sets of the cache. */
static inline size_t apart(size_t bytes) { return up(bytes, 2 * ALIGN) + ALIGN; }

/* Deals out a buffer; with `base` NULL it only counts. */
typedef struct {
    uint8_t *base;
    size_t used;
} dealer;

static inline void *deal(dealer *from, size_t bytes)
{
    void *to = from->base ? from->base + from->used : NULL;
    from->used += up(bytes, ALIGN);
    return to;
}
