/* blend.h with AVX2: two lines in one multiplication, 32 samples at a time.  Weights of 22 bits take two. */
#pragma once
#include <string.h>

#include "blend.h"

ALWAYS_INLINE __m256i broadcast(const int16_t pair[2])
{
    int32_t both;
    memcpy(&both, pair, sizeof both);
    return _mm256_set1_epi32(both);
}

/* Samples k to k + 31 of two lines as pairs of words: 0-3 | 16-19, 4-7 | 20-23, 8-11 | 24-27, 12-15 | 28-31. */
ALWAYS_INLINE void pair_up(const uint8_t *first, const uint8_t *second, int k, __m256i pairs[4])
{
    const __m256i zero = _mm256_setzero_si256();
    __m256i a = _mm256_loadu_si256((const __m256i *)(first + k)), b = _mm256_loadu_si256((const __m256i *)(second + k));
    __m256i low = _mm256_unpacklo_epi8(a, b), high = _mm256_unpackhi_epi8(a, b);
    pairs[0] = _mm256_unpacklo_epi8(low, zero);
    pairs[1] = _mm256_unpackhi_epi8(low, zero);
    pairs[2] = _mm256_unpacklo_epi8(high, zero);
    pairs[3] = _mm256_unpackhi_epi8(high, zero);
}

/* If `taps` is small, it is a constant, so that the compiler unrolls the loop. */
ALWAYS_INLINE void blend_exact(const uint8_t *const *lines, const jpeg_weight *weights, int taps, uint8_t *to, int n)
{
    for (int k = 0; k < n; k += 32) {
        __m256i high[4], low[4], pairs[4];
        for (int part = 0; part < 4; part++) {
            high[part] = _mm256_setzero_si256();
            low[part] = _mm256_set1_epi32(1 << (BLEND_BITS - 1));
        }
        for (int tap = 0; tap < taps; tap += 2) {
            const jpeg_weight *w = &weights[tap / 2];
            pair_up(lines[tap], lines[tap + 1], k, pairs);
            for (int part = 0; part < 4; part++) {
                high[part] = _mm256_add_epi32(high[part], _mm256_madd_epi16(pairs[part], broadcast(w->high)));
                low[part] = _mm256_add_epi32(low[part], _mm256_madd_epi16(pairs[part], broadcast(w->low)));
            }
        }
        for (int part = 0; part < 4; part++)
            low[part] = _mm256_srai_epi32(_mm256_add_epi32(_mm256_slli_epi32(high[part], BLEND_LOW), low[part]), BLEND_BITS);
        __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(low[0], low[1]), _mm256_packs_epi32(low[2], low[3]));
        _mm256_storeu_si256((__m256i *)(to + k), bytes);
    }
}

static void blend_avx2(const uint8_t *const *lines, const jpeg_weight *weights, int taps, uint8_t *to, int n)
{
    switch (taps) {
    case 2: blend_exact(lines, weights, 2, to, n); break;
    case 4: blend_exact(lines, weights, 4, to, n); break;
    case 6: blend_exact(lines, weights, 6, to, n); break;
    case 8: blend_exact(lines, weights, 8, to, n); break;
    default: blend_exact(lines, weights, taps, to, n);
    }
}

ALWAYS_INLINE void blend_to_words(const uint8_t *const *lines, const jpeg_weight *weights, int taps, int16_t *to, int n)
{
    enum { SHIFT = BLEND_FAST_BITS - DEEP };
    for (int k = 0; k < n; k += 32) {
        __m256i total[4], pairs[4];
        for (int part = 0; part < 4; part++) total[part] = _mm256_set1_epi32(1 << (SHIFT - 1));
        for (int tap = 0; tap < taps; tap += 2) {
            pair_up(lines[tap], lines[tap + 1], k, pairs);
            for (int part = 0; part < 4; part++)
                total[part] = _mm256_add_epi32(total[part], _mm256_madd_epi16(pairs[part], broadcast(weights[tap / 2].high)));
        }
        for (int part = 0; part < 4; part++) total[part] = _mm256_srai_epi32(total[part], SHIFT);
        __m256i low = _mm256_packs_epi32(total[0], total[1]), high = _mm256_packs_epi32(total[2], total[3]);
        _mm256_storeu_si256((__m256i *)(to + k), _mm256_permute2x128_si256(low, high, 0x20));
        _mm256_storeu_si256((__m256i *)(to + k + 16), _mm256_permute2x128_si256(low, high, 0x31));
    }
}

static void blend_deep_avx2(const uint8_t *const *lines, const jpeg_weight *weights, int taps, int16_t *to, int n)
{
    switch (taps) {
    case 2: blend_to_words(lines, weights, 2, to, n); break;
    case 4: blend_to_words(lines, weights, 4, to, n); break;
    case 6: blend_to_words(lines, weights, 6, to, n); break;
    case 8: blend_to_words(lines, weights, 8, to, n); break;
    default: blend_to_words(lines, weights, taps, to, n);
    }
}

ALWAYS_INLINE void blend_of_words(const int16_t *const *lines, const jpeg_weight *weights, int taps, int16_t *to, int n)
{
    for (int k = 0; k < n; k += 16) {
        __m256i low = _mm256_set1_epi32(1 << (BLEND_FAST_BITS - 1)), high = low;
        for (int tap = 0; tap < taps; tap += 2) {
            __m256i a = _mm256_loadu_si256((const __m256i *)(lines[tap] + k));
            __m256i b = _mm256_loadu_si256((const __m256i *)(lines[tap + 1] + k)), w = broadcast(weights[tap / 2].high);
            low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), w));
            high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), w));
        }
        low = _mm256_srai_epi32(low, BLEND_FAST_BITS);
        high = _mm256_srai_epi32(high, BLEND_FAST_BITS);
        _mm256_storeu_si256((__m256i *)(to + k), _mm256_packs_epi32(low, high));
    }
}

static void blend_words_avx2(const int16_t *const *lines, const jpeg_weight *weights, int taps, int16_t *to, int n)
{
    switch (taps) {
    case 2: blend_of_words(lines, weights, 2, to, n); break;
    case 4: blend_of_words(lines, weights, 4, to, n); break;
    case 6: blend_of_words(lines, weights, 6, to, n); break;
    case 8: blend_of_words(lines, weights, 8, to, n); break;
    default: blend_of_words(lines, weights, taps, to, n);
    }
}
