/* Looks each channel up in its table. */
#pragma once
#include "vectors.h"

#if !defined(HAS_LOOK_UP)
static void look_up(uint8_t *at, size_t n, const uint8_t tables[3][256])
{
    for (size_t k = 0; k < n; k++, at += 4)
        at[0] = tables[0][at[0]], at[1] = tables[1][at[1]], at[2] = tables[2][at[2]];
}
#endif
