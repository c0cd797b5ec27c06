/* idct.h with NEON: eight lines at once, each input of all of them in a vector of words. */
#pragma once
#include "idct.h"

typedef struct {
    int32x4_t low, high;
} words32;

ALWAYS_INLINE words32 times(int16x8_t v, int constant)
{
    return (words32){vmull_n_s16(vget_low_s16(v), (int16_t)constant), vmull_n_s16(vget_high_s16(v), (int16_t)constant)};
}
ALWAYS_INLINE words32 plus_times(words32 sum, int16x8_t v, int constant)
{
    return (words32){vmlal_n_s16(sum.low, vget_low_s16(v), (int16_t)constant),
                     vmlal_n_s16(sum.high, vget_high_s16(v), (int16_t)constant)};
}
ALWAYS_INLINE words32 up_by_bits(int16x8_t v)
{
    return (words32){vshll_n_s16(vget_low_s16(v), IDCT_BITS), vshll_n_s16(vget_high_s16(v), IDCT_BITS)};
}
ALWAYS_INLINE words32 plus(words32 a, words32 b)
{
    return (words32){vaddq_s32(a.low, b.low), vaddq_s32(a.high, b.high)};
}
ALWAYS_INLINE words32 minus(words32 a, words32 b)
{
    return (words32){vsubq_s32(a.low, b.low), vsubq_s32(a.high, b.high)};
}

enum { BETWEEN_SATURATES, BETWEEN_WRAPS, AT_END };

/* Rounded, and in words again. */
ALWAYS_INLINE int16x8_t narrowed(words32 v, int stage)
{
    enum { FIRST = IDCT_BITS - IDCT_BETWEEN, LAST = IDCT_BITS + IDCT_BETWEEN + 3 };
    if (stage == AT_END)
        return vcombine_s16(vqmovn_s32(vrshrq_n_s32(v.low, LAST)), vqmovn_s32(vrshrq_n_s32(v.high, LAST)));
    if (stage == BETWEEN_WRAPS) return vcombine_s16(vrshrn_n_s32(v.low, FIRST), vrshrn_n_s32(v.high, FIRST));
    return vcombine_s16(vqrshrn_n_s32(v.low, FIRST), vqrshrn_n_s32(v.high, FIRST));
}

ALWAYS_INLINE void idct_pass(int16x8_t line[8], int stage)
{
    words32 sum = up_by_bits(vaddq_s16(line[0], line[4])), difference = up_by_bits(vsubq_s16(line[0], line[4]));
    words32 low = plus_times(times(line[2], FIX_0_5412 + FIX_0_7654), line[6], FIX_0_5412);
    words32 high = plus_times(times(line[2], FIX_0_5412), line[6], FIX_0_5412 - FIX_1_8478);
    words32 even0 = plus(sum, low), even3 = minus(sum, low), even1 = plus(difference, high);
    words32 even2 = minus(difference, high);

    int16x8_t z3 = vaddq_s16(line[7], line[3]), z4 = vaddq_s16(line[5], line[1]);
    words32 a = plus_times(times(z3, FIX_1_1759 - FIX_1_9616), z4, FIX_1_1759);
    words32 b = plus_times(times(z3, FIX_1_1759), z4, FIX_1_1759 - FIX_0_3902);
    words32 odd3 = plus_times(plus_times(a, line[7], FIX_0_2986 - FIX_0_9000), line[1], -FIX_0_9000);
    words32 odd0 = plus_times(plus_times(b, line[1], FIX_1_5013 - FIX_0_9000), line[7], -FIX_0_9000);
    words32 odd2 = plus_times(plus_times(b, line[5], FIX_2_0531 - FIX_2_5629), line[3], -FIX_2_5629);
    words32 odd1 = plus_times(plus_times(a, line[3], FIX_3_0727 - FIX_2_5629), line[5], -FIX_2_5629);

    line[0] = narrowed(plus(even0, odd0), stage);
    line[7] = narrowed(minus(even0, odd0), stage);
    line[1] = narrowed(plus(even1, odd1), stage);
    line[6] = narrowed(minus(even1, odd1), stage);
    line[2] = narrowed(plus(even2, odd2), stage);
    line[5] = narrowed(minus(even2, odd2), stage);
    line[3] = narrowed(plus(even3, odd3), stage);
    line[4] = narrowed(minus(even3, odd3), stage);
}

ALWAYS_INLINE void turn_square(int16x8_t a[8])
{
    int16x8_t b[8];
    for (int round = 0; round < 3; round++) {
        for (int line = 0; line < 4; line++) {
            b[2 * line] = vzip1q_s16(a[line], a[line + 4]);
            b[2 * line + 1] = vzip2q_s16(a[line], a[line + 4]);
        }
        for (int line = 0; line < 8; line++) a[line] = b[line];
    }
}

ALWAYS_INLINE void idct_neon(const int16_t *coefficients, const int16_t *quantiser, uint8_t *to, ptrdiff_t stride)
{
    int16x8_t line[8], vertical = vdupq_n_s16(0);
    for (int k = 0; k < 8; k++) {
        int16x8_t raw = vld1q_s16(coefficients + 8 * k);
        if (k) vertical = vorrq_s16(vertical, raw);
        line[k] = vmulq_s16(raw, vld1q_s16(quantiser + 8 * k));
    }
    if (vmaxvq_u16(vreinterpretq_u16_s16(vertical)))
        idct_pass(line, BETWEEN_SATURATES);
    else
        idct_pass(line, BETWEEN_WRAPS);
    turn_square(line);
    idct_pass(line, AT_END);
    for (int k = 0; k < 8; k++) vst1_u8(to + k * stride, vqmovun_s16(vqaddq_s16(line[k], vdupq_n_s16(128))));
}
