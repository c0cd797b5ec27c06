/* Copies past the cache: streaming stores, which do not read the destination first.  gather.pxi decides which copies
 * use them.
 *
 * A plain store to a line that is not in the cache makes the processor fetch the line before it is overwritten, and a
 * slot that is larger than the cache is never in it.  Streaming stores skip the fetch: from a source in the cache,
 * 37 GB/s against memcpy's 10 on one core, less where memory is the limit (python -m bench transport prints both).  For
 * batches that fit the cache they would be a loss, because the trainer reads them next.
 */
#pragma once
#include <stddef.h>
#include <string.h>

#if defined(__x86_64__)
#include <emmintrin.h>

static inline void stream_copy(char *to, const char *from, size_t bytes)
{
    size_t head = -(size_t)to & 15; /* streaming stores are whole 16-byte lines */
    if (head > bytes) head = bytes;
    memcpy(to, from, head);
    to += head; from += head; bytes -= head;
    for (; bytes >= 64; to += 64, from += 64, bytes -= 64) {
        __m128i a = _mm_loadu_si128((const __m128i *)from), b = _mm_loadu_si128((const __m128i *)(from + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(from + 32)), d = _mm_loadu_si128((const __m128i *)(from + 48));
        _mm_stream_si128((__m128i *)to, a);
        _mm_stream_si128((__m128i *)(to + 16), b);
        _mm_stream_si128((__m128i *)(to + 32), c);
        _mm_stream_si128((__m128i *)(to + 48), d);
    }
    memcpy(to, from, bytes);
}

/* Streaming stores are weakly ordered: without this fence the trainer could see READY before the bytes. */
static inline void stream_drain(void) { _mm_sfence(); }
#else
static inline void stream_copy(char *to, const char *from, size_t bytes) { memcpy(to, from, bytes); }
static inline void stream_drain(void) {}
#endif
