/* From bytes to numbers, as torch computes: multiply, divide, subtract a mean, divide by a standard deviation, and
 * round after each. */
#pragma once
#include "vectors.h"

static void numbers(const uint8_t *from, int n, const pixels_scale *s, float *to)
{
    int k = 0;
    for (; k + 8 <= n; k += 8) {
        floats values = to_floats((ints)load_bytes(from + k));
        values = (values * s->times / s->by - s->mean) / s->deviation;
        memcpy(to + k, &values, sizeof values);
    }
    for (; k < n; k++) to[k] = ((float)from[k] * s->times / s->by - s->mean) / s->deviation;
}
