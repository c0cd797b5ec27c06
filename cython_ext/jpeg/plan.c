/* Plans a decoding before the scan is read: which blocks a crop needs, whether its marks are possible, how chroma is
 * upsampled, whether the height is resized before the width (Pillow 13), and where everything lies in memory. */
#include <stdlib.h>
#include <string.h>

#include "decoder.h"

int jpeg_rows(const jpeg_decoder *d)
{
    int unit = 8 * d->header.v;
    return d->header.restart ? 0 : (d->header.height + unit - 1) / unit;
}

/* Whether the marks of the wanted rows are possible: they come from a file that anybody may have written. */
static int are_possible(const jpeg_decoder *d, const jpeg_mark *marks)
{
    uint32_t before = 0;
    for (int row = d->scan.top; row < d->scan.bottom; row++) {
        const jpeg_mark *mark = &marks[row];
        if (mark->at < before || mark->at >= (size_t)(d->header.end - d->header.scan) || mark->bit > 7) return 0;
        before = mark->at;
    }
    return 1;
}

/* Chooses the marks by which the scan is read, and whether it writes new ones. */
static void plan_marks(jpeg_decoder *d, const jpeg_request *q)
{
    int can_have = jpeg_rows(d) > 0;
    d->scan.marks = can_have && q->marks && are_possible(d, q->marks) ? q->marks : NULL;
    d->scan.new_marks = can_have && !d->scan.marks ? q->new_marks : NULL;
}

/* The samples from which the pixels `begin` to `end` - 1 are made. */
static void wanted_samples(int begin, int end, int ratio, int is_smooth, int samples, int *first, int *beyond)
{
    *first = begin / ratio;
    *beyond = (end - 1) / ratio + 1;
    if (is_smooth && begin % 2 == 0) *first -= 1; /* the second sample of an even pixel is the one before */
    if (is_smooth && end % 2 == 0) *beyond += 1;  /* the second sample of an odd pixel is the one after */
    if (*first < 0) *first = 0;
    if (*beyond > samples) *beyond = samples;
}

/* Chooses the wanted samples, blocks and MCUs. */
static void plan_samples(jpeg_decoder *d, const jpeg_request *q)
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
        upsampling way = REPEAT; /* as libjpeg chooses; also if the width is too small for its smooth ways */
        if (q->is_smooth && p->across == 2 && p->down == 2 && p->width > 2) way = SMOOTH_BOTH;
        if (q->is_smooth && p->across == 2 && p->down == 1 && p->width > 2) way = SMOOTH_ACROSS;
        if (q->is_smooth && p->across == 1 && p->down == 2) way = SMOOTH_ALONG;
        d->upsampling = way; /* the last component's, which is chroma; both chroma components are alike */
        wanted_samples(q->left, q->left + q->width, p->across, way == SMOOTH_BOTH || way == SMOOTH_ACROSS, p->width,
                       &a->left, &a->right);
        wanted_samples(q->top, q->top + q->height, p->down, way == SMOOTH_BOTH || way == SMOOTH_ALONG, p->height,
                       &a->top, &a->bottom);
        if (d->is_whole) continue;
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

void jpeg_plan(jpeg_decoder *d, const jpeg_request *q)
{
    d->scan.header = &d->header;
    d->scan.tables = &d->tables;
    d->scan.order = d->order;
    plan_samples(d, q);
    plan_marks(d, q);
}

static int make_weights_fast(jpeg_decoder *d, const jpeg_request *q)
{
    const jpeg_plane *p = &d->scan.planes[d->header.components > 1];
    resize_weights *across = d->weights[ACROSS], *down = d->weights[DOWN];
    int is_smooth_across = d->upsampling == SMOOTH_BOTH || d->upsampling == SMOOTH_ACROSS;
    int is_smooth_down = d->upsampling == SMOOTH_BOTH || d->upsampling == SMOOTH_ALONG;
    return resize_weights_fast(&across[LUMA], &across[CHROMA], q->filter, q->width, q->out_width, q->left, p->across,
                             p->width, is_smooth_across) &&
           resize_weights_fast(&down[LUMA], &down[CHROMA], q->filter, q->height, q->out_height, q->top, p->down,
                             p->height, is_smooth_down);
}

