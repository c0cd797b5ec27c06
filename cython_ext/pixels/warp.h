/* Affine and perspective transforms as Pillow does them: for each pixel of the result, compute its place in the
 * picture, in double, and take the nearest pixel there, or a weighted mean of four or sixteen.
 *
 * Neighbours beyond the edge are the edge's own pixels.  Most places are DEEP inside and have all their neighbours. */
#pragma once
#include "path.h"
#include "vectors.h"

static inline size_t inside(int at, int n) { return (size_t)(at < 0 ? 0 : at < n ? at : n - 1); }

static inline doubles lerp(doubles a, doubles b, doubles part) { return a + (b - a) * part; }

static inline doubles cubic(doubles a, doubles b, doubles c, doubles d, doubles part)
{
    doubles two = c - a, three = 2.0 * (a - b) + c - d, four = -a + b - c + d;
    return b + part * (two + part * (three + part * four));
}

static inline doubles lerp_row(const uint8_t *row, size_t left, size_t right, doubles part)
{
    return lerp(load_pixel(row + left), load_pixel(row + right), part);
}

static inline doubles cubic_row(const uint8_t *row, const size_t at[4], doubles part)
{
    doubles a = load_pixel(row + at[0]), b = load_pixel(row + at[1]);
    return cubic(a, b, load_pixel(row + at[2]), load_pixel(row + at[3]), part);
}

/* Near the edge: each neighbour's place is limited to the picture. */
static inline doubles bilinear_at_edge(const pixels_source *s, int x, int y, doubles part_x, doubles part_y)
{
    size_t stride = 4 * (size_t)s->width, left = 4 * inside(x, s->width), right = 4 * inside(x + 1, s->width);
    const uint8_t *upper = s->from + inside(y, s->height) * stride;
    const uint8_t *lower = s->from + inside(y + 1, s->height) * stride;
    return lerp(lerp_row(upper, left, right, part_x), lerp_row(lower, left, right, part_x), part_y);
}

static inline doubles bicubic_at_edge(const pixels_source *s, int x, int y, doubles part_x, doubles part_y)
{
    size_t stride = 4 * (size_t)s->width, at[4];
    doubles rows[4];
    for (int k = 0; k < 4; k++) at[k] = 4 * inside(x - 1 + k, s->width);
    for (int k = 0; k < 4; k++) rows[k] = cubic_row(s->from + inside(y - 1 + k, s->height) * stride, at, part_x);
    return cubic(rows[0], rows[1], rows[2], rows[3], part_y);
}

/* With a shear, or a move along one axis, the other coordinate has no fraction: then the sums below are just their
 * first term, of one row or one column. */
static inline doubles bilinear_at(const uint8_t *at, size_t stride, double x, double y)
{
    doubles part_x = every(x), part_y = every(y);
    if (y == 0) return lerp_row(at, 0, 4, part_x);
    if (x == 0) return lerp(load_pixel(at), load_pixel(at + stride), part_y);
    return lerp(lerp_row(at, 0, 4, part_x), lerp_row(at + stride, 0, 4, part_x), part_y);
}

static inline doubles bicubic_at(const uint8_t *at, size_t stride, double x, double y)
{
    static const size_t columns[4] = {0, 4, 8, 12};
    doubles rows[4], part_x = every(x), part_y = every(y);
    if (y == 0) return cubic_row(at - 4, columns, part_x);
    at -= stride;
    if (x == 0) {
        const size_t lines[4] = {0, stride, 2 * stride, 3 * stride};
        return cubic_row(at, lines, part_y);
    }
    at -= 4;
    for (int k = 0; k < 4; k++, at += stride) rows[k] = cubic_row(at, columns, part_x);
    return cubic(rows[0], rows[1], rows[2], rows[3], part_y);
}

enum { OUTSIDE, EDGE, DEEP, CHUNK = 64 };

