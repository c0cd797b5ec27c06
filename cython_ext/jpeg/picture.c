/* Decodes a crop, resizes it and writes its rows.  Decides which results are exact in spite of exact=False (grey, not
 * resized, shrunk to a sixteenth or less), and how much memory is kept after a picture.
 *
 * ../resize/weights.c has the filters of a resize, and says what a new one needs. */
#include <stdlib.h>
#include <string.h>

#include "decoder.h"

enum { KEPT = 64 << 20, FAST_SCALE = 16 };

static const uint8_t zigzag[64] = {
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47,
    55, 62, 63,
};

jpeg_decoder *jpeg_new(const jpeg_path *path)
{
    jpeg_decoder *d = aligned_alloc(ALIGN, up(sizeof *d, ALIGN));
    if (!d) return NULL;
    memset(d, 0, sizeof *d);
    d->path = path;
    d->resize = resize_choose(path->name); /* the two rooms have the same paths */
    d->scan.stream.clean = calloc(1, SCAN_BYTES);
    if (!d->scan.stream.clean) {
        free(d);
        return NULL;
    }
    memset(d->order, BLOCK_DUMP, sizeof d->order);
    for (int k = 0; k < 64; k++) d->order[k + 1] = (uint8_t)path->place(zigzag[k] / 8, zigzag[k] % 8);
    return d;
}

void jpeg_free(jpeg_decoder *d)
{
    if (!d) return;
    for (int k = 0; k < 4; k++) resize_weights_free(&d->weights[k / 2][k % 2]);
    free(d->scan.stream.clean);
    free(d->kept);
    free(d->arena);
    free(d);
}

int jpeg_open(jpeg_decoder *d, const uint8_t *data, size_t bytes)
{
    d->is_whole = d->is_lent = 0;
    if (d->kept_room > KEPT) { /* the memory of one large picture must not stay forever */
        free(d->kept);
        d->kept = NULL;
        d->kept_room = 0;
    }
    return jpeg_read_header(&d->header, &d->tables, data, bytes);
}

const jpeg_header *jpeg_opened(const jpeg_decoder *d) { return &d->header; }

static uint8_t *column_of(const jpeg_plane *p, int x, int y)
{
    return p->samples + (x - 8 * p->left) * p->stride + (y - 8 * p->top);
}

/* At the picture's upper and lower edge, repeat the last sample, as libjpeg does. */
static void copy_edges(const jpeg_plane *p, const area *a)
{
    for (int x = a->left; x < a->right; x++) {
        uint8_t *column = column_of(p, x, 0);
        if (a->top == 0) column[-1] = column[0];
        if (a->bottom == p->height) column[p->height] = column[p->height - 1];
    }
}

/* A column of one component of chroma, upsampled to luma's height, from the row `top`, which begins a chroma sample. */
static const uint8_t *upsampled(jpeg_decoder *d, int component, int x, int top, int bottom)
{
    const jpeg_path *path = d->path;
    const jpeg_plane *p = &d->scan.planes[component];
    uint8_t *to = d->chroma[component - 1];
    int near = x / p->across, far = clamp(x & 1 ? near + 1 : near - 1, p->width), row = top / p->down;
    int n = (bottom - top + p->down - 1) / p->down;
    const uint8_t *here = column_of(p, near, row);
    switch (d->upsampling) {
    case SMOOTH_BOTH: path->upsample_both(here, column_of(p, far, row), x & 1 ? 7 : 8, to, n); break;
    case SMOOTH_ACROSS: path->upsample_across(here, column_of(p, far, row), x & 1 ? 2 : 1, to, n); break;
    case SMOOTH_ALONG: path->upsample_along(here, to, n); break;
    default:
        if (p->down == 1) return here;
        for (int k = 0; k < n; k++) memset(to + (size_t)k * (size_t)p->down, here[k], (size_t)p->down);
    }
    return to;
}

/* A column of pixels, from the row `top` on. */
static void make_column(jpeg_decoder *d, int x, int top, int bottom, uint8_t *const rgb[3])
{
    const uint8_t *luma = column_of(&d->scan.planes[0], x, top);
    if (d->header.components == 1) {
        memcpy(rgb[0], luma, (size_t)(bottom - top));
        return;
    }
    const uint8_t *ycc[3] = {luma, upsampled(d, 1, x, top, bottom), upsampled(d, 2, x, top, bottom)};
    d->path->colour(ycc, rgb, bottom - top);
}

