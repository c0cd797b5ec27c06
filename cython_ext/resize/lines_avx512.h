/* Weighted sums as lines_avx2.h, with 64 samples at a time, and the sum in the same instruction. */
#pragma once
#include "lines_avx2.h"

ALWAYS_INLINE __m512i broadcast_wide(const int16_t pair[2])
{
    int32_t both;
    memcpy(&both, pair, sizeof both);
    return _mm512_set1_epi32(both);
}

/* Samples of two lines as pairs of words.  In each quarter of the vectors there are 4 pairs of 16 neighbours. */
ALWAYS_INLINE void pair_up_wide(const uint8_t *first, const uint8_t *second, __mmask64 mask, __m512i pairs[4])
{
    const __m512i zero = _mm512_setzero_si512();
    __m512i a = _mm512_maskz_loadu_epi8(mask, first), b = _mm512_maskz_loadu_epi8(mask, second);
    __m512i low = _mm512_unpacklo_epi8(a, b), high = _mm512_unpackhi_epi8(a, b);
    pairs[0] = _mm512_unpacklo_epi8(low, zero);
    pairs[1] = _mm512_unpackhi_epi8(low, zero);
    pairs[2] = _mm512_unpacklo_epi8(high, zero);
    pairs[3] = _mm512_unpackhi_epi8(high, zero);
}

/* If `taps` is small, it is a constant, so that the compiler unrolls the loop. */
ALWAYS_INLINE void blend_exact_wide(const uint8_t *const *lines, const resize_weight *weights, int taps, uint8_t *to,
                                    int n)
{
    for (int k = 0; k < n; k += 64) {
        __mmask64 mask = bytes_at(k, n);
        __m512i high[4], low[4], pairs[4];
        for (int part = 0; part < 4; part++) {
            high[part] = _mm512_setzero_si512();
            low[part] = _mm512_set1_epi32(1 << (BLEND_BITS - 1));
        }
        for (int tap = 0; tap < taps; tap += 2) {
            const resize_weight *w = &weights[tap / 2];
            pair_up_wide(lines[tap] + k, lines[tap + 1] + k, mask, pairs);
            for (int part = 0; part < 4; part++) {
                high[part] = _mm512_dpwssd_epi32(high[part], pairs[part], broadcast_wide(w->high));
                low[part] = _mm512_dpwssd_epi32(low[part], pairs[part], broadcast_wide(w->low));
            }
        }
        for (int part = 0; part < 4; part++)
            low[part] = _mm512_srai_epi32(_mm512_add_epi32(_mm512_slli_epi32(high[part], BLEND_LOW), low[part]), BLEND_BITS);
        __m512i bytes = _mm512_packus_epi16(_mm512_packs_epi32(low[0], low[1]), _mm512_packs_epi32(low[2], low[3]));
        _mm512_mask_storeu_epi8(to + k, mask, bytes);
    }
}

static void blend_avx512(const uint8_t *const *lines, const resize_weight *weights, int taps, uint8_t *to, int n)
{
    switch (taps) {
    case 2: blend_exact_wide(lines, weights, 2, to, n); break;
    case 4: blend_exact_wide(lines, weights, 4, to, n); break;
    case 6: blend_exact_wide(lines, weights, 6, to, n); break;
    case 8: blend_exact_wide(lines, weights, 8, to, n); break;
    default: blend_exact_wide(lines, weights, taps, to, n);
    }
}
