/* The inverse DCT of a block, in plain C, with the roundings and overflows of libjpeg-turbo.
 *
 * Source: C. Loeffler, A. Ligtenberg, G. Moschytz, "Practical fast 1-D DCT algorithms with 11 multiplications" (1989),
 * in integers as libjpeg's "islow": constants of 13 bits, 2 more bits between the two passes, each pass rounded once.
 *
 * libjpeg-turbo's vectors keep 16 bits where C would keep 32: in products with the quantiser, in some sums of two
 * inputs, and between the passes.  Between the passes values saturate, but in blocks without any vertical frequency
 * they wrap.  No encoder makes coefficients for which that matters.  But a file may have any coefficients, so this code
 * does the same. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "../resize/weights.h"

/* cos and sqrt(2) terms, in 1/8192: the names are 10,000 times their values. */
enum {
    FIX_0_2986 = 2446, FIX_0_3902 = 3196, FIX_0_5412 = 4433, FIX_0_7654 = 6270, FIX_0_9000 = 7373, FIX_1_1759 = 9633,
    FIX_1_5013 = 12299, FIX_1_8478 = 15137, FIX_1_9616 = 16069, FIX_2_0531 = 16819, FIX_2_5629 = 20995,
    FIX_3_0727 = 25172,
    IDCT_BITS = 13, IDCT_BETWEEN = 2,
};

static inline int16_t wrap16(int32_t value) { return (int16_t)(uint16_t)value; }
static inline int16_t saturate16(int32_t v) { return (int16_t)(v < -32768 ? -32768 : v > 32767 ? 32767 : v); }

/* Eight values at `in`, `step` apart, to eight at `out`, rounded by `shift` bits. */
static inline void idct_line(const int16_t *in, int step, int32_t *out, int shift)
{
    int32_t in0 = in[0], in1 = in[step], in2 = in[2 * step], in3 = in[3 * step];
    int32_t in4 = in[4 * step], in5 = in[5 * step], in6 = in[6 * step], in7 = in[7 * step];

    int32_t round = 1 << (shift - 1);
    int32_t sum = wrap16(in0 + in4) * (1 << IDCT_BITS) + round, difference = wrap16(in0 - in4) * (1 << IDCT_BITS) + round;
    int32_t low = in2 * (FIX_0_5412 + FIX_0_7654) + in6 * FIX_0_5412;
    int32_t high = in2 * FIX_0_5412 + in6 * (FIX_0_5412 - FIX_1_8478);
    int32_t even0 = sum + low, even3 = sum - low, even1 = difference + high, even2 = difference - high;

    int32_t z3 = wrap16(in7 + in3), z4 = wrap16(in5 + in1);
    int32_t a = z3 * (FIX_1_1759 - FIX_1_9616) + z4 * FIX_1_1759;
    int32_t b = z3 * FIX_1_1759 + z4 * (FIX_1_1759 - FIX_0_3902);
    int32_t odd3 = in7 * (FIX_0_2986 - FIX_0_9000) - in1 * FIX_0_9000 + a;
    int32_t odd0 = in1 * (FIX_1_5013 - FIX_0_9000) - in7 * FIX_0_9000 + b;
    int32_t odd2 = in5 * (FIX_2_0531 - FIX_2_5629) - in3 * FIX_2_5629 + b;
    int32_t odd1 = in3 * (FIX_3_0727 - FIX_2_5629) - in5 * FIX_2_5629 + a;

    out[0] = (even0 + odd0) >> shift;
    out[7] = (even0 - odd0) >> shift;
    out[1] = (even1 + odd1) >> shift;
    out[6] = (even1 - odd1) >> shift;
    out[2] = (even2 + odd2) >> shift;
    out[5] = (even2 - odd2) >> shift;
    out[3] = (even3 + odd3) >> shift;
    out[4] = (even3 - odd3) >> shift;
}

static inline int place(int down, int across) { return 8 * down + across; }

/* The samples go to eight columns of eight bytes. */
static inline void idct(const int16_t *coefficients, const int16_t *quantiser, uint8_t *to, ptrdiff_t stride)
{
    int16_t block[64];
    int32_t line[8], vertical = 0;
    for (int k = 0; k < 64; k++) block[k] = wrap16(coefficients[k] * quantiser[k]);
    for (int k = 8; k < 64; k++) vertical |= coefficients[k];
    for (int across = 0; across < 8; across++) {
        idct_line(block + across, 8, line, IDCT_BITS - IDCT_BETWEEN);
        for (int down = 0; down < 8; down++)
            block[8 * down + across] = vertical ? saturate16(line[down]) : wrap16(line[down]);
    }
    for (int down = 0; down < 8; down++) {
        idct_line(block + 8 * down, 1, line, IDCT_BITS + IDCT_BETWEEN + 3);
        for (int across = 0; across < 8; across++) to[across * stride + down] = saturate8(line[across] + 128);
    }
}
