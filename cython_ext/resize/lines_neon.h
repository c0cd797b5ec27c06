/* lines.h with NEON: 16 samples or pixels at a time, and squares of 16 by 16 bytes. */
#pragma once
#include "lines.h"

static inline void blend_neon(const uint8_t *const *lines, const resize_weight *weights, int taps, uint8_t *to, int n)
{
    for (int k = 0; k < n; k += 16) {
        uint32x4_t total[4];
        for (int part = 0; part < 4; part++) total[part] = vdupq_n_u32(1u << (BLEND_BITS - 1));
        for (int tap = 0; tap < taps; tap++) {
            const resize_weight *w = &weights[tap >> 1];
            uint32_t weight = (uint32_t)(w->high[tap & 1] * (1 << BLEND_LOW)) + (uint32_t)w->low[tap & 1];
            uint8x16_t samples = vld1q_u8(lines[tap] + k);
            uint16x8_t low = vmovl_u8(vget_low_u8(samples)), high = vmovl_u8(vget_high_u8(samples));
            total[0] = vmlaq_n_u32(total[0], vmovl_u16(vget_low_u16(low)), weight);
            total[1] = vmlaq_n_u32(total[1], vmovl_u16(vget_high_u16(low)), weight);
            total[2] = vmlaq_n_u32(total[2], vmovl_u16(vget_low_u16(high)), weight);
            total[3] = vmlaq_n_u32(total[3], vmovl_u16(vget_high_u16(high)), weight);
        }
        int16x4_t words[4]; /* of sums that may be negative, or more than white */
        for (int part = 0; part < 4; part++)
            words[part] = vmovn_s32(vshrq_n_s32(vreinterpretq_s32_u32(total[part]), BLEND_BITS));
        vst1q_u8(to + k, vcombine_u8(vqmovun_s16(vcombine_s16(words[0], words[1])),
                                     vqmovun_s16(vcombine_s16(words[2], words[3]))));
    }
}

static inline void turn_neon(const uint8_t *lines, size_t pitch, uint8_t *to, size_t stride, int n)
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

static inline void interleave_neon(const uint8_t *const rgb[3], uint8_t *to, int n)
{
    int k = 0;
    for (; k + 16 <= n; k += 16) {
        uint8x16x4_t pixels = vld4q_u8(to + 4 * k);
        for (int c = 0; c < 3; c++) pixels.val[c] = vld1q_u8(rgb[c] + k);
        vst4q_u8(to + 4 * k, pixels);
    }
    interleave_from(k, rgb, to, n);
}

static inline void split_neon(const uint8_t *from, uint8_t *const rgb[3], int n)
{
    for (int k = 0; k < n; k += 16) {
        uint8x16x4_t pixels = vld4q_u8(from + 4 * k);
        for (int c = 0; c < 3; c++) vst1q_u8(rgb[c] + k, pixels.val[c]);
    }
}
