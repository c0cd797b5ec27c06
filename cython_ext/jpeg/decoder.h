/* The state of a decoder, shared by two files: plan.c decides what to decode, picture.c decodes it. */
#pragma once
#include "jpeg.h"
#include "../resize/memory.h"

enum { ACROSS, DOWN, LUMA = 0, CHROMA = 1 };

/* How chroma is brought to the size of luma. */
typedef enum { REPEAT, SMOOTH_BOTH, SMOOTH_ACROSS, SMOOTH_ALONG } upsampling;

/* The wanted samples of a component; the ends are exclusive. */
typedef struct {
    int left, top, right, bottom;
} area;

struct jpeg_decoder {
    const jpeg_path *path;
    const resize_path *resize;
    jpeg_header header;
    jpeg_tables tables;
    jpeg_scan scan;
    resize_weights weights[2][2];     /* across and down; luma (exact: all channels) and chroma */
    area wanted[JPEG_COMPONENTS];
    upsampling upsampling;
    uint8_t order[BLOCK_POSITIONS];

    uint8_t *arena;                 /* memory for one picture at a time */
    size_t arena_room;

    int is_whole;                   /* the planes have the whole file, and stay; they have an arena of their own, */
    int is_lent;                    /* or the planes are another object's, and no file is open */
    uint8_t *kept;
    size_t kept_room;

    /* In the arena, beside the planes. */
    uint8_t *columns;               /* a ring of columns of pixels: each three lines of `column_bytes` */
    uint8_t *chroma[2];             /* one column each of upsampled chroma */
    uint8_t *strip;                 /* TURN lines of each channel that are turned together */
    uint8_t *upright[3];            /* rows as wide as the result, before they are resized in height */
    int16_t *upright_words[3];      /* the same in words, for the fast way */
    uint8_t *row[3];                /* one row of the result */
    int16_t *deep[3];               /* the same, before the conversion of colours */
    const uint8_t **lines;          /* the terms of a weighted sum */
    uint8_t *laid;                  /* columns as high as the result, before they are resized in width */
    size_t column_bytes, strip_bytes, row_bytes;
    int ring, is_flipped, goes_down_first;
    int is_resized[2];
};

/* Decides which samples, blocks and MCUs are wanted, and where reading the scan begins. */
void jpeg_plan(jpeg_decoder *decoder, const jpeg_request *request);
/* Makes room for the planes of the whole file, after jpeg_plan.  0: no memory. */
int jpeg_make_kept_room(jpeg_decoder *decoder);
/* Reads the whole file, and keeps it. */
int jpeg_read_all(jpeg_decoder *decoder);
/* Makes room for what is planned, and sets the decoder's pointers.  0: no memory. */
int jpeg_make_room(jpeg_decoder *decoder, const jpeg_request *request);
/* Plans Pillow's way of resizing, and narrows the request to the part that it needs.  0: no memory. */
int jpeg_plan_exact(jpeg_decoder *decoder, jpeg_request *request);
