/* Resizes a picture in memory: across first, or down first.
 *
 * Across first, the picture is laid on its side (TURN rows are split into lines and turned, and become parts of columns),
 * each column of the result is a weighted sum of columns, strips of these are turned upright, and each row of the result
 * is a weighted sum of rows.  Down first, rows are weighed before they are laid on their side.
 *
 * Only the picture is kept in memory, and not the canvas: lines beyond it are one line of its colour. */
#include "resize.h"

#include <stdlib.h>
#include <string.h>

#include "memory.h"

enum { ACROSS, DOWN };

/* The lines of the canvas that show the picture: from `begin` to `end`. */
typedef struct {
    int begin, end;
} shown;

struct resizer {
    const resize_path *path;
    resize_weights weights[2];
    uint8_t *arena;
    size_t arena_room;

    /* In the arena. */
    uint8_t *strip;         /* TURN lines of each channel, that are turned together */
    uint8_t *laid[3];       /* the picture on its side: columns that are `pitch` apart */
    uint8_t *upright[3];    /* rows that are `row_bytes` apart */
    uint8_t *plain[3];      /* a line of the canvas's colour */
    uint8_t *made[3];       /* a row of the result */
    const uint8_t **lines;  /* the terms of a weighted sum */
    size_t strip_bytes, pitch, row_bytes;
};

resizer *resize_new(const resize_path *path)
{
    resizer *r = calloc(1, sizeof *r);
    if (r) r->path = path;
    return r;
}

void resize_free(resizer *r)
{
    if (!r) return;
    for (int k = 0; k < 2; k++) resize_weights_free(&r->weights[k]);
    free(r->arena);
    free(r);
}

static void deal_all(resizer *r, dealer *from, size_t rows, size_t columns, size_t taps)
{
    r->strip = deal(from, TURN * 3 * r->strip_bytes);
    r->lines = deal(from, taps * sizeof *r->lines);
    for (int c = 0; c < 3; c++) {
        uint8_t *laid = deal(from, (columns + LINE) * r->pitch);
        r->laid[c] = laid ? laid + LINE * r->pitch : NULL; /* a mirrored picture's columns are rounded up to the left */
        r->upright[c] = deal(from, rows * r->row_bytes);
        r->plain[c] = deal(from, r->strip_bytes);
        r->made[c] = deal(from, r->row_bytes);
    }
}

/* The lines that show a picture of n lines from `place` on; of these, only lines that the weights need. */
static shown shown_of(const resize_weights *w, int place, int n)
{
    shown s = {place - w->first, place + n - w->first};
    if (s.begin < 0) s.begin = 0;
    if (s.end > w->lines) s.end = w->lines;
    if (s.end < s.begin) s.end = s.begin;
    return s;
}

/* A weighted sum of lines that are numbered as the weights number them.  `at` is the first line that is shown. */
static void weigh_lines(const resizer *r, const resize_weights *w, int line, shown s, const uint8_t *at, size_t stride,
                        const uint8_t *plain, uint8_t *to, int n)
{
    const resize_blend *b = &w->blends[line];
    int taps = b->taps, beyond = b->first + taps;
    if (beyond <= s.begin || b->first >= s.end) { /* weights of one colour give that colour */
        memcpy(to, plain, (size_t)n);
        return;
    }
    for (int k = 0; k < taps; k++) {
        int from = b->first + k;
        r->lines[k] = from < s.begin || from >= s.end ? plain : at + (size_t)(from - s.begin) * stride;
    }
    if (taps == 1) { /* its weight is 1 */
        memcpy(to, r->lines[0], (size_t)n);
        return;
    }
    if (taps & 1) r->lines[taps] = r->lines[taps - 1], taps++;
    r->path->blend(r->lines, w->weights + b->weights, taps, to, n);
}

static uint8_t *strip_line(const resizer *r, int channel, int line)
{
    return r->strip + ((size_t)channel * TURN + (size_t)(line % TURN)) * r->strip_bytes;
}

/* Whether this line, of so many, completes a strip. */
static int ends_strip(int line, int lines) { return line % TURN == TURN - 1 || line == lines - 1; }

/* Turns the strip whose last line this is: its lines become columns, of n rows that are `stride` apart. */
static void turn_strip(const resizer *r, const resize_request *q, int last, uint8_t *const to[3], ptrdiff_t stride, int n)
{
    for (int c = 0; c < q->channels; c++)
        r->path->turn(strip_line(r, c, 0), r->strip_bytes, to[c] + last - last % TURN, (size_t)stride, n);
}

/* The columns of the result are sums of columns of the picture, of n pixels each.  They become rows. */
static void resize_across(const resizer *r, const resize_request *q, shown columns, int n)
{
    for (int x = 0; x < q->out_width; x++) {
        int line = q->is_flipped ? q->out_width - 1 - x : x;
        for (int c = 0; c < q->channels; c++)
            weigh_lines(r, &r->weights[ACROSS], line, columns, r->laid[c], r->pitch, r->plain[c], strip_line(r, c, x), n);
        if (ends_strip(x, q->out_width)) turn_strip(r, q, x, r->upright, (ptrdiff_t)r->row_bytes, n);
    }
}

