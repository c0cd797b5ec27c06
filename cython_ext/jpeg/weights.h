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
    JPEG_NEAREST, JPEG_LANCZOS, JPEG_BILINEAR, JPEG_BICUBIC, JPEG_BOX, JPEG_HAMMING, JPEG_FILTERS
} jpeg_filter;

/* The weights of two lines, by which a vector multiplies pairs of samples. */
typedef struct {
    int16_t high[2], low[2]; /* a weight of 22 bits is high << BLEND_LOW | low; a fast one is in `high` alone */
} jpeg_weight;

/* For each line of the result: the first line that it is made of, the number of lines, and where in `weights` their
 * pairs begin.  With an odd number, the last pair's second weight is 0 and has no line. */
typedef struct {
    int first, taps;
    size_t weights;
} jpeg_blend;

typedef struct {
    int count;              /* lines of the result */
    int first, lines;       /* exact weights: the first of the picture's lines that they need, and how many */
    int most;               /* the largest number of taps, made even */
    jpeg_blend *blends;
    jpeg_weight *weights;
    double *sums;           /* scratch memory while they are made */
    size_t blends_room, weights_room, sums_room;
    int key[8];             /* the arguments for which they were made; the same are not made again */
} jpeg_weights;

/* Weights for resizing `in` lines to `out` lines as Pillow does; `count` lines from `begin` on are wanted.  0: no
 * memory. */
int jpeg_weights_exact(jpeg_weights *weights, jpeg_filter kind, int in, int out, int begin, int count);

/* The same weights for one multiplication, for luma and for chroma, which have one filter.  The picture's lines begin
 * at the pixel `start`.  Chroma has one sample for `ratio` (1 to 4) pixels, numbered 0 to `samples` - 1.  With
 * `is_smooth` and a ratio of 2, chroma's weights include the upsampling of Pillow's decoder (upsample.h).  Not for
 * JPEG_NEAREST, which sums nothing. */
int jpeg_weights_fast(jpeg_weights *luma, jpeg_weights *chroma, jpeg_filter kind, int in, int out, int start, int ratio,
                      int samples, int is_smooth);

void jpeg_weights_free(jpeg_weights *weights);

/* This line, or the nearest of the lines 0 to `end` - 1. */
static inline int clamp(int line, int end) { return line < 0 ? 0 : line >= end ? end - 1 : line; }
