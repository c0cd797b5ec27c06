/* From a file to rows of pixels: see jpeg.h. */
#include <stdlib.h>
#include <string.h>

#include "jpeg.h"

enum { ACROSS, DOWN, LUMA = 0, CHROMA = 1, ALIGN = 64, KEPT = 64 << 20, FAST_SCALE = 16 };

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
    int ring, is_flipped;
};

static const uint8_t zigzag[64] = {
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47,
    55, 62, 63,
};

static size_t up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }
static int clamp(int value, int end) { return value < 0 ? 0 : value >= end ? end - 1 : value; }

jpeg_decoder *jpeg_new(const jpeg_path *path)
{
    jpeg_decoder *d = aligned_alloc(ALIGN, up(sizeof *d, ALIGN));
    if (!d) return NULL;
    memset(d, 0, sizeof *d);
    d->path = path;
    d->scan.clean = calloc(1, SCAN_BYTES);
    if (!d->scan.clean) {
        free(d);
        return NULL;
    }
    memset(d->order, BLOCK_DUMP, sizeof d->order);
    for (int k = 0; k < 64; k++) d->order[k] = (uint8_t)path->place(zigzag[k] / 8, zigzag[k] % 8);
    return d;
}

void jpeg_free(jpeg_decoder *d)
{
    if (!d) return;
    for (int k = 0; k < 4; k++) jpeg_weights_free(&d->weights[k / 2][k % 2]);
    free(d->scan.clean);
    free(d->arena);
    free(d);
}

int jpeg_open(jpeg_decoder *d, const uint8_t *data, size_t bytes)
{
    return jpeg_read_header(&d->header, &d->tables, data, bytes);
}

const jpeg_header *jpeg_opened(const jpeg_decoder *d) { return &d->header; }

int jpeg_rows(const jpeg_decoder *d)
{
    int unit = 8 * d->header.v;
    return d->header.restart ? 0 : (d->header.height + unit - 1) / unit;
}

/* From where the scan is read, and whether the beginnings of its rows are wanted. */
static void plan_marks(jpeg_decoder *d, const jpeg_request *q)
{
    jpeg_scan *scan = &d->scan;
    int can_have = jpeg_rows(d) > 0;
    const jpeg_mark *from = can_have && q->marks ? &q->marks[scan->top] : NULL;
    /* They come from a file that anybody may have written. */
    if (from && (from->at >= (size_t)(d->header.end - d->header.scan) || from->bit > 7)) from = NULL;
    scan->from = from;
    scan->marks = can_have && !from ? q->new_marks : NULL;
}

/* A distance between lines that are written one below the other: were it a multiple of many cache lines, they would all
 * fall into the same few sets of the cache. */
static size_t apart(size_t bytes) { return up(bytes, 2 * ALIGN) + ALIGN; }

/* Room in a buffer that only grows; what was in it is lost. */
static int has_room(uint8_t **buffer, size_t *room, size_t bytes)
{
    if (bytes <= *room) return 1;
    bytes = up(bytes + bytes / 4, ALIGN);
    free(*buffer);
    *buffer = aligned_alloc(ALIGN, bytes);
    *room = *buffer ? bytes : 0;
    if (*buffer) memset(*buffer, 0, bytes);
    return *buffer != NULL;
}

/* Which samples the pixels `begin` to `end` - 1 are made of. */
static void wanted_samples(int begin, int end, int ratio, int is_smooth, int samples, int *first, int *beyond)
{
    *first = begin / ratio;
    *beyond = (end - 1) / ratio + 1;
    if (is_smooth && begin % 2 == 0) *first -= 1; /* an even pixel's second sample is the one before */
    if (is_smooth && end % 2 == 0) *beyond += 1;  /* an odd one's the one behind */
    if (*first < 0) *first = 0;
    if (*beyond > samples) *beyond = samples;
}

