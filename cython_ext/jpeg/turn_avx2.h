/* turn.h with AVX2: squares of 16 by 16 bytes, two at a time; of words, squares of 8 by 8, four at a time. */
#pragma once
#include <stddef.h>
#include <stdint.h>

static void turn_avx2(const uint8_t *lines, size_t pitch, uint8_t *to, size_t stride, int n)
{
    for (int k = 0; k < n; k += 32) {
        __m256i a[TURN], b[TURN];
        for (int line = 0; line < TURN; line++)
            a[line] = _mm256_loadu_si256((const __m256i *)(lines + (size_t)line * pitch + (size_t)k));
        /* Each round puts the lines of the upper half between those of the lower; after four, rows are columns. */
        for (int round = 0; round < 2; round++) {
            for (int line = 0; line < TURN / 2; line++) {
                b[2 * line] = _mm256_unpacklo_epi8(a[line], a[line + TURN / 2]);
                b[2 * line + 1] = _mm256_unpackhi_epi8(a[line], a[line + TURN / 2]);
            }
            for (int line = 0; line < TURN / 2; line++) {
                a[2 * line] = _mm256_unpacklo_epi8(b[line], b[line + TURN / 2]);
                a[2 * line + 1] = _mm256_unpackhi_epi8(b[line], b[line + TURN / 2]);
            }
        }
        for (int row = 0; row < TURN; row++) {
            uint8_t *at = to + (size_t)(k + row) * stride;
            _mm_storeu_si128((__m128i *)at, _mm256_castsi256_si128(a[row]));
            _mm_storeu_si128((__m128i *)(at + TURN * stride), _mm256_extracti128_si256(a[row], 1));
        }
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
