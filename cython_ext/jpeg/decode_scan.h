/* Goes through a scan MCU by MCU: decodes the blocks that a crop needs, skips the others, and makes the marks of rows.
 * Refuses a broken scan and, unless marks are used, one that is cut off or lacks a restart marker.
 *
 * Each path includes this behind its own `unstuff` (unstuff.h) and `idct`, `fill` (idct.h), so that all of it is
 * compiled for its processor. */
#pragma once
#include "stream.h"

enum { RST0 = 0xd0, EOI = 0xd9 };

/* The next restart interval.  0: the file has none there. */
static int begin_interval(jpeg_scan *s, bit_reader *r)
{
    jpeg_stream *t = &s->stream;
    if (s->next_restart >= 0) {
        end_stream(t);
        if (t->marker != RST0 + s->next_restart) return 0;
    }
    s->next_restart = (s->next_restart + 1) & 7;
    s->mcus_left = s->header->restart ? s->header->restart : INT64_MAX;
    memset(t->predicted, 0, sizeof t->predicted);
    s->anchored = 0;
    s->anchor = t->source;
    begin_stream(t, r);
    return 1;
}

/* Where a row begins: its first MCU has not been read yet. */
static void put_mark(jpeg_scan *s, const bit_reader *r, int row)
{
    const jpeg_stream *t = &s->stream;
    jpeg_mark *mark = &s->new_marks[row];
    *mark = (jpeg_mark){0};
    if (row == 0) return; /* the reader has not begun */
    int64_t bits = t->base * 8 + bits_read(r, t->clean);
    s->anchor = beyond(s->anchor, s->header->end, (bits >> 3) - s->anchored);
    s->anchored = bits >> 3;
    mark->at = (uint32_t)(s->anchor - s->header->scan);
    mark->bit = bits & 7;
    for (int k = 0; k < JPEG_COMPONENTS; k++) mark->predicted[k] = (int16_t)t->predicted[k];
}

/* Goes to where a row begins.  The stream ends where the next wanted row begins. */
static void begin_row(jpeg_scan *s, bit_reader *r, int row)
{
    jpeg_stream *t = &s->stream;
    const jpeg_mark *mark = &s->marks[row];
    const uint8_t *scan = s->header->scan;
    t->source = scan + mark->at;
    t->end = s->header->end;
    /* The row may need the first bits of the byte where the next begins, which may be two in the file. */
    if (row + 1 < s->bottom && t->end - scan > (ptrdiff_t)mark[1].at + 2) t->end = scan + mark[1].at + 2;
    for (int k = 0; k < JPEG_COMPONENTS; k++) t->predicted[k] = (uint32_t)mark->predicted[k];
    begin_stream(t, r);
    refill(r);
    drop(r, mark->bit);
}

/* One block as the scan has it. */
typedef struct {
    const huffman_table *dc, *ac;
    int component, across, down; /* which block of its component's in the MCU */
} block_plan;

static int plan_blocks(const jpeg_scan *s, block_plan *plan)
{
    int count = 0;
    for (int k = 0; k < s->header->components; k++) {
        const jpeg_component *c = &s->header->component[k];
        for (int down = 0; down < c->v; down++)
            for (int across = 0; across < c->h; across++)
                plan[count++] = (block_plan){&s->tables->dc[c->dc], &s->tables->ac[c->ac], k, across, down};
    }
    return count;
}

static int skip_mcus(jpeg_stream *t, bit_reader *reader, const block_plan *plan, int blocks, int64_t count)
{
    bit_reader r = *reader;
    int is_good = 1;
    for (; count && is_good; count--) {
        for (int b = 0; b < blocks; b++)
            is_good &= skip_block(&r, plan[b].dc, plan[b].ac, &t->predicted[plan[b].component]);
        is_good &= has_more(t, &r);
    }
    *reader = r;
    return is_good;
}

/* Where the samples of a block go; NULL: they are not wanted. */
ALWAYS_INLINE uint8_t *samples_of(const jpeg_scan *s, const block_plan *p, int mcu, int row)
{
    const jpeg_component *c = &s->header->component[p->component];
    const jpeg_plane *plane = &s->planes[p->component];
    int x = mcu * c->h + p->across, y = row * c->v + p->down;
    if (x < plane->left || x >= plane->right || y < plane->top || y >= plane->bottom) return NULL;
    return plane->samples + (x - plane->left) * 8 * plane->stride + (y - plane->top) * 8;
}

/* The MCUs of one row from this one on.  All blocks are read before the first is transformed.  Otherwise a transform,
 * which loads eight coefficients at once, would wait for eight single stores that have just been issued. */