/* A strip of rows becomes a part of each column on its side; those of a mirrored picture come in reverse order. */
static void lay_strip(const resizer *r, const resize_request *q, int last, int wide)
{
    ptrdiff_t pitch = (ptrdiff_t)r->pitch;
    uint8_t *to[3];
    for (int c = 0; c < q->channels; c++) to[c] = r->laid[c] + (q->is_mirrored ? (wide - 1) * pitch : 0);
    turn_strip(r, q, last, to, q->is_mirrored ? -pitch : pitch, wide);
}

static void put_row(const resizer *r, const resize_request *q, int y, const uint8_t *red, const uint8_t *green,
                    const uint8_t *blue)
{
    const uint8_t *rgb[3] = {red, q->channels == 3 ? green : red, q->channels == 3 ? blue : red};
    r->path->interleave(rgb, q->to + y * q->to_row, q->out_width);
}

static void go_across_first(const resizer *r, const resize_request *q, const uint8_t *from, shown columns, shown rows)
{
    int wide = columns.end - columns.begin, high = rows.end - rows.begin;
    for (int y = 0; y < high; y++) {
        uint8_t *rgb[3] = {strip_line(r, 0, y), strip_line(r, 1, y), strip_line(r, 2, y)};
        r->path->split(from + y * q->row, rgb, wide);
        if (ends_strip(y, high)) lay_strip(r, q, y, wide);
    }
    resize_across(r, q, columns, high);
    for (int y = 0; y < q->out_height; y++) {
        for (int c = 0; c < q->channels; c++)
            weigh_lines(r, &r->weights[DOWN], y, rows, r->upright[c], r->row_bytes, r->plain[c], r->made[c], q->out_width);
        put_row(r, q, y, r->made[0], r->made[1], r->made[2]);
    }
}

static void go_down_first(const resizer *r, const resize_request *q, const uint8_t *from, shown columns, shown rows)
{
    int wide = columns.end - columns.begin, high = rows.end - rows.begin;
    size_t bytes = r->row_bytes;
    for (int y = 0; y < high; y++) {
        uint8_t *rgb[3];
        for (int c = 0; c < 3; c++) rgb[c] = r->upright[c] + (size_t)y * bytes;
        r->path->split(from + y * q->row, rgb, wide);
    }
    for (int y = 0; y < q->out_height; y++) {
        for (int c = 0; c < q->channels; c++)
            weigh_lines(r, &r->weights[DOWN], y, rows, r->upright[c], bytes, r->plain[c], strip_line(r, c, y), wide);
        if (ends_strip(y, q->out_height)) lay_strip(r, q, y, wide);
    }
    resize_across(r, q, columns, q->out_height);
    for (int y = 0; y < q->out_height; y++) {
        size_t at = (size_t)y * bytes;
        put_row(r, q, y, r->upright[0] + at, r->upright[1] + at, r->upright[2] + at);
    }
}

/* Deals out the arena for a picture of which `wide` columns and `high` rows are shown. */
static int make_memory(resizer *r, const resize_request *q, int wide, int high)
{
    size_t tallest = (size_t)(high > q->out_height ? high : q->out_height) + 2 * LINE;
    size_t widest = (size_t)(wide > q->out_width ? wide : q->out_width) + 2 * LINE;
    size_t longest = tallest > widest ? tallest : widest, columns = (size_t)wide + 2 * LINE, most = 2;
    for (int k = 0; k < 2; k++)
        if ((size_t)r->weights[k].most > most) most = (size_t)r->weights[k].most;
    r->pitch = apart(tallest);
    r->row_bytes = apart(widest);
    r->strip_bytes = apart(longest);
    dealer count = {0};
    deal_all(r, &count, tallest, columns, most);
    if (!make_room((void **)&r->arena, &r->arena_room, count.used)) return 0;
    deal_all(r, &(dealer){r->arena, 0}, tallest, columns, most);
    for (int c = 0; c < 3; c++) memset(r->plain[c], q->fill[c], r->strip_bytes);
    return 1;
}

int resize_pixels(resizer *r, const resize_request *q)
{
    resize_weights *across = &r->weights[ACROSS], *down = &r->weights[DOWN];
    if (!resize_weights_exact(across, q->filter, q->canvas_width, q->all_width, q->out_left, q->out_width) ||
        !resize_weights_exact(down, q->filter, q->canvas_height, q->all_height, q->out_top, q->out_height))
        return 0;
    int left = q->is_mirrored ? q->canvas_width - q->left - q->width : q->left;
    shown columns = shown_of(across, left, q->width), rows = shown_of(down, q->top, q->height);
    if (!make_memory(r, q, columns.end - columns.begin, rows.end - rows.begin)) return 0;
    int x = across->first + columns.begin - left, y = down->first + rows.begin - q->top; /* the first that is shown */
    if (q->is_mirrored) x = q->width - x - (columns.end - columns.begin);
    const uint8_t *from = q->from + y * q->row + 4 * (ptrdiff_t)x;
    if (q->may_go_down_first &&
        resize_goes_down_first(q->canvas_width, q->canvas_height, q->all_width, q->all_height))
        go_down_first(r, q, from, columns, rows);
    else
        go_across_first(r, q, from, columns, rows);
    return 1;
}
