/* deep.h with NEON: 8 samples at a time, and squares of 8 by 8 words (idct_neon.h). */
#pragma once
#include "deep.h"

static void blend_deep_neon(const uint8_t *const *lines, const resize_weight *weights, int taps, int16_t *to, int n)
{
    enum { SHIFT = BLEND_FAST_BITS - DEEP };
    for (int k = 0; k < n; k += 8) {
        int32x4_t low = vdupq_n_s32(0), high = low;
        for (int tap = 0; tap < taps; tap++) {
            int16x8_t samples = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(lines[tap] + k)));
            int16_t weight = weights[tap >> 1].high[tap & 1];
            low = vmlal_n_s16(low, vget_low_s16(samples), weight);
            high = vmlal_n_s16(high, vget_high_s16(samples), weight);
        }
        vst1q_s16(to + k, vcombine_s16(vrshrn_n_s32(low, SHIFT), vrshrn_n_s32(high, SHIFT)));
    }
}

static void blend_words_neon(const int16_t *const *lines, const resize_weight *weights, int taps, int16_t *to, int n)
{
    for (int k = 0; k < n; k += 8) {
        int32x4_t low = vdupq_n_s32(0), high = low;
        for (int tap = 0; tap < taps; tap++) {
            int16x8_t words = vld1q_s16(lines[tap] + k);
            int16_t weight = weights[tap >> 1].high[tap & 1];
            low = vmlal_n_s16(low, vget_low_s16(words), weight);
            high = vmlal_n_s16(high, vget_high_s16(words), weight);
        }
        vst1q_s16(to + k, vcombine_s16(vrshrn_n_s32(low, BLEND_FAST_BITS), vrshrn_n_s32(high, BLEND_FAST_BITS)));
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
