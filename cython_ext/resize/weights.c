/* The filters of a resize (nearest, box, bilinear, hamming, bicubic, lanczos), and the weights that they give:
 * Pillow's, or coarser ones for exact=False.
 *
 * In plain C for every processor, because a fused multiplication would round once where Pillow's own code rounds twice.
 *
 * A new filter is a function and a row of `kernels` here (and a term of is_positive(), if it crosses 0), a number of
 * weights.h, and a name and a number in shmloader/images/filters.py.  The numbers are Pillow's, because Pillow resizes
 * the pictures that are not ours. */
#include "weights.h"

#include "memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The filters: the weight of a line by its distance, which is in lines of the smaller of both pictures.  Pillow's
 * documentation names them; the formulas are the usual ones, evaluated in the order that gives Pillow's bits. */
static double box(double distance) { return distance > -0.5 && distance <= 0.5 ? 1 : 0; }

static double triangle(double distance)
{
    distance = fabs(distance);
    return distance < 1 ? 1 - distance : 0;
}

static const double PI = 3.14159265358979323846;

static double sinc(double x) { return x == 0 ? 1 : sin(x) / x; }

static double hamming(double distance)
{
    double x = fabs(distance) * PI; /* the window's two constants are floats in Pillow */
    return fabs(distance) >= 1 ? 0 : sinc(x) * (distance == 0 ? 1 : 0.54f + 0.46f * cos(x));
}

static double cubic(double distance) /* of R. Keys, with a = -0.5 */
{
    double x = fabs(distance);
    if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0;
}

static double lanczos(double distance)
{
    return -3 <= distance && distance < 3 ? sinc(distance * PI) * sinc(distance / 3 * PI) : 0;
}

static const struct {
    double (*weight)(double distance);
    double reach;
} kernels[RESIZE_FILTERS] = {
    [RESIZE_LANCZOS] = {lanczos, 3}, [RESIZE_BILINEAR] = {triangle, 1}, [RESIZE_BICUBIC] = {cubic, 2},
    [RESIZE_BOX] = {box, 0.5},       [RESIZE_HAMMING] = {hamming, 1},
};

/* The position of a result line among the lines of the picture. */
typedef struct {
    double (*weight)(double distance);
    double scale, stretch, reach;
} filter;

static filter filter_of(resize_filter kind, int in, int out)
{
    double scale = (double)in / out, stretch = scale < 1 ? 1 : scale;
    return (filter){kernels[kind].weight, scale, stretch, kernels[kind].reach * stretch};
}

/* The lines that a line of the result is made of, and their weights before they are divided by their sum. */
static int weigh(const filter *f, int line, int in, int *first, double *weights, double *total)
{
    double centre = (line + 0.5) * f->scale, inverse = 1.0 / f->stretch, sum = 0;
    int begin = (int)(centre - f->reach + 0.5), end = (int)(centre + f->reach + 0.5);
    if (begin < 0) begin = 0;
    if (end > in) end = in;
    for (int k = 0; k < end - begin; k++) {
        weights[k] = f->weight((k + begin - centre + 0.5) * inverse);
        sum += weights[k];
    }
    *total = sum != 0 ? sum : 1;
    *first = begin;
    return end - begin;
}

/* 0: no memory; 1: there is room for all; 2: they were made for these arguments already. */
static int prepare(resize_weights *w, int out, size_t taps, const int key[8])
{
    if (!memcmp(w->key, key, sizeof w->key)) return 2;
    memset(w->key, 0, sizeof w->key);
    w->count = out;
    w->most = 0;
    return make_room((void **)&w->blends, &w->blends_room, (size_t)out * sizeof *w->blends) &&
           make_room((void **)&w->weights, &w->weights_room, (size_t)out * (taps / 2 + 1) * sizeof *w->weights) &&
           make_room((void **)&w->sums, &w->sums_room, 2 * taps * sizeof *w->sums);
}

/* A result line's integer weights.  Weights of 0 at both ends are left out, unless the filter crosses 0.  Then a line
 * could begin after the next line's first one.  Columns are made in order, so that one would be missing. */
static size_t append(resize_weights *w, int line, size_t at, int first, int taps, const int32_t *weights, int low,
                     int is_positive)
{
    while (is_positive && taps > 1 && !weights[taps - 1]) taps--;
    while (is_positive && taps > 1 && !*weights) weights++, first++, taps--;
    for (int k = 0; k < taps; k += 2) {
        int32_t pair[2] = {weights[k], k + 1 < taps ? weights[k + 1] : 0};
        resize_weight *to = &w->weights[at + (size_t)k / 2];
        for (int side = 0; side < 2; side++) {
            to->high[side] = (int16_t)(pair[side] >> low);
            to->low[side] = (int16_t)(pair[side] & ((1 << low) - 1));
        }
    }
    w->blends[line] = (resize_blend){first, taps, at};
    taps += taps & 1;
    if (taps > w->most) w->most = taps;
    return at + (size_t)taps / 2;
}

static int is_positive(resize_filter kind) { return kind != RESIZE_BICUBIC && kind != RESIZE_LANCZOS; }

static int32_t rounded(double weight) { return (int32_t)(weight < 0 ? weight - 0.5 : weight + 0.5); }