/* Which samples, blocks and MCUs are wanted. */
static void plan(jpeg_decoder *d, const jpeg_request *q)
{
    const jpeg_header *header = &d->header;
    jpeg_scan *scan = &d->scan;
    scan->left = scan->top = INT32_MAX;
    scan->right = scan->bottom = 0;
    for (int k = 0; k < header->components; k++) {
        const jpeg_component *c = &header->component[k];
        jpeg_plane *p = &scan->planes[k];
        area *a = &d->wanted[k];
        p->across = header->h / c->h;
        p->down = header->v / c->v;
        p->width = (header->width + p->across - 1) / p->across;
        p->height = (header->height + p->down - 1) / p->down;
        upsampling way = REPEAT; /* as libjpeg chooses: also where the width is too small for its smooth ways */
        if (q->is_smooth && p->across == 2 && p->down == 2 && p->width > 2) way = SMOOTH_BOTH;
        if (q->is_smooth && p->across == 2 && p->down == 1 && p->width > 2) way = SMOOTH_ACROSS;
        if (q->is_smooth && p->across == 1 && p->down == 2) way = SMOOTH_ALONG;
        d->upsampling = way; /* of the last one: chroma, of which both are alike */
        wanted_samples(q->left, q->left + q->width, p->across, way == SMOOTH_BOTH || way == SMOOTH_ACROSS, p->width,
                       &a->left, &a->right);
        wanted_samples(q->top, q->top + q->height, p->down, way == SMOOTH_BOTH || way == SMOOTH_ALONG, p->height,
                       &a->top, &a->bottom);
        p->left = a->left / 8;
        p->top = a->top / 8;
        p->right = (a->right + 7) / 8;
        p->bottom = (a->bottom + 7) / 8;
        if (p->left / c->h < scan->left) scan->left = p->left / c->h;
        if (p->top / c->v < scan->top) scan->top = p->top / c->v;
        if ((p->right - 1) / c->h >= scan->right) scan->right = (p->right - 1) / c->h + 1;
        if ((p->bottom - 1) / c->v >= scan->bottom) scan->bottom = (p->bottom - 1) / c->v + 1;
    }
}

static int make_weights(jpeg_decoder *d, const jpeg_request *q)
{
    if (q->is_exact)
        return jpeg_weights_exact(&d->weights[ACROSS][LUMA], q->width, q->out_width) &&
               jpeg_weights_exact(&d->weights[DOWN][LUMA], q->height, q->out_height);
    for (int k = 0; k < 2; k++) {
        const jpeg_plane *p = &d->scan.planes[k];
        int across = k && (d->upsampling == SMOOTH_BOTH || d->upsampling == SMOOTH_ACROSS);
        int down = k && (d->upsampling == SMOOTH_BOTH || d->upsampling == SMOOTH_ALONG);
        if (!jpeg_weights_fast(&d->weights[ACROSS][k], q->width, q->out_width, q->left, p->across, p->width, across) ||
            !jpeg_weights_fast(&d->weights[DOWN][k], q->height, q->out_height, q->top, p->down, p->height, down))
            return 0;
    }
    return 1;
}

/* Which way a picture is resized first matters, for there are bytes in between.  Across, says Pillow; and since its
 * version 13 down where the height shrinks by more than twice what the width does (found by testing). */
static int goes_down_first(const jpeg_request *q)
{
    int lower = q->height - q->out_height, narrower = q->width - q->out_width;
    return q->is_exact && q->may_go_down_first && lower > 0 && narrower && lower > 2 * narrower;
}

/* Gives out the arena: with `base` NULL it only counts. */
typedef struct {
    uint8_t *base;
    size_t used;
} dealer;

static void *deal(dealer *from, size_t bytes)
{
    void *to = from->base ? from->base + from->used : NULL;
    from->used += up(bytes, ALIGN);
    return to;
}

