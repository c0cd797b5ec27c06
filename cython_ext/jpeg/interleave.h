/* Three planes to pixels of four bytes, in plain C: little-endian, and the fourth byte stays as it is. */
#pragma once
#include <stdint.h>
#include <string.h>

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
