/* Work on lines of bytes, of which every resize consists, in plain C: weighted sums (weights.h has the weights), strips
 * that are turned, pixels that are split into lines and lines that become pixels.
 *
 * The paths of other processors are lines_avx2.h, lines_avx512.h and lines_neon.h.  All agree bit for bit. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "path.h"

/* The sum of the weighted samples at k, and half a unit, so that cutting off the fraction rounds. */
static inline int32_t weighted(const uint8_t *const *lines, const resize_weight *weights, int taps, int k, int low,
                               int32_t half)
{
    uint32_t sum = (uint32_t)half; /* with enough taps it wraps, and the total is in range again */
    for (int tap = 0; tap < taps; tap++) {
        const resize_weight *w = &weights[tap >> 1];
        sum += (uint32_t)lines[tap][k] * (uint32_t)(w->high[tap & 1] * (1 << low) + (low ? w->low[tap & 1] : 0));
    }
    return (int32_t)sum;
}

static inline void blend(const uint8_t *const *lines, const resize_weight *weights, int taps, uint8_t *to, int n)
{
    for (int k = 0; k < n; k++)
        to[k] = saturate8(weighted(lines, weights, taps, k, BLEND_LOW, 1 << (BLEND_BITS - 1)) >> BLEND_BITS);
}

/* A strip of TURN lines becomes rows.  Pitch and stride are in bytes. */
static inline void turn(const uint8_t *lines, size_t pitch, uint8_t *to, size_t stride, int n)
{
    for (size_t k = 0; k < (size_t)n; k++)
        for (size_t line = 0; line < TURN; line++) to[k * stride + line] = lines[line * pitch + k];
}

/* Three lines to pixels of four bytes: little-endian, and the fourth byte stays as it is. */
static inline void interleave_from(int first, const uint8_t *const rgb[3], uint8_t *to, int n)
{
    for (int k = first; k < n; k++) {
        uint32_t pixel;
        memcpy(&pixel, to + 4 * k, 4);
        pixel = (pixel & 0xff000000u) | rgb[0][k] | (uint32_t)rgb[1][k] << 8 | (uint32_t)rgb[2][k] << 16;
        memcpy(to + 4 * k, &pixel, 4);
    }
}

static inline void interleave(const uint8_t *const rgb[3], uint8_t *to, int n) { interleave_from(0, rgb, to, n); }

static inline void split(const uint8_t *from, uint8_t *const rgb[3], int n)
{
    for (int c = 0; c < 3; c++)
        for (int k = 0; k < n; k++) rgb[c][k] = from[4 * k + c];
}
