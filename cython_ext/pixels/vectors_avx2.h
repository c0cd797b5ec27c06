/* vectors.h with AVX2. */
#pragma once
#include <immintrin.h>
#define HAS_VECTORS
#include "vectors.h"

static inline ints smaller(ints a, ints b) { return (ints)_mm256_min_epi32((__m256i)a, (__m256i)b); }
static inline ints larger(ints a, ints b) { return (ints)_mm256_max_epi32((__m256i)a, (__m256i)b); }

static inline floats clamped(floats f)
{
    __m256 low = _mm256_max_ps((__m256)f, _mm256_setzero_ps()); /* NaN: the second */
    return (floats)_mm256_min_ps(low, _mm256_set1_ps(255.0f));
}

static inline doubles clamped_doubles(doubles d)
{
    __m256d low = _mm256_max_pd((__m256d)d, _mm256_setzero_pd());
    return (doubles)_mm256_min_pd(low, _mm256_set1_pd(255.0));
}

static inline void widen(floats f, doubles *low, doubles *high)
{
    *low = (doubles)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)f));
    *high = (doubles)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)f, 1));
}

static inline floats narrow(doubles low, doubles high)
{
    return (floats)_mm256_set_m128(_mm256_cvtpd_ps((__m256d)high), _mm256_cvtpd_ps((__m256d)low));
}

static inline ints narrow_to_ints(doubles low, doubles high)
{
    return (ints)_mm256_set_m128i(_mm256_cvttpd_epi32((__m256d)high), _mm256_cvttpd_epi32((__m256d)low));
}

static inline ints luma(words pixels)
{
    /* 38470 is no signed word, so green goes in twice, by half of it. */
    const __m256i red_green = _mm256_set1_epi32(19235 << 16 | 19595), blue_green = _mm256_set1_epi32(19235 << 16 | 7471);
    const __m256i bytes = _mm256_set1_epi32(0x00ff00ff);
    __m256i red_blue = _mm256_and_si256((__m256i)pixels, bytes); /* words: red, blue */
    __m256i green_any = _mm256_and_si256(_mm256_srli_epi32((__m256i)pixels, 8), bytes);
    __m256i green = _mm256_slli_epi32(green_any, 16);
    __m256i first = _mm256_blend_epi16(red_blue, green, 0xaa);
    __m256i second = _mm256_blend_epi16(_mm256_srli_epi32(red_blue, 16), green, 0xaa);
    __m256i sum = _mm256_add_epi32(_mm256_madd_epi16(first, red_green), _mm256_madd_epi16(second, blue_green));
    return (ints)_mm256_srli_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(0x8000)), 16);
}

static inline words load_bytes(const uint8_t *at)
{
    return (words)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)at));
}

static inline void store_bytes(uint8_t *at, words low, words high)
{
    __m256i w = _mm256_packus_epi32((__m256i)low, (__m256i)high); /* quarters 0 2 1 3 of each eight */
    w = _mm256_permute4x64_epi64(w, 0xd8);
    __m128i b = _mm_packus_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
    _mm_storeu_si128((__m128i *)at, b);
}

static inline doubles load_pixel(const uint8_t *at)
{
    int32_t four;
    memcpy(&four, at, 4);
    return (doubles)_mm256_cvtepi32_pd(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(four)));
}

static inline void store_pixel(uint8_t *at, doubles d)
{
    const __m128i low_bytes = _mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    int32_t four = _mm_cvtsi128_si32(_mm_shuffle_epi8(_mm256_cvttpd_epi32((__m256d)d), low_bytes));
    memcpy(at, &four, 4);
}

static inline words arranged(ints sector, ints value, ints between, ints low)
{
    /* 0: value, 1: between, 2: low; red is the lowest byte */
    const __m256i order = _mm256_setr_epi32(0x020100, 0x020001, 0x010002, 0x000102, 0x000201, 0x010200, 0x020100, 0x020100);
    const __m256i places = _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c, 0, 0x04040404, 0x08080808, 0x0c0c0c0c);
    __m256i three = (__m256i)(value | between << 8 | low << 16);
    __m256i which = _mm256_permutevar8x32_epi32(order, (__m256i)sector);
    return (words)_mm256_shuffle_epi8(three, _mm256_add_epi8(which, places));
}
