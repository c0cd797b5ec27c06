/* blend.h with NEON: 16 samples at a time. */
#pragma once
#include "blend.h"

static void blend_neon(const uint8_t *const *lines, const jpeg_weight *weights, int taps, uint8_t *to, int n)
{
    for (int k = 0; k < n; k += 16) {
        uint32x4_t total[4];
        for (int part = 0; part < 4; part++) total[part] = vdupq_n_u32(1u << (BLEND_BITS - 1));
        for (int tap = 0; tap < taps; tap++) {
            const jpeg_weight *w = &weights[tap >> 1];
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

static void blend_deep_neon(const uint8_t *const *lines, const jpeg_weight *weights, int taps, int16_t *to, int n)
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

static void blend_words_neon(const int16_t *const *lines, const jpeg_weight *weights, int taps, int16_t *to, int n)
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
