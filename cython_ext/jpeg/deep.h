/* The fast way (exact=False) resizes words with DEEP bits behind the point, in plain C: weighted sums in one
 * multiplication, of bytes and of words, and strips of words that are turned.  resize/weights.h has the weights. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "../resize/lines.h"

static inline void blend_deep(const uint8_t *const *lines, const resize_weight *weights, int taps, int16_t *to, int n)
{
    enum { SHIFT = BLEND_FAST_BITS - DEEP };
    for (int k = 0; k < n; k++) to[k] = (int16_t)(weighted(lines, weights, taps, k, 0, 1 << (SHIFT - 1)) >> SHIFT);
}

static inline void blend_words(const int16_t *const *lines, const resize_weight *weights, int taps, int16_t *to, int n)
{
    for (int k = 0; k < n; k++) {
        int32_t sum = 1 << (BLEND_FAST_BITS - 1);
        for (int tap = 0; tap < taps; tap++) sum += lines[tap][k] * weights[tap >> 1].high[tap & 1];
        to[k] = (int16_t)(sum >> BLEND_FAST_BITS);
    }
}

static inline void turn_words(const int16_t *lines, size_t pitch, int16_t *to, size_t stride, int n)
{
    for (size_t k = 0; k < (size_t)n; k++)
        for (size_t line = 0; line < TURN; line++) to[k * stride + line] = lines[line * pitch + k];
}
