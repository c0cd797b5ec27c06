/* The functions that have a version for each processor: in plain C, with AVX2 and with NEON.  All agree bit for bit.
 *
 * A pixel is four bytes: red, green, blue, and one without meaning.  Functions on whole pictures take a number of
 * pixels and may round it up to a multiple of BLOCK, because every picture has that much room after it. */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { BLOCK = 32 };

/* A function that rounds a product and a sum once, together.  A processor may have AVX2 without such instructions, so
 * ask can_add_fused() first; all of the other functions need only AVX2. */
#if defined(__x86_64__)
#define WITH_FMA __attribute__((target("avx2,fma")))
#else
#define WITH_FMA
#endif

enum { NEAREST = 0, BILINEAR = 2, BICUBIC = 3 }; /* Pillow's numbers */

/* The input of an affine or perspective transform. */
typedef struct {
    const uint8_t *from;
    int width, height; /* of `from` */
    uint32_t fill;     /* the pixel for places outside of it */
} pixels_source;

/* How a channel's bytes become numbers: (byte * times / by - mean) / deviation, rounded to float after each step. */
typedef struct {
    float times, by, mean, deviation;
} pixels_scale;

/* The same without divisions: see numbers_fused.h.  Each factor is the sum of two floats. */
typedef struct {
    float scaling[2], mean, inverse[2];
} pixels_factors;

typedef struct {
    const char *name;
    int (*can_run)(void);

    /* look_up.h: looks each channel up in its table, in place. */
    void (*look_up)(uint8_t *at, size_t n, const uint8_t tables[3][256]);
    /* luma.h */
    void (*grayscale)(uint8_t *at, size_t n);
    void (*saturate)(uint8_t *at, size_t n, float factor);
    uint64_t (*sum_of_luma)(const uint8_t *at, size_t n); /* of exactly n pixels */
    /* blend.h: the result is `other` for alpha 1. */
    void (*blend)(uint8_t *at, const uint8_t *other, size_t n, float alpha);
    /* hue.h */
    void (*hue)(uint8_t *at, size_t n, int shift);
    /* smooth.h: row `y` of Pillow's Sharpness; `sums` has room for a row of words and two blocks. */
    void (*sharpen_row)(const uint8_t *from, uint8_t *to, int width, float factor, uint16_t *sums);
    /* box.h: one box blur down the picture. */
    void (*box_down)(const uint8_t *from, uint8_t *to, int width, int height, int radius, uint32_t inside,
                     uint32_t edge);
    /* convolve.h: a row of n pixels from `taps` rows, the weighted sum of theirs. */
    void (*convolve_row)(const uint8_t *const *rows, const float *weights, int taps, uint8_t *to, int n);
    /* window_avx2.h: a row of n pixels from `down` rows of floats, three a pixel, under a window of across x down
     * weights; and such floats from pixels, up to three pixels more than n.  NULL on a path that has none.  Do not call
     * them where can_add_fused() is 0. */
    void (*window_floats)(const uint8_t *from, float *to, int n);
    void (*window_row)(const float *const *rows, const float *weights, int across, int down, uint8_t *to, int n);
    /* turn.h: rows become columns. */
    void (*turn)(const uint8_t *from, uint8_t *to, int width, int height);
    /* warp.h: row `y` of the result, n pixels.  The nearest pixels of an affine transform are transform.c's. */
    void (*affine_row)(const pixels_source *source, const double *matrix, int y, int interpolation, uint8_t *to, int n);
    void (*perspective_row)(const pixels_source *source, const double *matrix, int y, int interpolation, uint8_t *to,
                            int n);
    /* planes.h: one row of bytes or of 32-bit items, each channel looked up in its table, to places one item apart;
     * without tables, the bytes themselves. */
    void (*split_bytes)(const uint8_t *from, int n, const uint8_t tables[3][256], uint8_t *const to[3], int channels);
    void (*split_words)(const uint8_t *from, int n, const uint32_t *tables, uint32_t *const to[3], int channels);
    /* numbers.h and numbers_fused.h: exactly n bytes of one channel; numbers.c chooses between the two.  The second one
     * is NULL on a path that has none.  Do not call it where can_add_fused() is 0. */
    void (*numbers)(const uint8_t *from, int n, const pixels_scale *scale, float *to);
    void (*numbers_fused)(const uint8_t *from, int n, const pixels_factors *factors, float *to);
    /* Whether this processor multiplies and adds with one rounding. */
    int (*can_add_fused)(void);
} pixels_path;

extern const pixels_path pixels_plain;
#if defined(__x86_64__)
extern const pixels_path pixels_avx2;
#elif defined(__aarch64__)
extern const pixels_path pixels_neon;
#endif

/* The fastest path that this processor has, or the path of this name; NULL if the processor cannot run it. */
const pixels_path *pixels_choose(const char *name);
