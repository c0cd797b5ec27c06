/* The parts of a decoder, which is two files: plan.c decides what to decode, picture.c decodes it. */
#pragma once
#include "jpeg.h"
#include "memory.h"

enum { ACROSS, DOWN, LUMA = 0, CHROMA = 1 };

/* How a component of chroma comes up to the size of luma. */
typedef enum { REPEAT, SMOOTH_BOTH, SMOOTH_ACROSS, SMOOTH_ALONG } upsampling;

/* The samples of a component that are wanted: the ends are beyond them. */
typedef struct {
    int left, top, right, bottom;
} area;

struct jpeg_decoder {
    const jpeg_path *path;
    jpeg_header header;
    jpeg_tables tables;
    jpeg_scan scan;
    jpeg_weights weights[2][2];     /* across and down; luma (exact: all channels) and chroma */
    area wanted[JPEG_COMPONENTS];
    upsampling upsampling;
    uint8_t order[BLOCK_POSITIONS];

    uint8_t *arena;                 /* of the picture: what needs no room of its own between two of them */
    size_t arena_room;

    int is_whole;                   /* the planes have all of the file, and stay; they are in an arena of their own, */
    int is_lent;                    /* or they are another's, and no file is open */
    uint8_t *kept;
    size_t kept_room;

    /* In the arena, beside the planes. */
    uint8_t *columns;               /* of pixels, a ring: each three lines of `column_bytes` */
    uint8_t *chroma[2];             /* a column each of upsampled chroma */
    uint8_t *strip;                 /* TURN lines that are turned together, of each channel */
    uint8_t *upright[3];            /* rows: as wide as the result, not yet as high */
    int16_t *upright_words[3];      /* the same in words, where it is to be fast */
    uint8_t *row[3];                /* one of the result */
    int16_t *deep[3];               /* the same, before the conversion of colours */
    const uint8_t **lines;          /* what a weighted sum is made of */
    uint8_t *laid;                  /* columns that are as high as the result, not yet as wide */
    size_t column_bytes, strip_bytes, row_bytes;
    int ring, is_flipped, goes_down_first;
    int is_resized[2];
};

/* Which samples, blocks and MCUs are wanted, and from where the scan is read. */
void jpeg_plan(jpeg_decoder *decoder, const jpeg_request *request);
/* Make room for the planes of all of the file, which is planned.  0: no memory. */
int jpeg_make_kept_room(jpeg_decoder *decoder);
/* Read all of the file, and keep it. */
int jpeg_read_all(jpeg_decoder *decoder);
/* Make room for what is planned, and set the decoder's pointers.  0: no memory. */
int jpeg_make_room(jpeg_decoder *decoder, const jpeg_request *request);
/* How Pillow would resize it, and so which of the part is needed: the request is narrowed to that.  0: no memory. */
int jpeg_plan_exact(jpeg_decoder *decoder, jpeg_request *request);
