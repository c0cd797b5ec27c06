/* smooth.h with AVX2. */
#pragma once
#define HAS_SHARPEN_ROW
#include "vectors_avx2.h"
#include "smooth.h"

static inline __m256i sixteen_bytes(const uint8_t *at)
{
    return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)at));
}

static inline __m256i blended_words(__m256i smooth, __m256i sharp, floats factor)
{
    __m256i by = _mm256_sub_epi16(sharp, smooth), parts[2];
    for (int half = 0; half < 2; half++) {
        __m128i s = half ? _mm256_extracti128_si256(smooth, 1) : _mm256_castsi256_si128(smooth);
        __m128i d = half ? _mm256_extracti128_si256(by, 1) : _mm256_castsi256_si128(by);
        floats from = to_floats((ints)_mm256_cvtepi16_epi32(s)), differs = to_floats((ints)_mm256_cvtepi16_epi32(d));
        parts[half] = (__m256i)to_ints(clamped(from + factor * differs));
    }
    return _mm256_packus_epi32(parts[0], parts[1]); /* quarters 0 2 1 3 */
}

static void sharpen_row(const uint8_t *from, uint8_t *to, int width, float factor, uint16_t *sums)
{
    const uint8_t *above = from - 4 * (size_t)width, *below = from + 4 * (size_t)width;
    size_t bytes = 4 * (size_t)width;
    floats by = everywhere(factor);
    uint32_t first, last;
    for (size_t k = 0; k < bytes; k += 16) {
        __m256i column = _mm256_add_epi16(_mm256_add_epi16(sixteen_bytes(above + k), sixteen_bytes(from + k)),
                                          sixteen_bytes(below + k));
        _mm256_storeu_si256((__m256i *)(sums + k), column);
    }
    memcpy(&first, from, 4), memcpy(&last, from + bytes - 4, 4);
    for (size_t k = 4; k + 4 < bytes; k += 16) {
        __m256i sharp = sixteen_bytes(from + k);
        __m256i sum = _mm256_add_epi16(_mm256_loadu_si256((const __m256i *)(sums + k - 4)),
                                       _mm256_loadu_si256((const __m256i *)(sums + k + 4)));
        sum = _mm256_add_epi16(_mm256_add_epi16(sum, _mm256_loadu_si256((const __m256i *)(sums + k))),
                               _mm256_slli_epi16(sharp, 2));
        sum = _mm256_add_epi16(sum, _mm256_set1_epi16(6));
        __m256i smooth = _mm256_mulhi_epu16(sum, _mm256_set1_epi16(5042)); /* a division by 13: exact up to 6552 */
        __m256i w = _mm256_permute4x64_epi64(blended_words(smooth, sharp, by), 0xd8);
        __m128i b = _mm_packus_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
        _mm_storeu_si128((__m128i *)(to + k), b);
    }
    memcpy(to, &first, 4), memcpy(to + bytes - 4, &last, 4);
}
