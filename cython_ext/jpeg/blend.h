/* Weighted sums of lines, by which a picture is resized, in plain C; weights.h has the weights. */
#pragma once
#include <stdint.h>

#include "idct.h"
#include "weights.h"

/* The sum of the weighted samples at k, and half a unit, so that cutting off the fraction rounds. */
static inline int32_t weighted(const uint8_t *const *lines, const jpeg_weight *weights, int taps, int k, int low,
                               int32_t half)
{
    uint32_t sum = (uint32_t)half; /* with enough taps it wraps, and the total is in range again */
    for (int tap = 0; tap < taps; tap++) {
        const jpeg_weight *w = &weights[tap >> 1];
        sum += (uint32_t)lines[tap][k] * (uint32_t)(w->high[tap & 1] * (1 << low) + (low ? w->low[tap & 1] : 0));
    }
    return (int32_t)sum;
}

static inline void blend(const uint8_t *const *lines, const jpeg_weight *weights, int taps, uint8_t *to, int n)
{
    for (int k = 0; k < n; k++)
        to[k] = saturate8(weighted(lines, weights, taps, k, BLEND_LOW, 1 << (BLEND_BITS - 1)) >> BLEND_BITS);
}

static inline void blend_deep(const uint8_t *const *lines, const jpeg_weight *weights, int taps, int16_t *to, int n)
{
    enum { SHIFT = BLEND_FAST_BITS - DEEP };
    for (int k = 0; k < n; k++) to[k] = (int16_t)(weighted(lines, weights, taps, k, 0, 1 << (SHIFT - 1)) >> SHIFT);
}

static inline void blend_words(const int16_t *const *lines, const jpeg_weight *weights, int taps, int16_t *to, int n)
{
    for (int k = 0; k < n; k++) {
        int32_t sum = 1 << (BLEND_FAST_BITS - 1);
        for (int tap = 0; tap < taps; tap++) sum += lines[tap][k] * weights[tap >> 1].high[tap & 1];
        to[k] = (int16_t)(sum >> BLEND_FAST_BITS);
    }
}
