/* A decoder of baseline JPEG files that decodes no more than a crop needs, and resizes it on the way.
 *
 * markers  header.c    what stands before the scan
 * bits     huffman.c, entropy.h, unstuff.h, stream.h, decode_scan.h    coefficients, of the blocks that are wanted
 * samples  idct.h, fill.h     blocks of a plane for each component, lying on its side (see path.h)
 * plan     plan.c, weights.c    which of these a crop needs, and how it is resized
 * picture  picture.c over upsample.h, colour.h, blend.h, turn.h
 * planes   planes.c    samples that are kept outside of a decoder, and read by another one
 *
 * Each path (path_plain.c, path_avx2.c, path_neon.c) gathers the headers that its processor runs best.  A decoder keeps
 * its memory from one picture to the next and serves one thread at a time. */
#pragma once
#include "header.h"
#include "path.h"

typedef struct jpeg_decoder jpeg_decoder;

typedef struct {
    int left, top, width, height;   /* which part of the picture; all of it lies inside */
    int out_width, out_height;      /* what it is resized to */
    int all_width, all_height;      /* not 0: what it is resized to, and the result is a window of that */
    int out_left, out_top;          /* where the window begins */
    jpeg_filter filter;             /* by which it is resized */
    int is_kept;                    /* more parts of the file will be wanted: read all of it once, and keep it */
    int is_exact;                   /* as Pillow: upsample, convert, resize.  Else resize, then convert. */
    int may_go_down_first;          /* as Pillow since 13: see goes_down_first in plan.c */
    int is_smooth;                  /* upsampled as Pillow does; else each sample of chroma is repeated */
    uint8_t *to;                    /* the first pixel's red */
    ptrdiff_t channel, row, column; /* from there to the next one, in bytes; negative where it is flipped */
    const jpeg_mark *marks;         /* of each row of MCUs, from an earlier reading of the same file; NULL: none */
    jpeg_mark *new_marks;           /* where these go; NULL: nowhere.  Not both. */
} jpeg_request;

/* The fastest path that this processor has, or the one of this name; NULL where it has none of it. */
const jpeg_path *jpeg_choose(const char *name);

jpeg_decoder *jpeg_new(const jpeg_path *path); /* NULL: no memory */
void jpeg_free(jpeg_decoder *decoder);

/* Reads a file's header, and keeps where the file is for jpeg_decode. */
int jpeg_open(jpeg_decoder *decoder, const uint8_t *data, size_t bytes);
const jpeg_header *jpeg_opened(const jpeg_decoder *decoder);

/* How many rows of MCUs, and so marks, the file has; 0: it can have no marks, because it has restart markers. */
int jpeg_rows(const jpeg_decoder *decoder);

/* Decodes from the file that was opened last.  Where it says no, nothing was written. */
int jpeg_decode(jpeg_decoder *decoder, const jpeg_request *request);

/* What a picture's planes are read by, where these are kept without its file: NOTE [ Kept planes ] in planes.c. */
typedef struct {
    uint16_t width, height;
    uint8_t components, orientation;
    uint8_t h[2], v[2];             /* of luma and of chroma */
    uint8_t zeros[6];
} jpeg_shape;
_Static_assert(sizeof(jpeg_shape) == 16, "shapes are kept in files");

/* The shape of the file that is open, and the bytes of its planes; of a shape that nobody has checked, 0 where no
 * picture has it. */
jpeg_shape jpeg_shape_of(const jpeg_decoder *decoder);
size_t jpeg_planes_bytes(const jpeg_shape *shape);

/* Reads all of the file that is open, keeps it as is_kept does, and writes its planes. */
int jpeg_write_planes(jpeg_decoder *decoder, uint8_t *to);

/* Opens planes in place of a file.  They are read where they are until the next file is opened.  0: no such shape. */
int jpeg_open_planes(jpeg_decoder *decoder, const jpeg_shape *shape, const uint8_t *planes);

/* Reads the entropy-coded data down to the end of a part, makes nothing of it, and looks for the file's end: the least
 * that decoding that part takes, for a bench to compare with. */
int jpeg_skim(jpeg_decoder *decoder, const jpeg_request *request);
