/* A strip of TURN columns becomes rows, in plain C. */
#pragma once
#include <stddef.h>
#include <stdint.h>

static inline void turn(const uint8_t *lines, size_t pitch, uint8_t *to, size_t stride, int n)
{
    for (int k = 0; k < n; k++)
        for (int line = 0; line < TURN; line++) to[(size_t)k * stride + (size_t)line] = lines[(size_t)line * pitch + (size_t)k];
}
