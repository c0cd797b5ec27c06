/* The weights of a resize: which lines make a line of the result, and how many bits a weight has (22 as in Pillow, 14
 * for exact=False).
 *
 * Source: Pillow's resize, described in its documentation ("Concepts", filters) and matched by testing.  If the picture
 * shrinks, the filter is stretched by the scale.  Weights are doubles whose sum is 1, and then integers of 22 bits. */
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
    RESIZE_NEAREST, RESIZE_LANCZOS, RESIZE_BILINEAR, RESIZE_BICUBIC, RESIZE_BOX, RESIZE_HAMMING, RESIZE_FILTERS
} resize_filter;

/* The weights of two lines, by which a vector multiplies pairs of samples. */
typedef struct {
    int16_t high[2], low[2]; /* a weight of 22 bits is high << BLEND_LOW | low; a fast one is in `high` alone */
} resize_weight;

/* For each line of the result: the first line that it is made of, the number of lines, and where in `weights` their
 * pairs begin.  With an odd number, the last pair's second weight is 0 and has no line. */
typedef struct {
    int first, taps;
    size_t weights;
} resize_blend;

typedef struct {
    int count;              /* lines of the result */
    int first, lines;       /* exact weights: the first of the picture's lines that they need, and how many */
    int most;               /* the largest number of taps, made even */
    resize_blend *blends;
    resize_weight *weights;
    double *sums;           /* scratch memory while they are made */
    size_t blends_room, weights_room, sums_room;
    int key[8];             /* the arguments for which they were made; the same are not made again */
} resize_weights;

/* Weights for resizing `in` lines to `out` lines as Pillow does; `count` lines from `begin` on are wanted.  0: no
 * memory. */
int resize_weights_exact(resize_weights *weights, resize_filter kind, int in, int out, int begin, int count);

/* The same weights for one multiplication, for luma and for chroma, which have one filter.  The picture's lines begin
 * at the pixel `start`.  Chroma has one sample for `ratio` (1 to 4) pixels, numbered 0 to `samples` - 1.  With
 * `is_smooth` and a ratio of 2, chroma's weights include the upsampling of Pillow's decoder (upsample.h).  Not for
 * RESIZE_NEAREST, which sums nothing. */
int resize_weights_fast(resize_weights *luma, resize_weights *chroma, resize_filter kind, int in, int out, int start, int ratio,
                      int samples, int is_smooth);

void resize_weights_free(resize_weights *weights);

/* Whether the height is resized before the width.  The order matters, because the values in between are bytes.  Pillow
 * begins with the width; since version 13 it begins with the height if that shrinks more than twice as much (found by
 * testing). */
static inline int resize_goes_down_first(int width, int height, int to_width, int to_height)
{
    int lower = height - to_height, narrower = width - to_width;
    return lower > 0 && narrower && lower > 2 * narrower;
}

static inline uint8_t saturate8(int32_t v) { return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v); }

/* This line, or the nearest of the lines 0 to `end` - 1. */
static inline int clamp(int line, int end) { return line < 0 ? 0 : line >= end ? end - 1 : line; }