static int decode_mcus(jpeg_scan *s, bit_reader *reader, const block_plan *plan, int blocks, int mcu, int row,
                       int64_t count)
{
    _Alignas(32) int16_t coefficients[JPEG_MCU_BLOCKS][BLOCK_SPACE];
    int kind[JPEG_MCU_BLOCKS];
    uint8_t *to[JPEG_MCU_BLOCKS];
    bit_reader r = *reader;
    int is_good = 1;
    for (; count && is_good; count--, mcu++) {
        for (int b = 0; b < blocks; b++) {
            const block_plan *p = &plan[b];
            uint32_t *predicted = &s->stream.predicted[p->component];
            to[b] = samples_of(s, p, mcu, row);
            if (!to[b]) {
                is_good &= skip_block(&r, p->dc, p->ac, predicted);
                continue;
            }
            memset(coefficients[b], 0, 64 * sizeof(int16_t));
            kind[b] = read_block(&r, p->dc, p->ac, predicted, s->order, coefficients[b]);
            is_good &= kind[b] >= 0;
        }
        for (int b = 0; b < blocks; b++) {
            const jpeg_plane *plane = &s->planes[plan[b].component];
            if (!to[b]) continue;
            if (kind[b] == 0)
                fill(coefficients[b][0], plane->quantiser[0], to[b], plane->stride);
            else
                idct(coefficients[b], plane->quantiser, to[b], plane->stride);
        }
        is_good &= has_more(&s->stream, &r);
    }
    *reader = r;
    return is_good;
}

/* The wanted rows, each from its mark on, so that nothing right of them is read. */
static int decode_marked(jpeg_scan *s, const block_plan *plan, int blocks)
{
    for (int row = s->top; row < s->bottom; row++) {
        bit_reader r;
        begin_row(s, &r, row);
        if (!skip_mcus(&s->stream, &r, plan, blocks, s->left)) return 0;
        if (!decode_mcus(s, &r, plan, blocks, s->left, row, s->right - s->left)) return 0;
        if (!is_within(&s->stream, &r)) return 0;
    }
    return 1;
}

/* `count` MCUs of one row (wanted), or of as many rows as they are (not wanted). */
static int go_on(jpeg_scan *s, bit_reader *r, const block_plan *plan, int blocks, int is_wanted, int mcu, int row,
                 int64_t count)
{
    while (count) {
        if (s->mcus_left == 0 && !begin_interval(s, r)) return 0;
        int64_t run = count < s->mcus_left ? count : s->mcus_left;
        int is_good = is_wanted ? decode_mcus(s, r, plan, blocks, mcu, row, run)
                                : skip_mcus(&s->stream, r, plan, blocks, run);
        if (!is_good || !is_within(&s->stream, r)) return 0;
        s->mcus_left -= run;
        count -= run;
        mcu += (int)run;
    }
    return 1;
}

/* Whether an end of image comes behind what was read, and nothing before it but entropy-coded data. */
static int has_end(jpeg_scan *s)
{
    jpeg_stream *t = &s->stream;
    for (;;) {
        end_stream(t);
        if (t->marker == EOI) return 1;
        if (!s->header->restart || t->marker != RST0 + s->next_restart) return 0;
        s->next_restart = (s->next_restart + 1) & 7;
        read_piece(t, 0);
    }
}

/* Reads the rest of the picture without decoding it, to set its marks. */
static int mark_rest(jpeg_scan *s, bit_reader *r, const block_plan *plan, int blocks, int64_t across, int64_t before)
{
    int unit = 8 * s->header->v, rows = (s->header->height + unit - 1) / unit;
    for (int row = s->bottom; row < rows; row++, before = across) {
        if (!go_on(s, r, plan, blocks, 0, 0, 0, before)) return 0;
        put_mark(s, r, row);
    }
    return go_on(s, r, plan, blocks, 0, 0, 0, before);
}

static int decode_scan(jpeg_scan *s)
{
    block_plan plan[JPEG_MCU_BLOCKS];
    int blocks = plan_blocks(s, plan), mcu = 8 * s->header->h;
    int64_t across = (s->header->width + mcu - 1) / mcu, wanted = s->right - s->left;
    int64_t before = 0; /* MCUs that nobody wants, before the next row begins */
    bit_reader r;
    /* The reading that made the marks has checked the end of the file. */
    if (s->marks) return decode_marked(s, plan, blocks) ? JPEG_OK : JPEG_NOT_OURS;
    s->stream.source = s->header->scan;
    s->stream.end = s->header->end;
    s->next_restart = -1;
    s->mcus_left = 0;
    for (int row = 0; row < s->bottom; row++) {
        if (s->new_marks) {
            if (!go_on(s, &r, plan, blocks, 0, 0, 0, before)) return JPEG_NOT_OURS;
            put_mark(s, &r, row);
            before = 0;
        }
        if (row < s->top) {
            before += across;
            continue;
        }
        if (!go_on(s, &r, plan, blocks, 0, 0, 0, before + s->left)) return JPEG_NOT_OURS;
        if (!go_on(s, &r, plan, blocks, 1, s->left, row, wanted)) return JPEG_NOT_OURS;
        before = across - s->right;
    }
    if (s->new_marks && !mark_rest(s, &r, plan, blocks, across, before)) return JPEG_NOT_OURS;
    if (s->top >= s->bottom && !go_on(s, &r, plan, blocks, 0, 0, 0, before)) return JPEG_NOT_OURS;
    return has_end(s) ? JPEG_OK : JPEG_NOT_OURS;
}