static void deal_all(jpeg_decoder *d, const jpeg_request *q, dealer *from)
{
    int components = d->header.components, most = 2;
    size_t tallest = 0;
    for (int k = 0; k < components; k++) {
        jpeg_plane *p = &d->scan.planes[k];
        size_t columns = (size_t)(p->right - p->left) * 8, rows = (size_t)(p->bottom - p->top) * 8;
        p->stride = (ptrdiff_t)apart(LINE + rows + 2 * LINE); /* before a column: room for a copy of its first */
        uint8_t *samples = deal(from, columns * (size_t)p->stride + LINE);
        p->samples = samples ? samples + LINE : NULL;
        if (rows > tallest) tallest = rows;
    }
    for (int k = 0; k < 4; k++)
        if (d->weights[k / 2][k % 2].most > most) most = d->weights[k / 2][k % 2].most;
    d->ring = d->weights[ACROSS][LUMA].most;
    int widest = goes_down_first(q) && q->width > q->out_width ? q->width : q->out_width;
    d->column_bytes = apart(tallest + 2 * LINE);
    d->row_bytes = apart((size_t)widest + LINE);
    d->strip_bytes = d->column_bytes > d->row_bytes ? d->column_bytes : d->row_bytes;
    d->columns = deal(from, 3 * d->column_bytes * (size_t)(q->is_exact ? d->ring : 0));
    for (int k = 0; k < 2; k++) d->chroma[k] = deal(from, d->column_bytes);
    d->strip = deal(from, TURN * 3 * d->strip_bytes); /* of words: one component at a time */
    d->laid = deal(from, goes_down_first(q) ? (size_t)(q->width + LINE) * up((size_t)q->out_height + LINE, LINE) : 0);
    for (int k = 0; k < components; k++) {
        d->upright[k] = deal(from, (tallest + 2 * LINE) * d->row_bytes * (q->is_exact ? 1 : sizeof(int16_t)));
        d->upright_words[k] = (int16_t *)d->upright[k];
        d->row[k] = deal(from, d->row_bytes);
        d->deep[k] = deal(from, d->row_bytes * sizeof(int16_t));
    }
    d->lines = deal(from, (size_t)most * sizeof *d->lines);
}

static int has_memory(jpeg_decoder *d, const jpeg_request *q)
{
    dealer count = {0};
    if (!make_weights(d, q)) return 0;
    deal_all(d, q, &count);
    if (!has_room(&d->arena, &d->arena_room, count.used)) return 0;
    deal_all(d, q, &(dealer){d->arena, 0});
    return 1;
}

static uint8_t *column_of(const jpeg_plane *p, int x, int y)
{
    return p->samples + (x - 8 * p->left) * p->stride + (y - 8 * p->top);
}

/* Where the picture ends above or below, its last sample once more, as libjpeg has it. */
static void copy_edges(const jpeg_plane *p, const area *a)
{
    for (int x = a->left; x < a->right; x++) {
        uint8_t *column = column_of(p, x, 0);
        if (a->top == 0) column[-1] = column[0];
        if (a->bottom == p->height) column[p->height] = column[p->height - 1];
    }
}

/* A column of one component of chroma as high as luma, from the row `top`, which begins a sample of chroma. */
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

/* Puts a strip upright: its columns are those of the result from `x` on. */
static void turn_strip(jpeg_decoder *d, int component, int x, int offset, int rows)
{
    d->path->turn(strip_line(d, component, 0) + offset, d->strip_bytes, d->upright[component] + x, d->row_bytes, rows);
}

/* The lines of a weighted sum, two by two; the second of the last is the first again where it has none. */
static int gather(const uint8_t **lines, const jpeg_blend *blend, const uint8_t *at, size_t stride)
{
    for (int tap = 0; tap < blend->taps; tap++) lines[tap] = at + (size_t)(blend->first + tap) * stride;
    if (blend->taps & 1) lines[blend->taps] = lines[blend->taps - 1];
    return blend->taps + (blend->taps & 1);
}

/* Flipped columns are made in the same order, and go to the other end. */
static int place_of_column(const jpeg_decoder *d, const jpeg_request *q, int x)
{
    return d->is_flipped ? q->out_width - 1 - x : x;
}

/* Whether a strip is full with this column of the result. */
static int ends_strip(const jpeg_decoder *d, const jpeg_request *q, int to)
{
    return d->is_flipped ? to % TURN == 0 : to % TURN == TURN - 1 || to == q->out_width - 1;
}

/* All columns of pixels, of which none is resized. */
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

