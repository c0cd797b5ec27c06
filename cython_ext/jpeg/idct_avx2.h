/* idct.h with AVX2.
 *
 * A vector multiplies pairs: _mm256_madd_epi16 gives a x + b y for eight pairs (a, b) at once.  So the entropy decoder
 * puts coefficients where the transform needs them.  The two of a pair, from the rows 0 and 4, 2 and 6, 7 and 1, 3 and
 * 5, lie side by side.  The columns have an order in which the turn between the passes gives the same column pairs. */
#pragma once
#include "idct.h"

/* Columns 0 4 2 6 in the lower half of a vector, 7 1 3 5 in the upper. */
static int place_avx2(int down, int across)
{
    static const uint8_t pair[8] = {0, 2, 1, 3, 0, 3, 1, 2}, second[8] = {0, 1, 0, 0, 1, 1, 1, 0};
    static const uint8_t column[8] = {0, 5, 2, 6, 1, 7, 3, 4};
    return 16 * pair[down] + 2 * column[across] + second[down];
}

ALWAYS_INLINE __m256i pair_of(int a, int b)
{
    return _mm256_set1_epi32((int)((uint32_t)(uint16_t)a | (uint32_t)(uint16_t)b << 16));
}

/* One pass over eight lines: from their values as pairs (0, 4), (2, 6), (7, 1), (3, 5) to out[0] to out[7], each the
 * same value of the eight lines. */
ALWAYS_INLINE void idct_pass(const __m256i in[4], __m256i out[8], int shift)
{
    const __m256i round = _mm256_set1_epi32(1 << (shift - 1));
    /* in0 + in4 and in0 - in4 in 16 bits, then 13 bits up: to the top, and three down. */
    __m256i sum = _mm256_madd_epi16(in[0], pair_of(1, 1)), difference = _mm256_madd_epi16(in[0], pair_of(1, -1));
    sum = _mm256_add_epi32(_mm256_srai_epi32(_mm256_slli_epi32(sum, 16), 16 - IDCT_BITS), round);
    difference = _mm256_add_epi32(_mm256_srai_epi32(_mm256_slli_epi32(difference, 16), 16 - IDCT_BITS), round);
    __m256i low = _mm256_madd_epi16(in[1], pair_of(FIX_0_5412 + FIX_0_7654, FIX_0_5412));
    __m256i high = _mm256_madd_epi16(in[1], pair_of(FIX_0_5412, FIX_0_5412 - FIX_1_8478));
    __m256i even0 = _mm256_add_epi32(sum, low), even3 = _mm256_sub_epi32(sum, low);
    __m256i even1 = _mm256_add_epi32(difference, high), even2 = _mm256_sub_epi32(difference, high);

    __m256i z = _mm256_add_epi16(in[2], in[3]); /* in7 + in3, in1 + in5 */
    __m256i a = _mm256_madd_epi16(z, pair_of(FIX_1_1759 - FIX_1_9616, FIX_1_1759));
    __m256i b = _mm256_madd_epi16(z, pair_of(FIX_1_1759, FIX_1_1759 - FIX_0_3902));
    __m256i odd3 = _mm256_add_epi32(_mm256_madd_epi16(in[2], pair_of(FIX_0_2986 - FIX_0_9000, -FIX_0_9000)), a);
    __m256i odd0 = _mm256_add_epi32(_mm256_madd_epi16(in[2], pair_of(-FIX_0_9000, FIX_1_5013 - FIX_0_9000)), b);
    __m256i odd2 = _mm256_add_epi32(_mm256_madd_epi16(in[3], pair_of(-FIX_2_5629, FIX_2_0531 - FIX_2_5629)), b);
    __m256i odd1 = _mm256_add_epi32(_mm256_madd_epi16(in[3], pair_of(FIX_3_0727 - FIX_2_5629, -FIX_2_5629)), a);

    out[0] = _mm256_srai_epi32(_mm256_add_epi32(even0, odd0), shift);
    out[7] = _mm256_srai_epi32(_mm256_sub_epi32(even0, odd0), shift);
    out[1] = _mm256_srai_epi32(_mm256_add_epi32(even1, odd1), shift);
    out[6] = _mm256_srai_epi32(_mm256_sub_epi32(even1, odd1), shift);
    out[2] = _mm256_srai_epi32(_mm256_add_epi32(even2, odd2), shift);
    out[5] = _mm256_srai_epi32(_mm256_sub_epi32(even2, odd2), shift);
    out[3] = _mm256_srai_epi32(_mm256_add_epi32(even3, odd3), shift);
    out[4] = _mm256_srai_epi32(_mm256_sub_epi32(even3, odd3), shift);
}

