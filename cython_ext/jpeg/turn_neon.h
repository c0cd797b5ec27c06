/* turn.h with NEON: squares of 16 by 16 bytes, and of 8 by 8 words (idct_neon.h). */
#pragma once
#include <stddef.h>
#include <stdint.h>

static void turn_neon(const uint8_t *lines, size_t pitch, uint8_t *to, size_t stride, int n)
{
    for (size_t k = 0; k < (size_t)n; k += TURN) {
        uint8x16_t a[TURN], b[TURN];
        for (size_t line = 0; line < TURN; line++) a[line] = vld1q_u8(lines + line * pitch + k);
        /* Each round puts the lines of the upper half between those of the lower; after four, rows are columns. */
        for (int round = 0; round < 4; round++) {
            for (int line = 0; line < TURN / 2; line++) {
                b[2 * line] = vzip1q_u8(a[line], a[line + TURN / 2]);
                b[2 * line + 1] = vzip2q_u8(a[line], a[line + TURN / 2]);
            }
            for (int line = 0; line < TURN; line++) a[line] = b[line];
        }
        for (size_t row = 0; row < TURN; row++) vst1q_u8(to + (k + row) * stride, a[row]);
    }
}

static void turn_words_neon(const int16_t *lines, size_t pitch, int16_t *to, size_t stride, int n)
{
    for (size_t k = 0; k < (size_t)n; k += 8)
        for (size_t half = 0; half < TURN; half += 8) {
            int16x8_t a[8];
            for (size_t line = 0; line < 8; line++) a[line] = vld1q_s16(lines + (half + line) * pitch + k);
            turn_square(a);
            for (size_t row = 0; row < 8; row++) vst1q_s16(to + (k + row) * stride + half, a[row]);
        }
}
