/* deep.h with AVX2: 32 bytes or 16 words at a time; squares of 8 by 8 words are turned, four at a time. */
#pragma once
#include "../resize/lines_avx2.h"
#include "deep.h"

ALWAYS_INLINE void blend_to_words(const uint8_t *const *lines, const resize_weight *weights, int taps, int16_t *to, int n)
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

static void blend_deep_avx2(const uint8_t *const *lines, const resize_weight *weights, int taps, int16_t *to, int n)
{
    switch (taps) {
    case 2: blend_to_words(lines, weights, 2, to, n); break;
    case 4: blend_to_words(lines, weights, 4, to, n); break;
    case 6: blend_to_words(lines, weights, 6, to, n); break;
    case 8: blend_to_words(lines, weights, 8, to, n); break;
    default: blend_to_words(lines, weights, taps, to, n);
    }
}

ALWAYS_INLINE void blend_of_words(const int16_t *const *lines, const resize_weight *weights, int taps, int16_t *to, int n)
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

static void blend_words_avx2(const int16_t *const *lines, const resize_weight *weights, int taps, int16_t *to, int n)
{
    switch (taps) {
    case 2: blend_of_words(lines, weights, 2, to, n); break;
    case 4: blend_of_words(lines, weights, 4, to, n); break;
    case 6: blend_of_words(lines, weights, 6, to, n); break;
    case 8: blend_of_words(lines, weights, 8, to, n); break;
    default: blend_of_words(lines, weights, taps, to, n);
    }
}

static void turn_words_avx2(const int16_t *lines, size_t pitch, int16_t *to, size_t stride, int n)
{
    for (int k = 0; k < n; k += 16)
        for (int half = 0; half < TURN; half += 8) {
            __m256i a[8], b[8];
            for (int line = 0; line < 8; line++)
                a[line] = _mm256_loadu_si256((const __m256i *)(lines + (size_t)(half + line) * pitch + (size_t)k));
            for (int round = 0; round < 3; round++) {
                for (int line = 0; line < 4; line++) {
                    b[2 * line] = _mm256_unpacklo_epi16(a[line], a[line + 4]);
                    b[2 * line + 1] = _mm256_unpackhi_epi16(a[line], a[line + 4]);
                }
                for (int line = 0; line < 8; line++) a[line] = b[line];
            }
            for (int row = 0; row < 8; row++) {
                int16_t *at = to + (size_t)(k + row) * stride + half;
                _mm_storeu_si128((__m128i *)at, _mm256_castsi256_si128(a[row]));
                _mm_storeu_si128((__m128i *)(at + 8 * stride), _mm256_extracti128_si256(a[row], 1));
            }
        }
}