/* Columns of pixels, made when the first column of the result needs them, and as many kept as the next may need. */
static void resize_across(jpeg_decoder *d, const jpeg_request *q)
{
    const jpeg_weights *w = &d->weights[ACROSS][LUMA];
    int made = 0, begin = q->top - q->top % d->header.v, offset = q->top - begin, bottom = q->top + q->height;
    for (int x = 0; x < q->out_width; x++) {
        int to = place_of_column(d, q, x), taps;
        const jpeg_blend *b = &w->blends[x];
        for (; made < b->first + b->taps; made++) {
            uint8_t *at = d->columns + (size_t)(made % d->ring) * 3 * d->column_bytes;
            uint8_t *rgb[3] = {at, at + d->column_bytes, at + 2 * d->column_bytes};
            if (made >= b->first) make_column(d, q->left + made, begin, bottom, rgb);
        }
        for (int k = 0; k < d->header.components; k++) {
            for (taps = 0; taps < b->taps || taps & 1; taps++) {
                int column = b->first + (taps < b->taps ? taps : b->taps - 1);
                d->lines[taps] = d->columns + ((size_t)(column % d->ring) * 3 + (size_t)k) * d->column_bytes + offset;
            }
            d->path->blend(d->lines, w->weights + b->weights, taps, strip_line(d, k, to), q->height);
            if (ends_strip(d, q, to)) turn_strip(d, k, to - to % TURN, 0, q->height);
        }
    }
}

/* Down first: rows are resized and laid on their side again, then columns. */
static void resize_down_then_across(jpeg_decoder *d, const jpeg_request *q)
{
    const jpeg_weights *w = &d->weights[DOWN][LUMA];
    size_t pitch = up((size_t)q->out_height + LINE, LINE);
    lay_out(d, q, 0);
    for (int k = 0; k < d->header.components; k++) {
        for (int y = 0; y < q->out_height; y++) {
            int taps = gather(d->lines, &w->blends[y], d->upright[k], d->row_bytes);
            d->path->blend(d->lines, w->weights + w->blends[y].weights, taps, strip_line(d, 0, y), q->width);
            if (y % TURN == TURN - 1 || y == q->out_height - 1)
                d->path->turn(strip_line(d, 0, 0), d->strip_bytes, d->laid + y - y % TURN, pitch, q->width);
        }
        for (int x = 0; x < q->out_width; x++) {
            const jpeg_blend *b = &d->weights[ACROSS][LUMA].blends[x];
            int to = place_of_column(d, q, x), taps = gather(d->lines, b, d->laid, pitch);
            d->path->blend(d->lines, d->weights[ACROSS][LUMA].weights + b->weights, taps, strip_line(d, 0, to),
                           q->out_height);
            if (ends_strip(d, q, to))
                d->path->turn(strip_line(d, 0, 0), d->strip_bytes, d->upright[k] + to - to % TURN, d->row_bytes,
                              q->out_height);
        }
    }
}

/* One row of the result goes out. */
static void put_row(const jpeg_request *q, int y, const uint8_t *const rgb[3])
{
    uint8_t *to = q->to + y * q->row;
    if (q->column == 1) {
        for (int k = 0; k < 3; k++) {
            if (rgb[k] != to + k * q->channel) memcpy(to + k * q->channel, rgb[k], (size_t)q->out_width);
        }
        return;
    }
    for (int x = 0; x < q->out_width; x++, to += q->column)
        for (int k = 0; k < 3; k++) to[k * q->channel] = rgb[k][x];
}

/* Where a row of the result is made: in its place where whole LINEs of bytes fit there. */
static void choose_rows(jpeg_decoder *d, const jpeg_request *q, int y, uint8_t *rows[3])
{
    int is_in_place = q->column == 1 && q->out_width % LINE == 0;
    for (int k = 0; k < 3; k++) rows[k] = is_in_place ? q->to + y * q->row + k * q->channel : d->row[k];
    if (d->header.components == 1) rows[1] = rows[2] = rows[0];
}

