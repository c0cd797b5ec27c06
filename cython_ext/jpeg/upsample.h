/* Chroma up to the size of luma, in plain C.
 * Source: the triangle filter that libjpeg calls fancy upsampling, described in its documentation (libjpeg.txt,
 * do_fancy_upsampling): a sample between two is 3/4 of the nearer and 1/4 of the farther.  It rounds up and down in
 * turns, so that errors do not add up.  That was found by testing. */
#pragma once
#include <stdint.h>

/* Both across and down the picture.  `near` and `far` are the columns of chroma that are nearer to and farther from a
 * column of luma.  Each begins with a copy of its first sample and ends with a copy of its last.  Makes 2 n samples. */
static inline void upsample_both(const uint8_t *near, const uint8_t *far, int bias, uint8_t *to, int n)
{
    for (int k = 0; k < n; k++) {
        int above = 3 * near[k - 1] + far[k - 1], here = 3 * near[k] + far[k], below = 3 * near[k + 1] + far[k + 1];
        to[2 * k] = (uint8_t)((3 * here + above + bias) >> 4);
        to[2 * k + 1] = (uint8_t)((3 * here + below + bias) >> 4);
    }
}

static inline void upsample_across(const uint8_t *near, const uint8_t *far, int bias, uint8_t *to, int n)
{
    for (int k = 0; k < n; k++) to[k] = (uint8_t)((3 * near[k] + far[k] + bias) >> 2);
}

static inline void upsample_along(const uint8_t *near, uint8_t *to, int n)
{
    for (int k = 0; k < n; k++) {
        to[2 * k] = (uint8_t)((3 * near[k] + near[k - 1] + 1) >> 2);
        to[2 * k + 1] = (uint8_t)((3 * near[k] + near[k + 1] + 2) >> 2);
    }
}
