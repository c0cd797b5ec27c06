/* The numbers of numbers.h without divisions, which would take most of the time.
 *
 * x / d is x * high + x * low, where high + low is 1 / d.  The product with `low` is rounded; the other product and the
 * sum are rounded once, together.  For a very few divisors the last bit differs for some x, so numbers.c compares.
 * Source: N. Brisebarre, J.-M. Muller and S. K. Raina, "Accelerating correctly rounded floating-point division when the
 * divisor is known in advance", IEEE Transactions on Computers 53 (8), 2004. */
#pragma once
#include <math.h>

#include "path.h"

/* The compiler makes vectors of this. */
WITH_FMA
static void numbers_fused(const uint8_t *restrict from, int n, const pixels_factors *factors, float *restrict to)
{
    const pixels_factors f = *factors;
    for (int k = 0; k < n; k++) {
        float byte = from[k];
        float scaled = fmaf(byte, f.scaling[0], byte * f.scaling[1]) - f.mean;
        to[k] = fmaf(scaled, f.inverse[0], scaled * f.inverse[1]);
    }
}