static uint8_t *strip_line(jpeg_decoder *d, int component, int line)
{
    return d->strip + ((size_t)component * TURN + (size_t)(line % TURN)) * d->strip_bytes;
}

/* Turns a strip upright: its columns become the columns of the result from `x` on. */
static void turn_strip(jpeg_decoder *d, int component, int x, int offset, int rows)
{
    d->resize->turn(strip_line(d, component, 0) + offset, d->strip_bytes, d->upright[component] + x, d->row_bytes, rows);
}

/* The lines of a weighted sum, in pairs; with an odd number, the last pair has the first line again. */
static int gather(const uint8_t **lines, const resize_blend *blend, const uint8_t *at, size_t stride)
{
    for (int tap = 0; tap < blend->taps; tap++) lines[tap] = at + (size_t)(blend->first + tap) * stride;
    if (blend->taps & 1) lines[blend->taps] = lines[blend->taps - 1];
    return blend->taps + (blend->taps & 1);
}

/* A flipped picture's columns are made in the same order, and go to the other end. */
static int place_of_column(const jpeg_decoder *d, const jpeg_request *q, int x)
{
    return d->is_flipped ? q->out_width - 1 - x : x;
}

/* Whether this column of the result completes a strip. */
static int ends_strip(const jpeg_decoder *d, const jpeg_request *q, int to)
{
    return d->is_flipped ? to % TURN == 0 : to % TURN == TURN - 1 || to == q->out_width - 1;
}

/* Makes all columns of pixels, without resizing. */
static void lay_out(jpeg_decoder *d, const jpeg_request *q, int is_flipped)
{
    int begin = q->top - q->top % d->header.v, offset = q->top - begin, bottom = q->top + q->height;
    for (int x = 0; x < q->width; x++) {
        int to = is_flipped ? q->width - 1 - x : x;
        uint8_t *rgb[3] = {strip_line(d, 0, to), strip_line(d, 1, to), strip_line(d, 2, to)};
        make_column(d, q->left + x, begin, bottom, rgb);
        if (is_flipped ? to % TURN == 0 : to % TURN == TURN - 1 || to == q->width - 1)
            for (int k = 0; k < d->header.components; k++) turn_strip(d, k, to - to % TURN, offset, q->height);
    }
}

/* Makes each column of pixels when the result first needs it, and keeps as many as the next columns may need. */
static void resize_across(jpeg_decoder *d, const jpeg_request *q)
{
    const resize_weights *w = &d->weights[ACROSS][LUMA];
    int made = 0, begin = q->top - q->top % d->header.v, offset = q->top - begin, bottom = q->top + q->height;
    for (int x = 0; x < q->out_width; x++) {
        int to = place_of_column(d, q, x), taps;
        const resize_blend *b = &w->blends[x];
        for (; made < b->first + b->taps; made++) {
            uint8_t *at = d->columns + (size_t)(made % d->ring) * 3 * d->column_bytes;
            uint8_t *rgb[3] = {at, at + d->column_bytes, at + 2 * d->column_bytes};
            int column = q->is_mirrored ? q->width - 1 - made : made;
            if (made >= b->first) make_column(d, q->left + column, begin, bottom, rgb);
        }
        for (int k = 0; k < d->header.components; k++) {
            for (taps = 0; taps < b->taps || taps & 1; taps++) {
                int column = b->first + (taps < b->taps ? taps : b->taps - 1);
                d->lines[taps] = d->columns + ((size_t)(column % d->ring) * 3 + (size_t)k) * d->column_bytes + offset;
            }
            d->resize->blend(d->lines, w->weights + b->weights, taps, strip_line(d, k, to), q->height);
            if (ends_strip(d, q, to)) turn_strip(d, k, to - to % TURN, 0, q->height);
        }
    }
}