int jpeg_plan_exact(jpeg_decoder *d, jpeg_request *q)
{
    resize_weights *across = &d->weights[ACROSS][LUMA], *down = &d->weights[DOWN][LUMA];
    d->goes_down_first =
        q->may_go_down_first && resize_goes_down_first(q->width, q->height, q->all_width, q->all_height);
    d->is_resized[ACROSS] = q->width != q->all_width;
    d->is_resized[DOWN] = q->height != q->all_height;
    if (!resize_weights_exact(across, q->filter, q->width, q->all_width, q->out_left, q->out_width) ||
        !resize_weights_exact(down, q->filter, q->height, q->all_height, q->out_top, q->out_height))
        return 0;
    q->left += q->is_mirrored ? q->width - across->first - across->lines : across->first;
    q->width = across->lines;
    q->top += down->first;
    q->height = down->lines;
    return 1;
}

static void deal_planes(jpeg_decoder *d, dealer *from)
{
    for (int k = 0; k < d->header.components; k++) {
        jpeg_plane *p = &d->scan.planes[k];
        size_t columns = (size_t)(p->right - p->left) * 8, rows = (size_t)(p->bottom - p->top) * 8;
        p->stride = (ptrdiff_t)apart(LINE + rows + 2 * LINE); /* with room before a column for a copy of its first */
        uint8_t *samples = deal(from, columns * (size_t)p->stride + LINE);
        p->samples = samples ? samples + LINE : NULL;
    }
}

int jpeg_make_kept_room(jpeg_decoder *d)
{
    dealer count = {0};
    deal_planes(d, &count);
    if (!make_room((void **)&d->kept, &d->kept_room, count.used)) return 0;
    deal_planes(d, &(dealer){d->kept, 0});
    return 1;
}

static void deal_all(jpeg_decoder *d, const jpeg_request *q, dealer *from)
{
    int components = d->header.components, most = 2;
    size_t tallest = 0;
    if (!d->is_whole) deal_planes(d, from);
    for (int k = 0; k < components; k++) {
        const jpeg_plane *p = &d->scan.planes[k];
        size_t rows = (size_t)(p->bottom - p->top) * 8;
        if (rows > tallest) tallest = rows;
    }
    for (int k = 0; k < 4; k++)
        if (d->weights[k / 2][k % 2].most > most) most = d->weights[k / 2][k % 2].most;
    d->ring = d->weights[ACROSS][LUMA].most;
    int widest = d->goes_down_first && q->width > q->out_width ? q->width : q->out_width;
    d->column_bytes = apart(tallest + 2 * LINE);
    d->row_bytes = apart((size_t)widest + LINE);
    d->strip_bytes = d->column_bytes > d->row_bytes ? d->column_bytes : d->row_bytes;
    d->columns = deal(from, 3 * d->column_bytes * (size_t)(q->is_exact ? d->ring : 0));
    for (int k = 0; k < 2; k++) d->chroma[k] = deal(from, d->column_bytes);
    d->strip = deal(from, TURN * 3 * d->strip_bytes); /* of words: one component at a time */
    size_t laid = (size_t)(q->width + LINE) * up((size_t)q->out_height + LINE, LINE);
    d->laid = deal(from, d->goes_down_first ? laid : 0);
    for (int k = 0; k < components; k++) {
        d->upright[k] = deal(from, (tallest + 2 * LINE) * d->row_bytes * (q->is_exact ? 1 : sizeof(int16_t)));
        d->upright_words[k] = (int16_t *)d->upright[k];
        d->row[k] = deal(from, d->row_bytes);
        d->deep[k] = deal(from, d->row_bytes * sizeof(int16_t));
    }
    d->lines = deal(from, (size_t)most * sizeof *d->lines);
}

int jpeg_make_room(jpeg_decoder *d, const jpeg_request *q)
{
    dealer count = {0};
    if (!q->is_exact && !make_weights_fast(d, q)) return 0;
    deal_all(d, q, &count);
    if (!make_room((void **)&d->arena, &d->arena_room, count.used)) return 0;
    deal_all(d, q, &(dealer){d->arena, 0});
    return 1;
}
