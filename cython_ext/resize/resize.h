/* Resizes pixels in memory as Pillow does, byte for byte: a picture that lies on a canvas of one colour, mirrored or not,
 * and of the result only the part that is wanted.
 *
 * weights    weights.c    the filters, and the lines that make a line of the result
 * lines      lines.h      the work on lines; path.h has a version for each processor
 * resize     resize.c     the two directions, and their order
 *
 * A resizer keeps its memory from one picture to the next, and serves one thread at a time. */
#pragma once
#include "path.h"

typedef struct resizer resizer;

typedef struct {
    /* The picture: pixels of four bytes (red, green, blue, and one without meaning), and the bytes from row to row.
     * Up to LINE pixels after the last one are read, whatever they are. */
    const uint8_t *from;
    ptrdiff_t row;
    int width, height;
    int channels; /* 3, or 1: all three are equal */
    /* The canvas: its size, the picture's place on it (all of the picture is inside), whether it is mirrored then, and
     * the colour around the picture. */
    int canvas_width, canvas_height, left, top, is_mirrored;
    uint8_t fill[3];
    /* The result: the canvas is resized to `all`, and the wanted part of that lies inside. */
    int all_width, all_height, out_left, out_top, out_width, out_height;
    resize_filter filter;
    int may_go_down_first; /* as Pillow since version 13 */
    /* Pixels of four bytes, row by row, which are the wanted part; its columns in reverse if `is_flipped`. */
    uint8_t *to;
    ptrdiff_t to_row;
    int is_flipped;
} resize_request;

resizer *resize_new(const resize_path *path); /* NULL: no memory */
void resize_free(resizer *r);

/* 0: no memory. */
int resize_pixels(resizer *r, const resize_request *request);
