/* Pillow's Sharpness: blends the picture with a smooth one.  A smooth pixel is the mean of nine, of which the middle
 * one counts five times.
 *
 * Pillow sums 13ths in float, and rounds.  2 * sum is even and 13 * (2 * n + 1) is odd, so no sum is closer than a 26th
 * to the middle between two bytes.  So integers round as Pillow's floats do. */
#pragma once
#include "vectors.h"

static inline int sharpened(int smooth, int there, float factor)
{
    float blended = (float)smooth + factor * (float)(there - smooth);
    return blended > 0.0f ? blended < 255.0f ? (int)blended : 255 : 0;
}

#if !defined(HAS_SHARPEN_ROW)
/* `from` is the row itself; its neighbours are one row before and after it.  The first and last pixel stay. */
static void sharpen_row(const uint8_t *from, uint8_t *to, int width, float factor, uint16_t *sums)
{
    const uint8_t *above = from - 4 * (size_t)width, *below = from + 4 * (size_t)width;
    size_t bytes = 4 * (size_t)width;
    for (size_t k = 0; k < bytes; k++) sums[k] = (uint16_t)(above[k] + from[k] + below[k]);
    memcpy(to, from, 4);
    for (size_t k = 4; k + 4 < bytes; k++) {
        int sum = sums[k - 4] + sums[k] + sums[k + 4] + 4 * from[k];
        to[k] = (uint8_t)sharpened((sum + 6) / 13, from[k], factor);
    }
    memcpy(to + bytes - 4, from + bytes - 4, 4);
}
#endif
