/* Pillow's operations on a picture with memory of its own; each byte equals Pillow's.
 *
 * memory      picture.c    two buffers of pixels: an operation that cannot work in place writes from one to the other
 * look-ups    tables.c     tables of 256 entries a channel, combined, and applied when the pixels are needed
 * colours     colours.c    over luma.h, blend.h, hue.h, smooth.h
 * blur        blur.c       over box.h, turn.h, convolve.h, window_avx2.h
 * geometry    transform.c  over warp.h; frame.c: crop, pad, flip, turn by quarters; resize.c, over ../resize
 * the row     row.c        from pixels to planes, over planes.h; and boxes of a row that are overwritten
 *             numbers.c    from bytes to numbers, over numbers.h, numbers_fused.h
 *
 * Each path (path_plain.c, path_avx2.c, path_neon.c) includes the headers that suit its processor best.  A picture
 * keeps its memory when the next one is started, and serves one thread at a time.  Functions of type int return
 * PIXELS_OK or PIXELS_NO_MEMORY; pixels_convolve_window() may also return PIXELS_NO_WAY. */
#pragma once
#include "../resize/resize.h"
#include "path.h"

enum { PIXELS_OK, PIXELS_NO_MEMORY, PIXELS_NO_WAY };

enum { PAD_CONSTANT, PAD_EDGE, PAD_REFLECT, PAD_SYMMETRIC };

typedef struct {
    const pixels_path *path;
    uint8_t *now, *spare; /* the pixels, row by row; and a buffer of the same size */
    uint8_t *blocks[2];   /* the two as malloc returned them */
    size_t room;          /* of each, in pixels */
    void *scratch;        /* for rows of an operation */
    size_t scratch_room;  /* in bytes */
    resizer *resizer;     /* NULL until a picture is resized */
    int width, height;
    int channels;   /* 3, or 1: all three are equal, and one is written */
    int is_pending; /* `tables` still have to be applied to `now` */
    uint8_t tables[3][256];
} pixels_picture;

pixels_picture *pixels_new(const pixels_path *path); /* NULL: no memory */
void pixels_free(pixels_picture *picture);

/* Starts another picture, with undefined pixels.  Each side is 1 to 65535. */
int pixels_start(pixels_picture *picture, int width, int height, int channels);
/* Copies pixels from bytes: strides between rows, columns and channels.  A single channel becomes all three. */
void pixels_load(pixels_picture *picture, const uint8_t *from, ptrdiff_t row, ptrdiff_t column, ptrdiff_t channel);
int pixels_copy(pixels_picture *picture, const pixels_picture *other);

/* Makes room for an operation: a spare buffer of another size, and scratch.  Their contents are lost. */
int pixels_make_room(pixels_picture *picture, int width, int height);
int pixels_make_scratch(pixels_picture *picture, size_t bytes);
/* Makes the spare buffer the picture. */
void pixels_exchange(pixels_picture *picture, int width, int height);

/* Look-ups. */
void pixels_apply_pending(pixels_picture *picture);
void pixels_look_up(pixels_picture *picture, const uint8_t tables[3][256]);
void pixels_look_up_all(pixels_picture *picture, const uint8_t table[256]);
void pixels_brightness(pixels_picture *picture, float factor);
void pixels_contrast(pixels_picture *picture, float factor);
void pixels_autocontrast(pixels_picture *picture);
void pixels_equalize(pixels_picture *picture);

/* Colours. */
void pixels_saturation(pixels_picture *picture, float factor);
void pixels_hue(pixels_picture *picture, int shift);
void pixels_grayscale(pixels_picture *picture, int channels);
void pixels_permute(pixels_picture *picture, const int order[3]);
int pixels_sharpness(pixels_picture *picture, float factor);
void pixels_blend(pixels_picture *picture, pixels_picture *other, float alpha);

/* Blur. */
int pixels_gaussian_blur(pixels_picture *picture, float across, float down);
/* Sums of an odd number `taps` of weights around each pixel, across and down, with mirrored edges.  Pillow has no such
 * operation; the result is within 1 of a sum in another order. */
int pixels_convolve(pixels_picture *picture, const float *across, int taps_across, const float *down, int taps_down);
/* The same with a weight for each place of a window, added in the order of window_avx2.h.  PIXELS_NO_WAY if this
 * processor cannot, or if the window reaches beyond the mirrored picture. */
int pixels_convolve_window(pixels_picture *picture, const float *weights, int across, int down);

/* Geometry. */
int pixels_affine(pixels_picture *picture, int width, int height, const double matrix[6], int interpolation,
                  uint32_t fill);
int pixels_perspective(pixels_picture *picture, int width, int height, const double matrix[8], int interpolation,
                       uint32_t fill);
/* The part from left and top on.  It may extend beyond the picture; `mode` gives the pixels there. */
int pixels_frame(pixels_picture *picture, int left, int top, int width, int height, int mode, uint32_t fill);
int pixels_flip_left_right(pixels_picture *picture);
int pixels_flip_top_bottom(pixels_picture *picture);
int pixels_turn_quarters(pixels_picture *picture, int quarters); /* counterclockwise */
void pixels_fill_box(pixels_picture *picture, int left, int top, int width, int height, uint32_t colour);

/* Resizes the picture, or a canvas of one colour on which it lies.  Of the request, the canvas and the result matter; this
 * function fills in `from` and `to`. */
int pixels_resize(pixels_picture *picture, resize_request request);

/* To a row.  The tables have an entry of `item` bytes (1, 2 or 4) for each byte of each channel; NULL: the bytes stay.
 * `scales`, one for each channel, compute the same values as the tables, and are used where that is faster; or NULL. */
typedef struct {
    uint8_t *to;
    ptrdiff_t channel, row, column; /* in bytes */
} pixels_place;

int pixels_write(pixels_picture *picture, pixels_place place, const void *tables, int item,
                 const pixels_scale *scales);

/* Bytes of one channel to numbers.  The plan costs as much as 500 bytes, so make it once for many. */
typedef struct {
    const pixels_path *path;
    pixels_scale scale;
    pixels_factors factors;
    int is_fused; /* whether the factors give the numbers of the scale */
} pixels_numbers;

void pixels_plan_numbers(pixels_numbers *plan, const pixels_path *path, const pixels_scale *scale);
void pixels_calculate(const pixels_numbers *plan, const uint8_t *from, int n, float *to);

/* Fills a box of a finished row with one value, with one value for each channel, or with a value for each place. */
typedef struct {
    const uint8_t *values;
    ptrdiff_t channel, row, column; /* 0 where the value stays the same */
} pixels_values;

void pixels_erase(pixels_place place, int channels, int width, int height, pixels_values from, int item);
