/* Which lines make a line of the resized picture, and with which weights.
 * Source: Pillow's resize, described in its documentation ("Concepts", filters) and matched by testing: the filter is
 * stretched by the scale where the picture shrinks, its weights are doubles of the sum 1, and then integers of 22 bits. */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum {
    BLEND_BITS = 22,        /* of Pillow's weights: 1 is 1 << 22 */
    BLEND_LOW = 11,         /* of them are separate, because the vectors multiply 16 bits by 16 */
    BLEND_FAST_BITS = 14,   /* of the weights that need one multiplication: 1 is 1 << 14 */
    DEEP = 6,               /* the bits behind the point of words: blend_deep, blend_words, colour_deep */
};

/* As Pillow numbers them. */
typedef enum {
    JPEG_NEAREST, JPEG_LANCZOS, JPEG_BILINEAR, JPEG_BICUBIC, JPEG_BOX, JPEG_HAMMING, JPEG_FILTERS
} jpeg_filter;

/* The weights of two lines: what a vector multiplies pairs of samples by. */
typedef struct {
    int16_t high[2], low[2]; /* a weight of 22 bits is high << BLEND_LOW | low; a fast one is in `high` alone */
} jpeg_weight;

/* Of each line of the result: the first line that it is made of, how many, and where in `weights` theirs begin, two by
 * two; the second of the last may be 0 and without a line. */
typedef struct {
    int first, taps;
    size_t weights;
} jpeg_blend;

typedef struct {
    int count;              /* lines of the result */
    int first, lines;       /* exact ones: of the picture's lines, those that they count and need */
    int most;               /* the largest number of taps, made even */
    jpeg_blend *blends;
    jpeg_weight *weights;
    double *sums;           /* room for the making */
    size_t blends_room, weights_room, sums_room;
    int key[8];             /* what they were made for: the same are not made again */
} jpeg_weights;

/* `in` lines to `out` lines, as Pillow does, of which `count` are wanted from `begin` on.  0: no memory. */
int jpeg_weights_exact(jpeg_weights *weights, jpeg_filter kind, int in, int out, int begin, int count);

/* The same in one multiplication, of luma and of chroma, whose filter is one.  The picture's lines begin at the pixel
 * `start`.  Chroma has one sample for `ratio` (1 to 4) pixels, and samples 0 to `samples` - 1; result lines are made of
 * these.  With `is_smooth`, and a ratio of 2, what Pillow's decoder does before (see upsample.h) is in chroma's weights.
 * Not for JPEG_NEAREST, which adds nothing up. */
int jpeg_weights_fast(jpeg_weights *luma, jpeg_weights *chroma, jpeg_filter kind, int in, int out, int start, int ratio,
                      int samples, int is_smooth);

void jpeg_weights_free(jpeg_weights *weights);

/* The line nearest to this one of those from 0 to `end` - 1. */
static inline int clamp(int line, int end) { return line < 0 ? 0 : line >= end ? end - 1 : line; }
