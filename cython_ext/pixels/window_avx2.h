/* A row of sums over a window: torch's convolution of one channel after the other, as oneDNN adds it up.
 *
 * One fused multiply-add a weight, the window's rows from the top, each from the left.  Whether torch does it in this
 * order is not promised: images/torch_blur.py compares. */
#pragma once
#include "vectors.h"

/* The functions above are for AVX2 alone, and a processor may have that without FMA. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

enum { WINDOW_PARTS = 8 }; /* eight sums at once hide how long each addition takes */

static void window_row(const float *const *rows, const float *weights, int across, int down, uint8_t *to, int n)
{
    for (size_t k = 0; k < 4 * (size_t)n; k += 8 * WINDOW_PARTS) {
        __m256 sums[WINDOW_PARTS];
        for (int part = 0; part < WINDOW_PARTS; part++) sums[part] = _mm256_setzero_ps();
        const float *weight = weights;
        for (int row = 0; row < down; row++) {
            const float *from = rows[row] + k;
            for (int column = 0; column < across; column++, weight++, from += 4) {
                __m256 by = _mm256_set1_ps(*weight);
                for (int part = 0; part < WINDOW_PARTS; part++)
                    sums[part] = _mm256_fmadd_ps(by, _mm256_loadu_ps(from + 8 * part), sums[part]);
            }
        }
        /* To the nearest, halves to even, as torch.round: the sum of the weights is 1, so none is beyond a byte. */
        for (int part = 0; part < WINDOW_PARTS; part += 2)
            store_bytes(to + k + 8 * part, (words)_mm256_cvtps_epi32(sums[part]),
                        (words)_mm256_cvtps_epi32(sums[part + 1]));
    }
}

static int can_add_fused(void) { return __builtin_cpu_supports("fma"); }

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
