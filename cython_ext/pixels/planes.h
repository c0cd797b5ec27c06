/* From pixels to planes: looks each channel of each pixel up in its table. */
#pragma once
#include "vectors.h"

#if !defined(HAS_PLANES)
static void split_bytes(const uint8_t *from, int n, const uint8_t tables[3][256], uint8_t *const to[3], int channels)
{
    for (int c = 0; c < channels; c++)
        for (int k = 0; k < n; k++) to[c][k] = tables ? tables[c][from[4 * k + c]] : from[4 * k + c];
}
#endif

static void split_words(const uint8_t *from, int n, const uint32_t *tables, uint32_t *const to[3], int channels)
{
    for (int c = 0; c < channels; c++)
        for (int k = 0; k < n; k++) to[c][k] = tables[256 * c + from[4 * k + c]];
}