/* For CHUNK pixels of a row, their places in the picture. */
typedef struct {
    double x[CHUNK], y[CHUNK];           /* the fractions */
    int32_t column[CHUNK], row[CHUNK];   /* of the pixel to the left and above, or of the nearest one */
    int64_t kind[CHUNK];                 /* OUTSIDE; EDGE: some neighbours may be beyond the edge; or DEEP */
} places;

/* `margin`: how many pixels must exist before this one, and how many after it, less one. */
static inline void find(places *p, int k, doubles x, doubles y, const pixels_source *s, int is_nearest, double margin)
{
    double width = s->width, height = s->height;
    longs is_in = (x >= 0.0) & (x < width) & (y >= 0.0) & (y < height);
    double back = is_nearest ? 0.0 : 0.5;
    x = (doubles)((longs)(x - back) & is_in), y = (doubles)((longs)(y - back) & is_in);
    doubles left = floored(x), top = floored(y);
    longs is_deep = is_in & (left >= margin) & (left < width - 1 - margin);
    is_deep &= (top >= margin) & (top < height - 1 - margin);
    store_doubles(p->x + k, x - left);
    store_doubles(p->y + k, y - top);
    store_as_ints(p->column + k, left);
    store_as_ints(p->row + k, top);
    longs kind = (is_in & 1) + (is_deep & 1);
    memcpy(p->kind + k, &kind, sizeof kind);
}

static inline void sample(const places *p, const pixels_source *s, int interpolation, uint8_t *to, int n)
{
    size_t stride = 4 * (size_t)s->width;
    for (int k = 0; k < n; k++, to += 4) {
        const uint8_t *at = s->from + (size_t)p->row[k] * stride + 4 * (size_t)p->column[k];
        if (p->kind[k] == OUTSIDE)
            memcpy(to, &s->fill, 4);
        else if (interpolation == NEAREST)
            memcpy(to, at, 4);
        else {
            double x = p->x[k], y = p->y[k];
            doubles pixel;
            if (interpolation == BILINEAR)
                pixel = p->kind[k] == DEEP ? bilinear_at(at, stride, x, y)
                                           : bilinear_at_edge(s, p->column[k], p->row[k], every(x), every(y));
            else
                pixel = clamped_doubles(p->kind[k] == DEEP
                                            ? bicubic_at(at, stride, x, y)
                                            : bicubic_at_edge(s, p->column[k], p->row[k], every(x), every(y)));
            store_pixel(to, pixel);
        }
    }
}

static inline void warp(const pixels_source *s, const double *m, int is_affine, int y, int interpolation, uint8_t *to,
                        int n)
{
    double down = y + 0.5;
    places p;
    for (int from = 0; from < n; from += CHUNK) {
        int here = n - from < CHUNK ? n - from : CHUNK;
        doubles x = (doubles){0.5, 1.5, 2.5, 3.5} + (double)from;
        for (int k = 0; k < here; k += 4, x += 4.0) {
            doubles there_x = m[0] * x + m[1] * down + m[2], there_y = m[3] * x + m[4] * down + m[5];
            if (!is_affine) {
                doubles by = m[6] * x + m[7] * down + 1.0;
                there_x = there_x / by, there_y = there_y / by;
            }
            find(&p, k, there_x, there_y, s, interpolation == NEAREST, interpolation == BICUBIC ? 1.0 : 0.0);
        }
        sample(&p, s, interpolation, to + 4 * (size_t)from, here);
    }
}

static void affine_row(const pixels_source *s, const double *m, int y, int interpolation, uint8_t *to, int n)
{
    if (interpolation == BILINEAR)
        warp(s, m, 1, y, BILINEAR, to, n);
    else
        warp(s, m, 1, y, BICUBIC, to, n);
}

static void perspective_row(const pixels_source *s, const double *m, int y, int interpolation, uint8_t *to, int n)
{
    if (interpolation == NEAREST)
        warp(s, m, 0, y, NEAREST, to, n);
    else if (interpolation == BILINEAR)
        warp(s, m, 0, y, BILINEAR, to, n);
    else
        warp(s, m, 0, y, BICUBIC, to, n);
}
