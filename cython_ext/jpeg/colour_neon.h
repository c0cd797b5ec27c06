/* colour.h with NEON.  The whole parts of constants of 1 and more are added separately. */
#pragma once
#include "colour.h"

/* The sum of two products in 1/65536, rounded. */
ALWAYS_INLINE int16x8_t rounded_sum(int16x8_t a, int by_a, int16x8_t b, int by_b)
{
    int32x4_t low = vmlal_n_s16(vmull_n_s16(vget_low_s16(a), (int16_t)by_a), vget_low_s16(b), (int16_t)by_b);
    int32x4_t high = vmlal_n_s16(vmull_n_s16(vget_high_s16(a), (int16_t)by_a), vget_high_s16(b), (int16_t)by_b);
    return vcombine_s16(vrshrn_n_s32(low, 16), vrshrn_n_s32(high, 16));
}

static void colour_neon(const uint8_t *const ycc[3], uint8_t *const rgb[3], int n)
{
    for (int k = 0; k < n; k += 8) {
        int16x8_t v[3];
        for (int c = 0; c < 3; c++) v[c] = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(ycc[c] + k)));
        int16x8_t y = v[0], cb = vsubq_s16(v[1], vdupq_n_s16(128)), cr = vsubq_s16(v[2], vdupq_n_s16(128));
        int16x8_t red = vaddq_s16(cr, rounded_sum(cr, RED_CR - 65536, cb, 0));
        int16x8_t green = vsubq_s16(rounded_sum(cb, -GREEN_CB, cr, 65536 - GREEN_CR), cr);
        int16x8_t blue = vaddq_s16(vaddq_s16(cb, cb), rounded_sum(cb, BLUE_CB - 2 * 65536, cr, 0));
        vst1_u8(rgb[0] + k, vqmovun_s16(vaddq_s16(y, red)));
        vst1_u8(rgb[1] + k, vqmovun_s16(vaddq_s16(y, green)));
        vst1_u8(rgb[2] + k, vqmovun_s16(vaddq_s16(y, blue)));
    }
}

/* possible() of colour.h */
ALWAYS_INLINE int16x8_t possible_words(const int16_t *words)
{
    return vminq_s16(vmaxq_s16(vld1q_s16(words), vdupq_n_s16(0)), vdupq_n_s16(255 << DEEP));
}

static void colour_deep_neon(const int16_t *const ycc[3], uint8_t *const rgb[3], int n)
{
    const int16x8_t middle = vdupq_n_s16(128 << DEEP);
    for (int k = 0; k < n; k += 8) {
        int16x8_t y = vaddq_s16(possible_words(ycc[0] + k), vdupq_n_s16(1 << (DEEP - 1)));
        int16x8_t cb = vsubq_s16(possible_words(ycc[1] + k), middle), cr = vsubq_s16(possible_words(ycc[2] + k), middle);
        /* vqrdmulhq_n_s16 is scaled() of colour.h. */
        int16x8_t red = vaddq_s16(vaddq_s16(y, cr), vqrdmulhq_n_s16(cr, DEEP_RED_CR));
        int16x8_t green = vsubq_s16(vsubq_s16(y, vqrdmulhq_n_s16(cb, DEEP_GREEN_CB)), vqrdmulhq_n_s16(cr, DEEP_GREEN_CR));
        int16x8_t blue = vaddq_s16(vaddq_s16(y, vqrdmulhq_n_s16(cb, DEEP_BLUE_CB)), vaddq_s16(cb, cb));
        vst1_u8(rgb[0] + k, vqshrun_n_s16(red, DEEP));
        vst1_u8(rgb[1] + k, vqshrun_n_s16(green, DEEP));
        vst1_u8(rgb[2] + k, vqshrun_n_s16(blue, DEEP));
    }
}
