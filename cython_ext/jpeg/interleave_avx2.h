/* interleave.h with AVX2. */
#pragma once
#include "interleave.h"

ALWAYS_INLINE void put_eight(uint8_t *to, __m256i pixels)
{
    const __m256i fourth = _mm256_set1_epi32((int)0xff000000u);
    __m256i old = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)to), fourth);
    _mm256_storeu_si256((__m256i *)to, _mm256_or_si256(old, pixels));
}

static void interleave_avx2(const uint8_t *const rgb[3], uint8_t *to, int n)
{
    const __m256i zero = _mm256_setzero_si256();
    int k = 0;
    for (; k + 32 <= n; k += 32) {
        __m256i bytes[3];
        for (int c = 0; c < 3; c++) bytes[c] = _mm256_loadu_si256((const __m256i *)(rgb[c] + k));
        /* The low halves of the two lanes hold pixels 0 to 7 and 16 to 23, the high halves those behind each. */
        for (int half = 0; half < 2; half++) {
            __m256i rg = half ? _mm256_unpackhi_epi8(bytes[0], bytes[1]) : _mm256_unpacklo_epi8(bytes[0], bytes[1]);
            __m256i b = half ? _mm256_unpackhi_epi8(bytes[2], zero) : _mm256_unpacklo_epi8(bytes[2], zero);
            __m256i low = _mm256_unpacklo_epi16(rg, b), high = _mm256_unpackhi_epi16(rg, b);
            put_eight(to + 4 * (k + 8 * half), _mm256_permute2x128_si256(low, high, 0x20));
            put_eight(to + 4 * (k + 8 * half + 16), _mm256_permute2x128_si256(low, high, 0x31));
        }
    }
    interleave_from(k, rgb, to, n);
}
