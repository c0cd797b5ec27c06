/* Decides whether bytes become numbers (ToTensor, Normalize) by divisions or without (numbers_fused.h).  It tries all
 * 256 bytes, and leaves divisions out only if each number stays the same bit for bit. */
#include "pixels.h"

#include <string.h>

static void split(double factor, float to[2])
{
    to[0] = (float)factor;
    to[1] = (float)(factor - (double)to[0]);
}

void pixels_plan_numbers(pixels_numbers *plan, const pixels_path *path, const pixels_scale *scale)
{
    uint8_t bytes[256];
    float divided[256], fused[256];
    pixels_factors *f = &plan->factors;
    plan->path = path;
    plan->scale = *scale;
    plan->is_fused = 0;
    if (!path->numbers_fused || !path->can_add_fused()) return;
    split((double)scale->times / (double)scale->by, f->scaling);
    split(1.0 / (double)scale->deviation, f->inverse);
    f->mean = scale->mean;
    /* There are only 256 bytes, so all are tried.  A very few divisors need their divisions. */
    for (int byte = 0; byte < 256; byte++) bytes[byte] = (uint8_t)byte;
    path->numbers(bytes, 256, scale, divided);
    path->numbers_fused(bytes, 256, f, fused);
    plan->is_fused = !memcmp(divided, fused, sizeof fused);
}

void pixels_calculate(const pixels_numbers *plan, const uint8_t *from, int n, float *to)
{
    if (plan->is_fused)
        plan->path->numbers_fused(from, n, &plan->factors, to);
    else
        plan->path->numbers(from, n, &plan->scale, to);
}
