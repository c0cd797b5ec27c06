/* Converts YCbCr to RGB, in plain C: as libjpeg does, or from words with a few more bits (exact=False).
 *
 * Source: ITU-T T.871 (JFIF), 7.  The exact way is libjpeg's: constants of 16 bits, each product (of green: the sum of
 * two) rounded once. */
#pragma once
#include <stdint.h>

#include "idct.h"
#include "../resize/weights.h"

/* 1.402, 0.34414, 0.71414 and 1.772 in 1/65536. */
enum { RED_CR = 91881, GREEN_CB = 22554, GREEN_CR = 46802, BLUE_CB = 116130 };

static inline void colour(const uint8_t *const ycc[3], uint8_t *const rgb[3], int n)
{
    for (int k = 0; k < n; k++) {
        int y = ycc[0][k], cb = ycc[1][k] - 128, cr = ycc[2][k] - 128;
        rgb[0][k] = saturate8(y + ((RED_CR * cr + 32768) >> 16));
        rgb[1][k] = saturate8(y + ((-GREEN_CB * cb - GREEN_CR * cr + 32768) >> 16));
        rgb[2][k] = saturate8(y + ((BLUE_CB * cb + 32768) >> 16));
    }
}

/* The whole parts of 1.402 and 1.772 are separate, because a vector's constants are below 1; the rest is in 1/32768. */
enum { DEEP_RED_CR = 13173, DEEP_GREEN_CB = 11277, DEEP_GREEN_CR = 23401, DEEP_BLUE_CB = -7471 };

/* A product with a constant, rounded: what the vectors do in one instruction. */
static inline int scaled(int value, int constant) { return (value * constant + 16384) >> 15; }

/* A sample, limited to black and white.  A filter that crosses 0 goes beyond them, and a vector's sums would wrap. */
static inline int possible(int value) { return value < 0 ? 0 : value > 255 << DEEP ? 255 << DEEP : value; }

static inline void colour_deep(const int16_t *const ycc[3], uint8_t *const rgb[3], int n)
{
    for (int k = 0; k < n; k++) {
        int y = possible(ycc[0][k]) + (1 << (DEEP - 1));
        int cb = possible(ycc[1][k]) - (128 << DEEP), cr = possible(ycc[2][k]) - (128 << DEEP);
        rgb[0][k] = saturate8((y + cr + scaled(cr, DEEP_RED_CR)) >> DEEP);
        rgb[1][k] = saturate8((y - scaled(cb, DEEP_GREEN_CB) - scaled(cr, DEEP_GREEN_CR)) >> DEEP);
        rgb[2][k] = saturate8((y + 2 * cb + scaled(cb, DEEP_BLUE_CB)) >> DEEP);
    }
}
