/* upsample.h with NEON: 8 samples of chroma at a time. */
#pragma once
#include <stdint.h>

/* 3 near + far */
ALWAYS_INLINE uint16x8_t mixed(const uint8_t *near, const uint8_t *far)
{
    return vmlal_u8(vmovl_u8(vld1_u8(far)), vld1_u8(near), vdup_n_u8(3));
}

static void upsample_both_neon(const uint8_t *near, const uint8_t *far, int bias, uint8_t *to, int n)
{
    for (int k = 0; k < n; k += 8) {
        uint16x8_t above = mixed(near + k - 1, far + k - 1), below = mixed(near + k + 1, far + k + 1);
        uint16x8_t most = vmlaq_n_u16(vdupq_n_u16((uint16_t)bias), mixed(near + k, far + k), 3);
        uint8x8x2_t turns = {{vshrn_n_u16(vaddq_u16(most, above), 4), vshrn_n_u16(vaddq_u16(most, below), 4)}};
        vst2_u8(to + 2 * k, turns);
    }
}

static void upsample_across_neon(const uint8_t *near, const uint8_t *far, int bias, uint8_t *to, int n)
{
    for (int k = 0; k < n; k += 8)
        vst1_u8(to + k, vshrn_n_u16(vaddq_u16(mixed(near + k, far + k), vdupq_n_u16((uint16_t)bias)), 2));
}

static void upsample_along_neon(const uint8_t *near, uint8_t *to, int n)
{
    for (int k = 0; k < n; k += 8) {
        uint16x8_t even = vaddq_u16(mixed(near + k, near + k - 1), vdupq_n_u16(1));
        uint16x8_t odd = vaddq_u16(mixed(near + k, near + k + 1), vdupq_n_u16(2));
        uint8x8x2_t turns = {{vshrn_n_u16(even, 2), vshrn_n_u16(odd, 2)}};
        vst2_u8(to + 2 * k, turns);
    }
}