/* Down first: resize the rows, lay them on their side again, and resize the columns. */
static void resize_down_then_across(jpeg_decoder *d, const jpeg_request *q)
{
    const resize_weights *w = &d->weights[DOWN][LUMA];
    size_t pitch = up((size_t)q->out_height + LINE, LINE);
    lay_out(d, q, q->is_mirrored);
    for (int k = 0; k < d->header.components; k++) {
        for (int y = 0; y < q->out_height; y++) {
            int taps = gather(d->lines, &w->blends[y], d->upright[k], d->row_bytes);
            d->resize->blend(d->lines, w->weights + w->blends[y].weights, taps, strip_line(d, 0, y), q->width);
            if (y % TURN == TURN - 1 || y == q->out_height - 1)
                d->resize->turn(strip_line(d, 0, 0), d->strip_bytes, d->laid + y - y % TURN, pitch, q->width);
        }
        for (int x = 0; x < q->out_width; x++) {
            const resize_blend *b = &d->weights[ACROSS][LUMA].blends[x];
            int to = place_of_column(d, q, x), taps = gather(d->lines, b, d->laid, pitch);
            d->resize->blend(d->lines, d->weights[ACROSS][LUMA].weights + b->weights, taps, strip_line(d, 0, to),
                           q->out_height);
            if (ends_strip(d, q, to))
                d->resize->turn(strip_line(d, 0, 0), d->strip_bytes, d->upright[k] + to - to % TURN, d->row_bytes,
                              q->out_height);
        }
    }
}

/* Writes one row of the result. */
static void put_row(const jpeg_decoder *d, const jpeg_request *q, int y, const uint8_t *const rgb[3])
{
    uint8_t *to = q->to + y * q->row;
    if (q->column == 1) {
        for (int k = 0; k < 3; k++) {
            if (rgb[k] != to + k * q->channel) memcpy(to + k * q->channel, rgb[k], (size_t)q->out_width);
        }
        return;
    }
    int x = 0;
    if (q->column == 4 && q->channel == 1) { /* all but the last pixel, which may have no fourth byte */
        x = q->out_width - 1;
        d->resize->interleave(rgb, to, x);
        to += 4 * x;
    }
    for (; x < q->out_width; x++, to += q->column)
        for (int k = 0; k < 3; k++) to[k * q->channel] = rgb[k][x];
}

/* The memory in which a row of the result is made: its own place, if whole LINEs of bytes fit there. */
static void choose_rows(jpeg_decoder *d, const jpeg_request *q, int y, uint8_t *rows[3])
{
    int is_in_place = q->column == 1 && q->out_width % LINE == 0;
    for (int k = 0; k < 3; k++) rows[k] = is_in_place ? q->to + y * q->row + k * q->channel : d->row[k];
    if (d->header.components == 1) rows[1] = rows[2] = rows[0];
}

/* Writes the rows, after resizing them if that is still to be done. */
static void resize_down(jpeg_decoder *d, const jpeg_request *q, int is_resized)
{
    const resize_weights *w = &d->weights[DOWN][LUMA];
    int components = d->header.components;
    for (int y = 0; y < q->out_height; y++) {
        uint8_t *rows[3];
        choose_rows(d, q, y, rows);
        for (int k = 0; k < components; k++) {
            if (is_resized) {
                rows[k] = d->upright[k] + (size_t)y * d->row_bytes;
                continue;
            }
            int taps = gather(d->lines, &w->blends[y], d->upright[k], d->row_bytes);
            d->resize->blend(d->lines, w->weights + w->blends[y].weights, taps, rows[k], q->out_width);
        }
        if (components == 1) rows[1] = rows[2] = rows[0];
        put_row(d, q, y, (const uint8_t *const *)rows);
    }
}

static void make_exact(jpeg_decoder *d, const jpeg_request *q)
{
    if (d->goes_down_first) {
        resize_down_then_across(d, q);
        resize_down(d, q, 1);
        return;
    }
    if (d->is_resized[ACROSS])
        resize_across(d, q);
    else
        lay_out(d, q, d->is_flipped != q->is_mirrored);
    resize_down(d, q, !d->is_resized[DOWN]);
}

/* The fast way: resizes each component from its own samples, in words. */
static void resize_across_fast(jpeg_decoder *d, const jpeg_request *q)
{
    for (int k = 0; k < JPEG_COMPONENTS; k++) {
        const jpeg_plane *p = &d->scan.planes[k];
        const resize_weights *w = &d->weights[ACROSS][k > 0];
        int top = d->wanted[k].top, rows = d->wanted[k].bottom - top;
        for (int x = 0; x < q->out_width; x++) {
            resize_blend blend = w->blends[x];
            int to = place_of_column(d, q, x);
            blend.first -= 8 * p->left;
            int taps = gather(d->lines, &blend, p->samples + (top - 8 * p->top), (size_t)p->stride);
            int16_t *strip = (int16_t *)d->strip;
            d->path->blend_deep(d->lines, w->weights + blend.weights, taps, strip + to % TURN * d->strip_bytes, rows);
            if (ends_strip(d, q, to))
                d->path->turn_words(strip, d->strip_bytes, d->upright_words[k] + to - to % TURN, d->row_bytes, rows);
        }
    }
}

