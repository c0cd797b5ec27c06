/* colour.h with AVX-512: as colour_avx2.h, with 64 pixels at a time. */
#pragma once
#include "colour.h"

ALWAYS_INLINE __m512i rounded_product_wide(__m512i x, int constant)
{
    __m512i twice = _mm512_mulhi_epi16(_mm512_add_epi16(x, x), _mm512_set1_epi16((short)constant));
    return _mm512_srai_epi16(_mm512_add_epi16(twice, _mm512_set1_epi16(1)), 1);
}

/* The part of green that comes from chroma, without -cr. */
ALWAYS_INLINE __m512i green_of_wide(__m512i pairs)
{
    const __m512i constants = _mm512_set1_epi32((int)((uint32_t)(uint16_t)-GREEN_CB |
                                                      (uint32_t)(uint16_t)(65536 - GREEN_CR) << 16));
    return _mm512_srai_epi32(_mm512_dpwssd_epi32(_mm512_set1_epi32(32768), pairs, constants), 16);
}

static void colour_avx512(const uint8_t *const ycc[3], uint8_t *const rgb[3], int n)
{
    const __m512i zero = _mm512_setzero_si512(), middle = _mm512_set1_epi16(128);
    for (int k = 0; k < n; k += 64) {
        __mmask64 mask = bytes_at(k, n);
        __m512i bytes[3], out[3][2];
        for (int c = 0; c < 3; c++) bytes[c] = _mm512_maskz_loadu_epi8(mask, ycc[c] + k);
        for (int half = 0; half < 2; half++) {
            __m512i words[3];
            for (int c = 0; c < 3; c++)
                words[c] = half ? _mm512_unpackhi_epi8(bytes[c], zero) : _mm512_unpacklo_epi8(bytes[c], zero);
            __m512i y = words[0], cb = _mm512_sub_epi16(words[1], middle), cr = _mm512_sub_epi16(words[2], middle);
            __m512i red = _mm512_add_epi16(cr, rounded_product_wide(cr, RED_CR - 65536));
            __m512i blue = _mm512_add_epi16(_mm512_add_epi16(cb, cb), rounded_product_wide(cb, BLUE_CB - 2 * 65536));
            __m512i green = _mm512_packs_epi32(green_of_wide(_mm512_unpacklo_epi16(cb, cr)),
                                               green_of_wide(_mm512_unpackhi_epi16(cb, cr)));
            out[0][half] = _mm512_add_epi16(y, red);
            out[1][half] = _mm512_sub_epi16(_mm512_add_epi16(y, green), cr);
            out[2][half] = _mm512_add_epi16(y, blue);
        }
        for (int c = 0; c < 3; c++)
            _mm512_mask_storeu_epi8(rgb[c] + k, mask, _mm512_packus_epi16(out[c][0], out[c][1]));
    }
}
