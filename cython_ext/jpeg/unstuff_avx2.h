/* unstuff.h with AVX2: 32 bytes at a time up to the next 0xff. */
#pragma once
#include "unstuff.h"

static size_t unstuff_avx2(const uint8_t **source, const uint8_t *end, uint8_t *to, int *marker)
{
    const __m256i ff = _mm256_set1_epi8(-1);
    const uint8_t *at = *source;
    uint8_t *begin = to;
    for (;;) {
        while (end - at >= 32) {
            __m256i bytes = _mm256_loadu_si256((const __m256i *)at);
            _mm256_storeu_si256((__m256i *)to, bytes);
            uint32_t found = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, ff));
            uint32_t bytes_before = _tzcnt_u32(found);
            at += bytes_before;
            to += bytes_before;
            if (found) break;
        }
        while (at < end && *at != 0xff) *to++ = *at++;
        if (at == end) {
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
