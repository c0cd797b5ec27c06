/* A row of sums over a window: torch's convolution, one channel after another, with the additions in oneDNN's order.
 *
 * It is one fused multiply-add for each weight, over the window's rows from the top, each from the left.  torch does
 * not promise this order, so images/torch_blur.py compares. */
#pragma once
#include "vectors.h"

enum { WINDOW_PARTS = 12 }; /* sums at once: BLOCK pixels, and enough to hide the latency of the additions */

/* A row of pixels as floats, three a pixel. */
static void window_floats(const uint8_t *from, float *to, int n)
{
    const __m128i packed = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    for (int x = 0; x < n; x += 4) {
        __m128i bytes = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(from + 4 * (size_t)x)), packed);
        _mm256_storeu_ps(to + 3 * (size_t)x, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)));
        _mm_storeu_ps(to + 3 * (size_t)x + 8, _mm_cvtepi32_ps(_mm_cvtepu8_epi32(_mm_srli_si128(bytes, 8))));
    }
}

WITH_FMA
static void window_row(const float *const *rows, const float *weights, int across, int down, uint8_t *to, int n)
{
    const __m128i spread = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
    uint8_t packed[3 * BLOCK + 16];
    for (size_t x = 0; x < (size_t)n; x += BLOCK, to += 4 * BLOCK) {
        __m256 sums[WINDOW_PARTS];
        for (int part = 0; part < WINDOW_PARTS; part++) sums[part] = _mm256_setzero_ps();
        const float *weight = weights;
        for (int row = 0; row < down; row++) {
            const float *from = rows[row] + 3 * x;
            for (int column = 0; column < across; column++, weight++, from += 3) {
                __m256 by = _mm256_set1_ps(*weight);
                for (int part = 0; part < WINDOW_PARTS; part++)
                    sums[part] = _mm256_fmadd_ps(by, _mm256_loadu_ps(from + 8 * part), sums[part]);
            }
        }
        /* To the nearest, halves to even, as torch.round: the sum of the weights is 1, so none is beyond a byte. */
        for (int part = 0; part < WINDOW_PARTS; part += 2)
            store_bytes(packed + 8 * part, (words)_mm256_cvtps_epi32(sums[part]),
                        (words)_mm256_cvtps_epi32(sums[part + 1]));
        for (int four = 0; four < BLOCK / 4; four++) {
            __m128i pixels = _mm_loadu_si128((const __m128i *)(packed + 12 * four));
            _mm_storeu_si128((__m128i *)(to + 16 * four), _mm_shuffle_epi8(pixels, spread));
        }
    }
}
