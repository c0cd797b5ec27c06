/* Image.blend of two pictures. */
#pragma once
#include "vectors.h"

static void blend(uint8_t *at, const uint8_t *other, size_t n, float alpha)
{
    for (size_t k = 0; k < n; k += 8) {
        words one = load_words(at + 4 * k), two = load_words(other + 4 * k), blended = {0};
        for (int c = 0; c < 3; c++) {
            ints from = channel(one, c);
            floats mixed = to_floats(from) + alpha * to_floats(channel(two, c) - from);
            blended |= (words)to_ints(clamped(mixed)) << (8 * c);
        }
        store_words(at + 4 * k, blended);
    }
}
