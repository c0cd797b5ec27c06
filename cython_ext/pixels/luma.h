/* Pillow's operations by way of the mode L: gray, less or more colour, and the mean that contrast needs. */
#pragma once
#include "vectors.h"

static void grayscale(uint8_t *at, size_t n)
{
    for (size_t k = 0; k < n; k += 8) {
        words gray = (words)luma(load_words(at + 4 * k));
        store_words(at + 4 * k, gray | gray << 8 | gray << 16);
    }
}

/* Blends gray with the picture as Image.blend does: in float, and in this order. */
static void saturate(uint8_t *at, size_t n, float factor)
{
    for (size_t k = 0; k < n; k += 8) {
        words pixels = load_words(at + 4 * k);
        ints gray = luma(pixels);
        floats from = to_floats(gray);
        words blended = {0};
        for (int c = 0; c < 3; c++) {
            floats mixed = from + factor * to_floats(channel(pixels, c) - gray);
            blended |= (words)to_ints(clamped(mixed)) << (8 * c);
        }
        store_words(at + 4 * k, blended);
    }
}

static uint64_t sum_of_luma(const uint8_t *at, size_t n)
{
    enum { MOST = 1 << 16 }; /* sums of 8, each of 2^16 numbers under 256, fit in 32 bits */
    uint64_t total = 0;
    size_t k = 0;
    while (n - k >= 8) {
        words sum = {0};
        for (int count = 0; count < MOST && n - k >= 8; count++, k += 8) sum += (words)luma(load_words(at + 4 * k));
        for (int lane = 0; lane < 8; lane++) total += sum[lane];
    }
    words last = (words)luma(load_words(at + 4 * k));
    for (size_t lane = 0; k + lane < n; lane++) total += last[lane];
    return total;
}
