/* upsample.h with AVX2: 16 samples of chroma at a time. */
#pragma once
#include <stdint.h>

ALWAYS_INLINE __m256i widen(const uint8_t *at)
{
    return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)at));
}

ALWAYS_INLINE __m256i three(__m256i v) { return _mm256_add_epi16(_mm256_add_epi16(v, v), v); }

/* Bytes of words, where even and odd ones alternate. */
ALWAYS_INLINE void store_by_turns(uint8_t *to, __m256i even, __m256i odd)
{
    _mm256_storeu_si256((__m256i *)to, _mm256_or_si256(even, _mm256_slli_epi16(odd, 8)));
}

static void upsample_both_avx2(const uint8_t *near, const uint8_t *far, int bias, uint8_t *to, int n)
{
    const __m256i round = _mm256_set1_epi16((short)bias);
    for (int k = 0; k < n; k += 16) {
        __m256i above = _mm256_add_epi16(three(widen(near + k - 1)), widen(far + k - 1));
        __m256i here = _mm256_add_epi16(three(widen(near + k)), widen(far + k));
        __m256i below = _mm256_add_epi16(three(widen(near + k + 1)), widen(far + k + 1));
        __m256i most = _mm256_add_epi16(three(here), round);
        store_by_turns(to + 2 * k, _mm256_srli_epi16(_mm256_add_epi16(most, above), 4),
                       _mm256_srli_epi16(_mm256_add_epi16(most, below), 4));
    }
}

static void upsample_across_avx2(const uint8_t *near, const uint8_t *far, int bias, uint8_t *to, int n)
{
    const __m256i round = _mm256_set1_epi16((short)bias);
    for (int k = 0; k < n; k += 32) {
        __m256i low = _mm256_add_epi16(three(widen(near + k)), widen(far + k));
        __m256i high = _mm256_add_epi16(three(widen(near + k + 16)), widen(far + k + 16));
        low = _mm256_srli_epi16(_mm256_add_epi16(low, round), 2);
        high = _mm256_srli_epi16(_mm256_add_epi16(high, round), 2);
        __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(low, high), 0xd8);
        _mm256_storeu_si256((__m256i *)(to + k), bytes);
    }
}

static void upsample_along_avx2(const uint8_t *near, uint8_t *to, int n)
{
    for (int k = 0; k < n; k += 16) {
        __m256i most = three(widen(near + k));
        __m256i even = _mm256_add_epi16(_mm256_add_epi16(most, widen(near + k - 1)), _mm256_set1_epi16(1));
        __m256i odd = _mm256_add_epi16(_mm256_add_epi16(most, widen(near + k + 1)), _mm256_set1_epi16(2));
        store_by_turns(to + 2 * k, _mm256_srli_epi16(even, 2), _mm256_srli_epi16(odd, 2));
    }
}
