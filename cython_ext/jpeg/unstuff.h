/* Entropy-coded data without its stuffing, so that the bit reader need not look at bytes.
 * Source: ITU-T T.81, F.1.2.3 (a zero byte behind each 0xff of the data), B.1.1.2 (fill bytes before a marker). */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* What stands at an 0xff: the data go on (1), or not (0).  `marker` is what it was, 0 at the end of the file. */
static inline int pass_ff(const uint8_t **source, const uint8_t *end, uint8_t **to, int *marker)
{
    const uint8_t *at = *source + 1;
    while (at < end && *at == 0xff) at++;
    *marker = at < end ? *at : 0;
    *source = at < end ? at + 1 : end;
    if (at == end || *marker) return 0;
    *(*to)++ = 0xff;
    return 1;
}

/* Copies up to the next marker; `source` is then behind it.  Returns how many bytes there were.  At `to` is room for as
 * many as the source has, and 32 more. */
static inline size_t unstuff(const uint8_t **source, const uint8_t *end, uint8_t *to, int *marker)
{
    const uint8_t *at = *source;
    uint8_t *begin = to;
    for (;;) {
        const uint8_t *ff = at < end ? memchr(at, 0xff, (size_t)(end - at)) : NULL;
        size_t bytes = (size_t)((ff ? ff : end) - at);
        if (bytes) memcpy(to, at, bytes);
        to += bytes;
        at += bytes;
        if (!ff) {
            *marker = 0;
            *source = end;
            break;
        }
        if (!pass_ff(&at, end, &to, marker)) {
            *source = at;
            break;
        }
    }
    return (size_t)(to - begin);
}