static void resize_down_fast(jpeg_decoder *d, const jpeg_request *q)
{
    const int16_t **lines = (const int16_t **)d->lines;
    for (int y = 0; y < q->out_height; y++) {
        uint8_t *rows[3];
        choose_rows(d, q, y, rows);
        for (int k = 0; k < JPEG_COMPONENTS; k++) {
            const resize_weights *w = &d->weights[DOWN][k > 0];
            const resize_blend *b = &w->blends[y];
            int taps = 0;
            for (; taps < b->taps; taps++)
                lines[taps] = d->upright_words[k] + (size_t)(b->first - d->wanted[k].top + taps) * d->row_bytes;
            if (taps & 1) lines[taps] = lines[taps - 1], taps++;
            d->path->blend_words(lines, w->weights + b->weights, taps, d->deep[k], q->out_width);
        }
        d->path->colour_deep((const int16_t *const *)d->deep, rows, q->out_width);
        put_row(d, q, y, (const uint8_t *const *)rows);
    }
}

int jpeg_skim(jpeg_decoder *d, const jpeg_request *request)
{
    jpeg_scan *scan = &d->scan;
    d->is_whole = 0;
    jpeg_plan(d, request);
    scan->marks = NULL;
    scan->new_marks = NULL;
    scan->top = scan->bottom; /* no row is wanted, but all rows above must be read past */
    scan->left = 0;
    return d->path->decode_scan(scan);
}

/* Reads the planned samples from the scan. */
static int read_scan(jpeg_decoder *d)
{
    jpeg_scan *scan = &d->scan;
    for (int k = 0; k < d->header.components; k++)
        for (int at = 0; at < 64; at++)
            scan->planes[k].quantiser[d->order[at + 1]] =
                (int16_t)d->header.quantiser[d->header.component[k].quantiser][at];
    int status = d->path->decode_scan(scan);
    if (status == JPEG_OK)
        for (int k = 1; k < d->header.components; k++) copy_edges(&scan->planes[k], &d->wanted[k]);
    return status;
}

int jpeg_read_all(jpeg_decoder *d)
{
    jpeg_request all = {.width = d->header.width, .height = d->header.height};
    if (d->is_whole) return JPEG_OK;
    jpeg_plan(d, &all);
    if (!jpeg_make_kept_room(d)) return JPEG_NO_MEMORY;
    int status = read_scan(d);
    d->is_whole = status == JPEG_OK;
    return status;
}

int jpeg_decode(jpeg_decoder *d, const jpeg_request *request)
{
    jpeg_request q = *request;
    if (!q.is_kept && !d->is_lent) d->is_whole = 0;
    if (q.is_kept) {
        int status = jpeg_read_all(d);
        if (status != JPEG_OK) return status;
    }
    if ((q.width == q.out_width && q.height == q.out_height) || d->header.components == 1)
        q.is_exact = 1; /* exact is as fast if there is nothing to resize, or no colour */
    if (q.width / FAST_SCALE >= q.out_width || q.height / FAST_SCALE >= q.out_height)
        q.is_exact = 1; /* with so many weights, each would be only a few of their smallest units */
    if (q.filter == RESIZE_NEAREST) q.is_exact = 1; /* nothing is summed */
    if (!q.all_width || !q.all_height) {
        q.all_width = q.out_width, q.all_height = q.out_height;
        q.out_left = q.out_top = 0;
    } else
        q.is_exact = 1;
    d->goes_down_first = 0;
    if (q.is_exact && !jpeg_plan_exact(d, &q)) return JPEG_NO_MEMORY;
    d->is_flipped = q.column < 0;
    if (d->is_flipped) { /* rows are written from left to right */
        q.to += (q.out_width - 1) * q.column;
        q.column = -q.column;
    }
    if (!q.is_exact && q.is_mirrored) d->is_flipped = !d->is_flipped; /* nearly the same, and as fast */
    jpeg_plan(d, &q);
    if (!jpeg_make_room(d, &q)) return JPEG_NO_MEMORY;
    int status = d->is_whole ? JPEG_OK : read_scan(d);
    if (status == JPEG_OK) {
        if (q.is_exact)
            make_exact(d, &q);
        else {
            resize_across_fast(d, &q);
            resize_down_fast(d, &q);
        }
    }
    if (d->arena_room > KEPT) { /* the memory of one large picture must not stay forever */
        free(d->arena);
        d->arena = NULL;
        d->arena_room = 0;
    }
    return status;
}
