/* colour.h with AVX2.
 *
 * A product c x / 65536 in words: _mm256_mulhi_epi16 of 2 x and c gives it doubled and cut off; adding 1 and halving
 * rounds it.  That needs constants below 1/2.  For larger ones, the nearest whole number is added separately. */
#pragma once
#include "colour.h"

ALWAYS_INLINE __m256i rounded_product(__m256i x, int constant)
{
    __m256i twice = _mm256_mulhi_epi16(_mm256_add_epi16(x, x), _mm256_set1_epi16((short)constant));
    return _mm256_srai_epi16(_mm256_add_epi16(twice, _mm256_set1_epi16(1)), 1);
}

/* The part of green that comes from chroma, without -cr.  Its two products are summed in 32 bits and rounded once. */
ALWAYS_INLINE __m256i green_of(__m256i pairs)
{
    const __m256i constants = _mm256_set1_epi32((int)((uint32_t)(uint16_t)-GREEN_CB |
                                                      (uint32_t)(uint16_t)(65536 - GREEN_CR) << 16));
    return _mm256_srai_epi32(_mm256_add_epi32(_mm256_madd_epi16(pairs, constants), _mm256_set1_epi32(32768)), 16);
}

static void colour_avx2(const uint8_t *const ycc[3], uint8_t *const rgb[3], int n)
{
    const __m256i zero = _mm256_setzero_si256(), middle = _mm256_set1_epi16(128);
    for (int k = 0; k < n; k += 32) {
        __m256i bytes[3], out[3][2];
        for (int c = 0; c < 3; c++) bytes[c] = _mm256_loadu_si256((const __m256i *)(ycc[c] + k));
        for (int half = 0; half < 2; half++) {
            __m256i words[3];
            for (int c = 0; c < 3; c++)
                words[c] = half ? _mm256_unpackhi_epi8(bytes[c], zero) : _mm256_unpacklo_epi8(bytes[c], zero);
            __m256i y = words[0], cb = _mm256_sub_epi16(words[1], middle), cr = _mm256_sub_epi16(words[2], middle);
            __m256i red = _mm256_add_epi16(cr, rounded_product(cr, RED_CR - 65536));
            __m256i blue = _mm256_add_epi16(_mm256_add_epi16(cb, cb), rounded_product(cb, BLUE_CB - 2 * 65536));
            __m256i green = _mm256_packs_epi32(green_of(_mm256_unpacklo_epi16(cb, cr)),
                                               green_of(_mm256_unpackhi_epi16(cb, cr)));
            out[0][half] = _mm256_add_epi16(y, red);
            out[1][half] = _mm256_sub_epi16(_mm256_add_epi16(y, green), cr);
            out[2][half] = _mm256_add_epi16(y, blue);
        }
        for (int c = 0; c < 3; c++)
            _mm256_storeu_si256((__m256i *)(rgb[c] + k), _mm256_packus_epi16(out[c][0], out[c][1]));
    }
}

/* scaled() of colour.h */
ALWAYS_INLINE __m256i scaled_words(__m256i x, int constant)
{
    return _mm256_mulhrs_epi16(x, _mm256_set1_epi16((short)constant));
}

/* possible() of colour.h */
ALWAYS_INLINE __m256i possible_words(__m256i x)
{
    return _mm256_min_epi16(_mm256_max_epi16(x, _mm256_setzero_si256()), _mm256_set1_epi16(255 << DEEP));
}

static void colour_deep_avx2(const int16_t *const ycc[3], uint8_t *const rgb[3], int n)
{
    const __m256i half = _mm256_set1_epi16(1 << (DEEP - 1)), middle = _mm256_set1_epi16(128 << DEEP);
    for (int k = 0; k < n; k += 32) {
        __m256i out[3][2];
        for (int part = 0; part < 2; part++) {
            __m256i words[3];
            for (int c = 0; c < 3; c++) words[c] = possible_words(_mm256_loadu_si256((const __m256i *)(ycc[c] + k + 16 * part)));
            __m256i y = _mm256_add_epi16(words[0], half), cb = _mm256_sub_epi16(words[1], middle);
            __m256i cr = _mm256_sub_epi16(words[2], middle);
            __m256i red = _mm256_add_epi16(_mm256_add_epi16(y, cr), scaled_words(cr, DEEP_RED_CR));
            __m256i green = _mm256_sub_epi16(_mm256_sub_epi16(y, scaled_words(cb, DEEP_GREEN_CB)),
                                             scaled_words(cr, DEEP_GREEN_CR));
            __m256i blue = _mm256_add_epi16(_mm256_add_epi16(y, scaled_words(cb, DEEP_BLUE_CB)), _mm256_add_epi16(cb, cb));
            out[0][part] = _mm256_srai_epi16(red, DEEP);
            out[1][part] = _mm256_srai_epi16(green, DEEP);
            out[2][part] = _mm256_srai_epi16(blue, DEEP);
        }
        for (int c = 0; c < 3; c++) {
            __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(out[c][0], out[c][1]), 0xd8);
            _mm256_storeu_si256((__m256i *)(rgb[c] + k), bytes);
        }
    }
}
