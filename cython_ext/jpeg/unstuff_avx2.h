/* unstuff.h with AVX2: 32 bytes at a time up to the next 0xff. */
#pragma once
#include "unstuff.h"

static size_t unstuff_avx2(const uint8_t **source, const uint8_t *end, uint8_t *to, size_t room, int *marker)
{
    const __m256i ff = _mm256_set1_epi8(-1);
    const uint8_t *at = *source;
    uint8_t *begin = to;
    for (*marker = SCAN_MORE; (size_t)(to - begin) < room;) {
        if (end - at >= 32) {
            /* The processor's own prefetching stops at the end of each piece. */
            _mm_prefetch((const char *)at + 1024, _MM_HINT_T0);
            __m256i bytes = _mm256_loadu_si256((const __m256i *)at);
            _mm256_storeu_si256((__m256i *)to, bytes); /* within SCAN_SPARE */
            uint32_t found = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, ff));
            if (!found) {
                /* Not by a count of zeros: the next load would wait for it, and unstuffing would take twice as long. */
                at += 32;
                to += 32;
                continue;
            }
            uint32_t before = _tzcnt_u32(found);
            at += before;
            to += before;
        }
        while (at < end && *at != 0xff) *to++ = *at++; /* less than 32 */
        if (at == end) *marker = 0;
        if (at == end || !pass_ff(&at, end, &to, marker)) break;
    }
    *source = at;
    return (size_t)(to - begin);
}
