/* A strip of TURN columns becomes rows, in plain C.  Pitch and stride are in elements. */
#pragma once
#include <stddef.h>
#include <stdint.h>

static inline void turn(const uint8_t *lines, size_t pitch, uint8_t *to, size_t stride, int n)
{
    for (size_t k = 0; k < (size_t)n; k++)
        for (size_t line = 0; line < TURN; line++) to[k * stride + line] = lines[line * pitch + k];
}

static inline void turn_words(const int16_t *lines, size_t pitch, int16_t *to, size_t stride, int n)
{
    for (size_t k = 0; k < (size_t)n; k++)
        for (size_t line = 0; line < TURN; line++) to[k * stride + line] = lines[line * pitch + k];
}
