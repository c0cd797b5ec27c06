/* A row of weighted sums, of the pixels beside each other in a row, or of rows above each other. */
#pragma once
#include "vectors.h"

static void convolve_row(const uint8_t *const *rows, const float *weights, int taps, uint8_t *to, int n)
{
    for (size_t k = 0; k < 4 * (size_t)n; k += 32) {
        floats sums[4] = {everywhere(0.5f), everywhere(0.5f), everywhere(0.5f), everywhere(0.5f)};
        for (int tap = 0; tap < taps; tap++)
            for (int part = 0; part < 4; part++)
                sums[part] += weights[tap] * to_floats((ints)load_bytes(rows[tap] + k + 8 * part));
        for (int part = 0; part < 4; part += 2)
            store_bytes(to + k + 8 * part, (words)to_ints(clamped(sums[part])), (words)to_ints(clamped(sums[part + 1])));
    }
}
