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

/* The sums at samples k to k + 31, without their last `low` bits; the order is pair_up's. */
ALWAYS_INLINE void sums(const uint8_t *const *lines, const jpeg_weight *weights, int taps, int k, int is_exact,
                        int32_t half, __m256i total[4])
{
    __m256i high[4], low[4], pairs[4];
    for (int part = 0; part < 4; part++) {
        high[part] = is_exact ? _mm256_setzero_si256() : _mm256_set1_epi32(half);
        low[part] = _mm256_set1_epi32(half);
    }
    for (int tap = 0; tap < taps; tap += 2) {
        const jpeg_weight *w = &weights[tap / 2];
        pair_up(lines[tap], lines[tap + 1], k, pairs);
        for (int part = 0; part < 4; part++) {
            high[part] = _mm256_add_epi32(high[part], _mm256_madd_epi16(pairs[part], broadcast(w->high)));
            if (is_exact) low[part] = _mm256_add_epi32(low[part], _mm256_madd_epi16(pairs[part], broadcast(w->low)));
        }
    }
    for (int part = 0; part < 4; part++)
        total[part] = is_exact ? _mm256_add_epi32(_mm256_slli_epi32(high[part], BLEND_LOW), low[part]) : high[part];
}

/* `taps` is a constant where it is small: then the loop over them is none. */
ALWAYS_INLINE void blend_to_bytes(const uint8_t *const *lines, const jpeg_weight *weights, int taps, uint8_t *to, int n,
                                  int is_exact, int bits)
{
    for (int k = 0; k < n; k += 32) {
        __m256i total[4];
        sums(lines, weights, taps, k, is_exact, 1 << (bits - 1), total);
        for (int part = 0; part < 4; part++) total[part] = _mm256_srai_epi32(total[part], bits);
        __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(total[0], total[1]), _mm256_packs_epi32(total[2], total[3]));
        _mm256_storeu_si256((__m256i *)(to + k), bytes);
    }
}

static void blend_avx2(const uint8_t *const *lines, const jpeg_weight *weights, int taps, uint8_t *to, int n)
{
    switch (taps) {
    case 2: blend_to_bytes(lines, weights, 2, to, n, 1, BLEND_BITS); break;
    case 4: blend_to_bytes(lines, weights, 4, to, n, 1, BLEND_BITS); break;
    default: blend_to_bytes(lines, weights, taps, to, n, 1, BLEND_BITS);
    }
}

static void blend_fast_avx2(const uint8_t *const *lines, const jpeg_weight *weights, int taps, uint8_t *to, int n)
{
    switch (taps) {
    case 2: blend_to_bytes(lines, weights, 2, to, n, 0, BLEND_FAST_BITS); break;
    case 4: blend_to_bytes(lines, weights, 4, to, n, 0, BLEND_FAST_BITS); break;
    default: blend_to_bytes(lines, weights, taps, to, n, 0, BLEND_FAST_BITS);
    }
}

ALWAYS_INLINE void blend_to_words(const uint8_t *const *lines, const jpeg_weight *weights, int taps, int16_t *to, int n)
{
    enum { SHIFT = BLEND_FAST_BITS - DEEP };
    for (int k = 0; k < n; k += 32) {
        __m256i total[4];
        sums(lines, weights, taps, k, 0, 1 << (SHIFT - 1), total);
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
    default: blend_to_words(lines, weights, taps, to, n);
    }
}