int resize_weights_exact(resize_weights *w, resize_filter kind, int in, int out, int begin, int count)
{
    if (in == out) kind = RESIZE_NEAREST; /* each line is itself, without weights of 0 beside it */
    filter f = filter_of(kind, in, out);
    size_t most = 2 * (size_t)ceil(f.reach) + 1, at = 0;
    int key[8] = {1, in, out, begin, count, kind}, is_ready = prepare(w, count, most, key);
    if (is_ready != 1) return is_ready;
    int32_t *integers = (int32_t *)(w->sums + most);
    int above = in, below = 0;
    double nearest = 0.5 * f.scale; /* where the line's middle is: found as Pillow does, by adding up */
    for (int line = 0; line < begin; line++) nearest += f.scale;
    for (int line = 0; line < count; line++, nearest += f.scale) {
        double total = 1;
        int first = nearest < in ? (int)nearest : in - 1, taps = 1;
        *w->sums = 1;
        if (kind != RESIZE_NEAREST) taps = weigh(&f, begin + line, in, &first, w->sums, &total);
        for (int k = 0; k < taps; k++) integers[k] = rounded(w->sums[k] / total * (1 << BLEND_BITS));
        at = append(w, line, at, first, taps, integers, BLEND_LOW, is_positive(kind));
        const resize_blend *b = &w->blends[line];
        if (b->first < above) above = b->first;
        if (b->first + b->taps > below) below = b->first + b->taps;
    }
    for (int line = 0; line < count; line++) w->blends[line].first -= above;
    w->first = above;
    w->lines = below - above;
    memcpy(w->key, key, sizeof key);
    return 1;
}

/* Integers whose sum is 1 << BLEND_FAST_BITS.  The largest takes the remainder of the roundings, so that an area of one
 * colour keeps it. */
static void round_fast(const double *sums, int count, double sum, int32_t *integers)
{
    double scale = (1 << BLEND_FAST_BITS) / sum;
    int32_t total = 0;
    int largest = 0;
    for (int k = 0; k < count; k++) {
        integers[k] = rounded(sums[k] * scale);
        total += integers[k];
        if (integers[k] > integers[largest]) largest = k;
    }
    integers[largest] += (1 << BLEND_FAST_BITS) - total;
    for (int k = 0; k < count; k++) integers[k] *= 1 << BLEND_LOW;
}

/* pixel / ratio, of 16 bits by 1 to 4, without a division: there are some thousand a picture. */
static uint64_t sample_part(int ratio) { return (((uint64_t)1 << 32) + (uint64_t)ratio - 1) / (uint64_t)ratio; }
static int sample_of(int pixel, uint64_t part) { return (int)((uint64_t)pixel * part >> 32); }

/* Distributes the weights of pixels, from `pixel` on, to the samples of which the pixels are made; returns how many
 * samples. */
static int of_samples(const double *weights, int taps, int pixel, int ratio, int samples, int is_smooth, int *first,
                      double *sums)
{
    uint64_t part = sample_part(ratio);
    int begin = sample_of(pixel, part) - (ratio > 1), count = sample_of(pixel + taps - 1, part) + 2 - begin;
    if (begin < 0) count += begin, begin = 0;
    if (count > samples - begin) count = samples - begin;
    for (int k = 0; k < count; k++) sums[k] = 0;
    for (int k = 0; k < taps; k++, pixel++) {
        int near = sample_of(pixel, part);
        if (ratio == 2 && is_smooth) {
            sums[near - begin] += 0.75 * weights[k];
            sums[clamp(pixel & 1 ? near + 1 : near - 1, samples) - begin] += 0.25 * weights[k];
        } else
            sums[near - begin] += weights[k];
    }
    *first = begin;
    return count;
}

int resize_weights_fast(resize_weights *luma, resize_weights *chroma, resize_filter kind, int in, int out, int start, int ratio,
                      int samples, int is_smooth)
{
    filter f = filter_of(kind, in, out);
    size_t most = 2 * (size_t)ceil(f.reach) + 5, at = 0, at_chroma = 0;
    int key[8] = {2, in, out, start, ratio, samples, is_smooth, kind};
    int is_ready = prepare(luma, out, most, key), is_other = prepare(chroma, out, most, key);
    if (!is_ready || !is_other) return 0;
    if (is_ready == 2 && is_other == 2) return 1;
    int32_t *integers = (int32_t *)chroma->sums; /* each double has been read before its place is overwritten */
    for (int line = 0; line < out; line++) {
        double total;
        int begin, taps = weigh(&f, line, in, &begin, luma->sums, &total), first;
        int count = of_samples(luma->sums, taps, start + begin, ratio, samples, is_smooth, &first, chroma->sums + most);
        round_fast(chroma->sums + most, count, total, integers);
        at_chroma = append(chroma, line, at_chroma, first, count, integers, BLEND_LOW, is_positive(kind));
        round_fast(luma->sums, taps, total, integers);
        at = append(luma, line, at, start + begin, taps, integers, BLEND_LOW, is_positive(kind));
    }
    memcpy(luma->key, key, sizeof key);
    memcpy(chroma->key, key, sizeof key);
    return 1;
}

void resize_weights_free(resize_weights *w)
{
    free(w->blends);
    free(w->weights);
    free(w->sums);
}
