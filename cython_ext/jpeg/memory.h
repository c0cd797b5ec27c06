/* Buffers that only grow: one that is too small is replaced by one with a quarter more room than is needed. */
#pragma once
#include <stddef.h>
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
