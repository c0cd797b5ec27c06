/* Pillow's GaussianBlur, as three box blurs across and three down; and convolutions, as torch computes them. */
#include "pixels.h"

#include <math.h>
#include <string.h>

enum { PASSES = 3 };

/* The width of the box whose three blurs approximate a Gaussian; in float, as in Pillow. */
static float box_radius(float sigma)
{
    float variance = sigma * sigma / PASSES;
    float length = (float)sqrt(12.0 * (double)variance + 1.0);
    float whole = (float)floor(((double)length - 1.0) / 2.0);
    float part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance);
    part /= 6 * (variance - (whole + 1) * (whole + 1));
    return whole + part;
}

/* Blurs from `now` to `now`, by way of `spare`, down a picture of this size. */
static void blur_down(pixels_picture *picture, int width, int height, float box)
{
    int radius = (int)box;
    uint32_t inside = (uint32_t)((float)(1u << 24) / (box * 2 + 1));
    uint32_t edge = ((1u << 24) - ((uint32_t)radius * 2 + 1) * inside) / 2;
    for (int pass = 0; pass < PASSES; pass++) {
        picture->path->box_down(picture->now, picture->spare, width, height, radius, inside, edge);
        pixels_exchange(picture, width, height);
    }
}

static void turn(pixels_picture *picture)
{
    picture->path->turn(picture->now, picture->spare, picture->width, picture->height);
    pixels_exchange(picture, picture->height, picture->width);
}

int pixels_gaussian_blur(pixels_picture *picture, float across, float down)
{
    float box_across = box_radius(across), box_down = box_radius(down);
    int status = pixels_make_room(picture, picture->width, picture->height);
    if (status != PIXELS_OK) return status;
    pixels_apply_pending(picture);
    if (box_across != 0) {
        turn(picture);
        blur_down(picture, picture->width, picture->height, box_across);
        turn(picture);
    }
    if (box_down != 0) blur_down(picture, picture->width, picture->height, box_down);
    return PIXELS_OK;
}

/* The line that stands for a line beyond the edge: lines are mirrored, and the outermost is not repeated. */
static int mirrored(int64_t line, int lines)
{
    int64_t period = lines > 1 ? 2 * ((int64_t)lines - 1) : 1;
    line = (line % period + period) % period;
    return (int)(line < lines ? line : period - line);
}

/* A row with half a convolution's taps of mirrored pixels on either side. */
static void widen_row(const uint8_t *row, int width, int half, uint8_t *to)
{
    memcpy(to + 4 * (size_t)half, row, 4 * (size_t)width);
    for (int k = 0; k < half; k++) {
        memcpy(to + 4 * (size_t)k, row + 4 * (size_t)mirrored((int64_t)k - half, width), 4);
        memcpy(to + 4 * ((size_t)half + (size_t)width + (size_t)k), row + 4 * (size_t)mirrored((int64_t)width + k, width), 4);
    }
}

int pixels_convolve(pixels_picture *picture, const float *across, int taps_across, const float *down, int taps_down)
{
    int width = picture->width, height = picture->height;
    size_t taps = (size_t)(taps_across > taps_down ? taps_across : taps_down), stride = 4 * (size_t)width;
    int status = pixels_make_room(picture, width, height);
    if (status == PIXELS_OK)
        status = pixels_make_scratch(picture, taps * sizeof(uint8_t *) + stride + 4 * ((size_t)taps_across + BLOCK));
    if (status != PIXELS_OK) return status;
    pixels_apply_pending(picture);
    const uint8_t **rows = picture->scratch;
    uint8_t *wide = (uint8_t *)(rows + taps);
    for (int tap = 0; tap < taps_across; tap++) rows[tap] = wide + 4 * (size_t)tap;
    for (int y = 0; y < height; y++) {
        widen_row(picture->now + (size_t)y * stride, width, taps_across / 2, wide);
        picture->path->convolve_row(rows, across, taps_across, picture->spare + (size_t)y * stride, width);
    }
    pixels_exchange(picture, width, height);
    for (int y = 0; y < height; y++) {
        for (int tap = 0; tap < taps_down; tap++)
            rows[tap] = picture->now + (size_t)mirrored((int64_t)y + tap - taps_down / 2, height) * stride;
        picture->path->convolve_row(rows, down, taps_down, picture->spare + (size_t)y * stride, width);
    }
    pixels_exchange(picture, width, height);
    return PIXELS_OK;
}

/* A row as floats, three a pixel, with half a window of mirrored pixels on either side. */
static void widen_row_to_floats(const pixels_path *path, const uint8_t *row, int width, int half, float *to)
{
    enum { PIXEL = 3 * sizeof *to };
    path->window_floats(row, to + 3 * half, width);
    for (int k = 0; k < half; k++) {
        memcpy(to + 3 * (half - 1 - k), to + 3 * (half + 1 + k), PIXEL);
        memcpy(to + 3 * (half + width + k), to + 3 * (half + width - 2 - k), PIXEL);
    }
}

int pixels_convolve_window(pixels_picture *picture, const float *weights, int across, int down)
{
    int width = picture->width, height = picture->height, status, next = 0;
    const pixels_path *path = picture->path;
    if (across / 2 >= width || down / 2 >= height || !path->window_row || !path->can_add_fused()) return PIXELS_NO_WAY;
    /* The lines in use are neighbours, and no more than the window has, so a line's number gives its place. */
    size_t stride = 3 * ((size_t)width + (size_t)across + BLOCK);
    status = pixels_make_room(picture, width, height);
    if (status == PIXELS_OK)
        status = pixels_make_scratch(picture, (size_t)down * (sizeof(float *) + stride * sizeof(float)));
    if (status != PIXELS_OK) return status;
    pixels_apply_pending(picture);
    const float **rows = picture->scratch;
    float *lines = (float *)(rows + down);
    memset(lines, 0, (size_t)down * stride * sizeof *lines);
    for (int y = 0; y < height; y++) {
        for (; next < height && next <= y + down / 2; next++)
            widen_row_to_floats(path, picture->now + 4 * (size_t)next * (size_t)width, width, across / 2,
                                lines + (size_t)(next % down) * stride);
        for (int k = 0; k < down; k++)
            rows[k] = lines + (size_t)(mirrored((int64_t)y + k - down / 2, height) % down) * stride;
        path->window_row(rows, weights, across, down, picture->spare + 4 * (size_t)y * (size_t)width, width);
    }
    pixels_exchange(picture, width, height);
    return PIXELS_OK;
}
