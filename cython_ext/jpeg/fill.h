/* The inverse transform of a block that is DC alone: the same value 64 times. */
#pragma once
#include "idct.h"

static inline void fill(int16_t dc, int16_t quantiser, uint8_t *to, ptrdiff_t stride)
{
    int16_t between = wrap16(wrap16(dc * quantiser) * (1 << IDCT_BETWEEN));
    uint64_t eight = 0x0101010101010101u * saturate8(((between + 16) >> 5) + 128);
    for (int across = 0; across < 8; across++) memcpy(to + across * stride, &eight, 8);
}