/* The rows go out, resized where they are not yet. */
static void resize_down(jpeg_decoder *d, const jpeg_request *q, int is_resized)
{
    const jpeg_weights *w = &d->weights[DOWN][LUMA];
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
            d->path->blend(d->lines, w->weights + w->blends[y].weights, taps, rows[k], q->out_width);
        }
        if (components == 1) rows[1] = rows[2] = rows[0];
        put_row(q, y, (const uint8_t *const *)rows);
    }
}

static void make_exact(jpeg_decoder *d, const jpeg_request *q)
{
    if (goes_down_first(q)) {
        resize_down_then_across(d, q);
        resize_down(d, q, 1);
        return;
    }
    if (q->width == q->out_width)
        lay_out(d, q, d->is_flipped);
    else
        resize_across(d, q);
    resize_down(d, q, q->height == q->out_height);
}

/* Fast: each component from its own samples, in words. */
static void resize_across_fast(jpeg_decoder *d, const jpeg_request *q)
{
    for (int k = 0; k < JPEG_COMPONENTS; k++) {
        const jpeg_plane *p = &d->scan.planes[k];
        const jpeg_weights *w = &d->weights[ACROSS][k > 0];
        int top = d->wanted[k].top, rows = d->wanted[k].bottom - top;
        for (int x = 0; x < q->out_width; x++) {
            jpeg_blend blend = w->blends[x];
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
            const jpeg_weights *w = &d->weights[DOWN][k > 0];
            const jpeg_blend *b = &w->blends[y];
            int taps = 0;
            for (; taps < b->taps; taps++)
                lines[taps] = d->upright_words[k] + (size_t)(b->first - d->wanted[k].top + taps) * d->row_bytes;
            if (taps & 1) lines[taps] = lines[taps - 1], taps++;
            d->path->blend_words(lines, w->weights + b->weights, taps, d->deep[k], q->out_width);
        }
        d->path->colour_deep((const int16_t *const *)d->deep, rows, q->out_width);
        put_row(q, y, (const uint8_t *const *)rows);
    }
}

int jpeg_skim(jpeg_decoder *d, const jpeg_request *request)
{
    jpeg_scan *scan = &d->scan;
    scan->header = &d->header;
    scan->tables = &d->tables;
    scan->order = d->order;
    plan(d, request);
    scan->from = NULL;
    scan->marks = NULL;
    scan->top = scan->bottom; /* no row is wanted, but all above these are read past */
    scan->left = 0;
    return d->path->decode_scan(scan);
}

int jpeg_decode(jpeg_decoder *d, const jpeg_request *request)
{
    jpeg_request q = *request;
    jpeg_scan *scan = &d->scan;
    if ((q.width == q.out_width && q.height == q.out_height) || d->header.components == 1)
        q.is_exact = 1; /* as fast, where there is nothing to resize or no colour */
    if (q.width / FAST_SCALE >= q.out_width || q.height / FAST_SCALE >= q.out_height)
        q.is_exact = 1; /* so many weights that each would be a few of their smallest units */
    d->is_flipped = q.column < 0;
    if (d->is_flipped) { /* rows are written from left to right */
        q.to += (q.out_width - 1) * q.column;
        q.column = -q.column;
    }
    scan->header = &d->header;
    scan->tables = &d->tables;
    scan->order = d->order;
    plan(d, &q);
    plan_marks(d, &q);
    if (!has_memory(d, &q)) return JPEG_NO_MEMORY;
    for (int k = 0; k < d->header.components; k++)
        for (int at = 0; at < 64; at++)
            scan->planes[k].quantiser[d->order[at]] =
                (int16_t)d->header.quantiser[d->header.component[k].quantiser][at];

    int said = d->path->decode_scan(scan);
    if (said == JPEG_OK) {
        for (int k = 1; k < d->header.components; k++) copy_edges(&scan->planes[k], &d->wanted[k]);
        if (q.is_exact)
            make_exact(d, &q);
        else {
            resize_across_fast(d, &q);
            resize_down_fast(d, &q);
        }
    }
    if (d->arena_room > KEPT) { /* one large picture must not cost its memory for good */
        free(d->arena);
        d->arena = NULL;
        d->arena_room = 0;
    }
    return said;
}
