/* interleave.h with NEON. */
#pragma once
#include "interleave.h"

static void interleave_neon(const uint8_t *const rgb[3], uint8_t *to, int n)
{
    int k = 0;
    for (; k + 16 <= n; k += 16) {
        uint8x16x4_t pixels = vld4q_u8(to + 4 * k);
        for (int c = 0; c < 3; c++) pixels.val[c] = vld1q_u8(rgb[c] + k);
        vst4q_u8(to + 4 * k, pixels);
    }
    interleave_from(k, rgb, to, n);
}
