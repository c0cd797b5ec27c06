/* Removes the stuffing (the zero after each 0xff) from entropy-coded data and finds the marker that ends it, so that
 * the bit reader need not look at bytes.
 *
 * Source: ITU-T T.81, F.1.2.3 (a zero byte behind each 0xff of the data), B.1.1.2 (fill bytes before a marker). */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* At an 0xff: returns 1 if the data continue, otherwise 0, with the marker in `marker`.  `marker` is 0 at the end of
 * the file, and also for fill bytes in the data, which no file may have and of which libjpeg makes broken pixels. */
static inline int pass_ff(const uint8_t **source, const uint8_t *end, uint8_t **to, int *marker)
{
    const uint8_t *first = *source + 1, *at = first;
    while (at < end && *at == 0xff) at++;
    int found = at < end ? *at : 0;
    *source = at < end ? at + 1 : end;
    if (at == end || at > first || found) {
        *marker = found;
        return 0;
    }
    *(*to)++ = 0xff;
    return 1;
}

/* Copies data up to the next marker and sets `source` after it, or copies `room` bytes.  Returns the number of bytes.
 * `to` has room for SCAN_SPARE more. */
static inline size_t unstuff(const uint8_t **source, const uint8_t *end, uint8_t *to, size_t room, int *marker)
{
    uint8_t *begin = to;
    for (*marker = SCAN_MORE; (size_t)(to - begin) < room;) {
        size_t left = room - (size_t)(to - begin), available = (size_t)(end - *source);
        size_t bytes = left < available ? left : available;
        const uint8_t *ff = bytes ? memchr(*source, 0xff, bytes) : NULL;
        if (ff) bytes = (size_t)(ff - *source);
        if (bytes) memcpy(to, *source, bytes);
        to += bytes;
        *source += bytes;
        if (*source == end) *marker = 0;
        if (*source == end || (ff && !pass_ff(source, end, &to, marker))) break;
    }
    return (size_t)(to - begin);
}

/* The place in the file after that many bytes of data without their stuffing. */
static inline const uint8_t *beyond(const uint8_t *source, const uint8_t *end, int64_t bytes)
{
    while (bytes > 0 && source < end) {
        int64_t span = end - source < bytes ? end - source : bytes;
        const uint8_t *ff = memchr(source, 0xff, (size_t)span);
        if (!ff) return source + span;
        bytes -= ff - source + 1;
        source = end - ff > 2 ? ff + 2 : end; /* skips the zero, too */
    }
    return source;
}
