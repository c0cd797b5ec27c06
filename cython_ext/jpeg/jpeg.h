/* A decoder of baseline JPEG files that decodes no more than a crop needs, and resizes it on the way.
 *
 * markers  header.c    everything before the scan
 * bits     huffman.c, entropy.h, unstuff.h, stream.h, decode_scan.h    the coefficients of the wanted blocks
 * samples  idct.h, fill.h     the blocks of a plane for each component; a plane lies on its side (see path.h)
 * plan     plan.c    which of these a crop needs, and how it is resized
 * picture  picture.c over upsample.h, colour.h, deep.h, and ../resize
 * planes   planes.c    samples that are kept outside of a decoder, for another one to read
 *
 * Each path (path_plain.c, path_avx2.c, path_neon.c) includes the headers that suit its processor best.  A decoder
 * keeps its memory from one picture to the next, and serves one thread at a time. */
#pragma once
#include "header.h"
#include "path.h"

typedef struct jpeg_decoder jpeg_decoder;

typedef struct {
    int left, top, width, height;   /* the part of the picture; it lies inside */
    int out_width, out_height;      /* the size of the result */
    int all_width, all_height;      /* not 0: the part is resized to this size, and the result is a window of it */
    int out_left, out_top;          /* the beginning of the window */
    resize_filter filter;             /* for resizing */
    int is_kept;                    /* more parts of the file will be wanted: read it whole, once, and keep it */
    int is_exact;                   /* as Pillow: upsample, convert, resize.  Otherwise resize, then convert. */
    int may_go_down_first;          /* as Pillow since 13: see resize_goes_down_first */
    int is_mirrored;                /* left and right are exchanged before the part is resized, so roundings differ */
    int is_smooth;                  /* upsample as Pillow does; otherwise repeat each sample of chroma */
    uint8_t *to;                    /* the first pixel's red */
    ptrdiff_t channel, row, column; /* bytes from there to the next of each; negative if it is flipped */
    const jpeg_mark *marks;         /* of each row of MCUs, from an earlier reading of the same file; NULL: none */
    jpeg_mark *new_marks;           /* where to write them; NULL: nowhere.  Only one of the two may be set. */
} jpeg_request;

/* The fastest path that this processor has, or the path of this name; NULL if the processor cannot run it. */
const jpeg_path *jpeg_choose(const char *name);

jpeg_decoder *jpeg_new(const jpeg_path *path); /* NULL: no memory */
void jpeg_free(jpeg_decoder *decoder);

/* Reads a file's header, and remembers the file for jpeg_decode. */
int jpeg_open(jpeg_decoder *decoder, const uint8_t *data, size_t bytes);
const jpeg_header *jpeg_opened(const jpeg_decoder *decoder);

/* The number of rows of MCUs, and so of marks; 0: the file can have no marks, because it has restart markers. */
int jpeg_rows(const jpeg_decoder *decoder);

/* Decodes from the file that was opened last.  If it fails, it has written nothing. */
int jpeg_decode(jpeg_decoder *decoder, const jpeg_request *request);

/* The description by which a picture's planes are read without its file: NOTE [ Kept planes ] in planes.c. */
typedef struct {
    uint16_t width, height;
    uint8_t components, orientation;
    uint8_t h[2], v[2];             /* of luma and of chroma */
    uint8_t zeros[6];
} jpeg_shape;
_Static_assert(sizeof(jpeg_shape) == 16, "shapes are kept in files");

/* The shape of the open file, and the bytes of its planes.  For an unchecked shape it returns 0 if no picture can have
 * it. */
jpeg_shape jpeg_shape_of(const jpeg_decoder *decoder);
size_t jpeg_planes_bytes(const jpeg_shape *shape);

/* Reads the open file whole, keeps it as is_kept does, and writes its planes. */
int jpeg_write_planes(jpeg_decoder *decoder, uint8_t *to);

/* Opens planes in place of a file.  They are read in place until the next file is opened.  0: no such shape. */
int jpeg_open_planes(jpeg_decoder *decoder, const jpeg_shape *shape, const uint8_t *planes);

/* Reads the entropy-coded data down to the end of a part, decodes nothing, and looks for the file's end.  A benchmark
 * compares with this, because no decoder of that part can take less. */
int jpeg_skim(jpeg_decoder *decoder, const jpeg_request *request);
