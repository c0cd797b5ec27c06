/* Affine and perspective transforms as Pillow's: each pixel asks where it comes from, in double, and takes the nearest
 * pixel there, or a mean of four or sixteen.
 *
 * Beyond the edge, neighbours are the edge's own pixels.  Along a row of which every fraction is 0 (a shear along one
 * axis, a move by whole pixels) one direction has nothing to blend. */
#pragma once
#include "path.h"
#include "vectors.h"

static void affine_row(const double *m, int y, int n, double *xs, double *ys)
{
    double down = y + 0.5;
    doubles x = {0.5, 1.5, 2.5, 3.5};
    for (int k = 0; k < n; k += 4, x += 4.0) {
        store_doubles(xs + k, m[0] * x + m[1] * down + m[2]);
        store_doubles(ys + k, m[3] * x + m[4] * down + m[5]);
    }
}

static void perspective_row(const double *m, int y, int n, double *xs, double *ys)
{
    double down = y + 0.5;
    doubles x = {0.5, 1.5, 2.5, 3.5};
    for (int k = 0; k < n; k += 4, x += 4.0) {
        doubles by = m[6] * x + m[7] * down + 1.0;
        store_doubles(xs + k, (m[0] * x + m[1] * down + m[2]) / by);
        store_doubles(ys + k, (m[3] * x + m[4] * down + m[5]) / by);
    }
}

static inline size_t inside(int at, int n) { return (size_t)(at < 0 ? 0 : at < n ? at : n - 1); }

static inline doubles lerp(doubles a, doubles b, doubles part) { return a + (b - a) * part; }

static inline doubles cubic(doubles a, doubles b, doubles c, doubles d, doubles part)
{
    doubles two = c - a, three = 2.0 * (a - b) + c - d, four = -a + b - c + d;
    return b + part * (two + part * (three + part * four));
}

/* Columns of a row: `step` is 4 bytes inside the picture. */
static inline doubles lerp_row(const uint8_t *row, size_t left, size_t right, doubles part)
{
    return lerp(load_pixel(row + left), load_pixel(row + right), part);
}

static inline doubles cubic_row(const uint8_t *row, const size_t at[4], doubles part)
{
    return cubic(load_pixel(row + at[0]), load_pixel(row + at[1]), load_pixel(row + at[2]), load_pixel(row + at[3]), part);
}

static inline doubles bilinear_at(const pixels_source *s, int x, int y, double part_x, double part_y)
{
    size_t stride = 4 * (size_t)s->width, left = 4 * inside(x, s->width), right = 4 * inside(x + 1, s->width);
    const uint8_t *upper = s->from + inside(y, s->height) * stride, *lower = s->from + inside(y + 1, s->height) * stride;
    doubles part = every(part_x);
    return lerp(lerp_row(upper, left, right, part), lerp_row(lower, left, right, part), every(part_y));
}

static inline doubles bicubic_at(const pixels_source *s, int x, int y, double part_x, double part_y)
{
    size_t stride = 4 * (size_t)s->width, at[4];
    doubles rows[4], part = every(part_x);
    if (x >= 1 && y >= 1 && x + 2 < s->width && y + 2 < s->height) {
        const uint8_t *row = s->from + (size_t)(y - 1) * stride + 4 * (size_t)(x - 1);
        for (size_t k = 0; k < 4; k++) at[k] = 4 * k;
        for (int k = 0; k < 4; k++, row += stride) rows[k] = cubic_row(row, at, part);
    } else {
        for (int k = 0; k < 4; k++) at[k] = 4 * inside(x - 1 + k, s->width);
        for (int k = 0; k < 4; k++) rows[k] = cubic_row(s->from + inside(y - 1 + k, s->height) * stride, at, part);
    }
    return clamped_doubles(cubic(rows[0], rows[1], rows[2], rows[3], every(part_y)));
}

/* Which pixels of the row come from inside: where these begin and end, or more than that, which `is_in` then tells. */
static inline int is_in(const pixels_source *s, double x, double y)
{
    return x >= 0.0 && x < s->width && y >= 0.0 && y < s->height;
}

static inline int whole(double v) /* floor, of what is no less than -1 */
{
    int towards_0 = (int)v;
    return towards_0 - (v < towards_0);
}

static void sample_row(const pixels_source *s, double *xs, double *ys, int interpolation, uint8_t *to, int n)
{
    for (int k = 0; k < n; k++, to += 4) {
        if (!is_in(s, xs[k], ys[k])) {
            memcpy(to, &s->fill, 4);
            continue;
        }
        if (interpolation == NEAREST) {
            memcpy(to, s->from + 4 * ((size_t)(int)ys[k] * (size_t)s->width + (size_t)(int)xs[k]), 4);
            continue;
        }
        double x = xs[k] - 0.5, y = ys[k] - 0.5;
        int left = whole(x), top = whole(y);
        if (interpolation == BILINEAR)
            store_pixel(to, bilinear_at(s, left, top, x - left, y - top));
        else
            store_pixel(to, bicubic_at(s, left, top, x - left, y - top));
    }
}
