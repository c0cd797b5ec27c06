/* Turns rows into columns: eight by eight pixels at a time, which stay in the cache. */
#pragma once
#include "vectors.h"

static inline void turn_pixels(const uint8_t *from, uint8_t *to, int width, int height, int left, int top, int n)
{
    for (int y = top; y < top + n && y < height; y++)
        for (int x = left; x < left + n && x < width; x++)
            memcpy(to + 4 * ((size_t)x * (size_t)height + (size_t)y),
                   from + 4 * ((size_t)y * (size_t)width + (size_t)x), 4);
}

#if !defined(HAS_TURN)
static void turn(const uint8_t *from, uint8_t *to, int width, int height)
{
    for (int y = 0; y < height; y += 8)
        for (int x = 0; x < width; x += 8) turn_pixels(from, to, width, height, x, y, 8);
}
#endif