/* 32-bit elements 0 and 2 of each half of a, then of b; and 1 and 3. */
ALWAYS_INLINE __m256i evens(__m256i a, __m256i b)
{
    return _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0x88));
}
ALWAYS_INLINE __m256i odds(__m256i a, __m256i b)
{
    return _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0xdd));
}

ALWAYS_INLINE void idct_avx2(const int16_t *coefficients, const int16_t *quantiser, uint8_t *to, ptrdiff_t stride)
{
    __m256i raw[4], in[4], line[8];
    for (int k = 0; k < 4; k++) {
        raw[k] = _mm256_load_si256((const __m256i *)coefficients + k);
        in[k] = _mm256_mullo_epi16(raw[k], _mm256_load_si256((const __m256i *)quantiser + k));
    }
    idct_pass(in, line, IDCT_BITS - IDCT_BETWEEN);
    /* Row 0 is the first of each pair in raw[0]. */
    __m256i vertical = _mm256_or_si256(_mm256_or_si256(_mm256_srli_epi32(raw[0], 16), raw[1]),
                                       _mm256_or_si256(raw[2], raw[3]));
    if (__builtin_expect(_mm256_testz_si256(vertical, vertical), 0))
        for (int k = 0; k < 8; k++) line[k] = _mm256_srai_epi32(_mm256_slli_epi32(line[k], 16), 16);

    /* A line holds its columns as 0 4 2 6 | 7 1 3 5.  Two lines in 16 bits: a04 a26 b04 b26 | a71 a35 b71 b35. */
    __m256i ab = _mm256_packs_epi32(line[0], line[1]), cd = _mm256_packs_epi32(line[2], line[3]);
    __m256i ef = _mm256_packs_epi32(line[4], line[5]), gh = _mm256_packs_epi32(line[6], line[7]);
    __m256i upper04 = evens(ab, cd), lower04 = evens(ef, gh); /* of lines 0-3 and 4-7: 04 | 71 */
    __m256i upper26 = odds(ab, cd), lower26 = odds(ef, gh);   /* 26 | 35 */
    in[0] = _mm256_permute2x128_si256(upper04, lower04, 0x20);
    in[1] = _mm256_permute2x128_si256(upper26, lower26, 0x20);
    in[2] = _mm256_permute2x128_si256(upper04, lower04, 0x31);
    in[3] = _mm256_permute2x128_si256(upper26, lower26, 0x31);
    idct_pass(in, line, IDCT_BITS + IDCT_BETWEEN + 3);

    for (int k = 0; k < 8; k += 4) {
        __m256i words = _mm256_packs_epi32(line[k], line[k + 1]), more = _mm256_packs_epi32(line[k + 2], line[k + 3]);
        __m256i bytes = _mm256_xor_si256(_mm256_packs_epi16(words, more), _mm256_set1_epi8(-128));
        /* Of each column the upper four samples | the lower four. */
        __m128i upper = _mm256_castsi256_si128(bytes), lower = _mm256_extracti128_si256(bytes, 1);
        __m128i first = _mm_unpacklo_epi32(upper, lower), second = _mm_unpackhi_epi32(upper, lower);
        _mm_storel_epi64((__m128i *)(to + k * stride), first);
        _mm_storeh_pd((double *)(to + (k + 1) * stride), _mm_castsi128_pd(first));
        _mm_storel_epi64((__m128i *)(to + (k + 2) * stride), second);
        _mm_storeh_pd((double *)(to + (k + 3) * stride), _mm_castsi128_pd(second));
    }
}
