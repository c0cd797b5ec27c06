/* Moves of whole pixels: crop, pad (constant, edge, reflect, symmetric), flip, quarter turns, boxes of one colour. */
#include "pixels.h"

#include <string.h>

/* The row or column of the picture that stands for one beyond it; -1: none. */
static int source_at(int at, int n, int mode)
{
    if (at >= 0 && at < n) return at;
    if (mode == PAD_CONSTANT) return -1;
    if (mode == PAD_EDGE || n == 1) return at < 0 ? 0 : n - 1;
    /* numpy's reflect omits the edge, symmetric repeats it; both continue back and forth */
    int64_t period = mode == PAD_REFLECT ? 2 * ((int64_t)n - 1) : 2 * (int64_t)n;
    int64_t place = ((int64_t)at % period + period) % period;
    return (int)(place < n ? place : period - place - (mode == PAD_SYMMETRIC));
}

static void fill_pixels(uint8_t *to, int n, uint32_t colour)
{
    for (int k = 0; k < n; k++) memcpy(to + 4 * (size_t)k, &colour, 4);
}

int pixels_frame(pixels_picture *picture, int left, int top, int width, int height, int mode, uint32_t fill)
{
    int status = pixels_make_room(picture, width, height);
    if (status != PIXELS_OK) return status;
    pixels_apply_pending(picture);
    /* columns from `first` to `end` are inside the picture */
    int64_t right = (int64_t)picture->width - left;
    int first = left < 0 ? left > -width ? -left : width : 0;
    int end = right < first ? first : right < width ? (int)right : width;
    for (int y = 0; y < height; y++) {
        uint8_t *to = picture->spare + 4 * (size_t)y * (size_t)width;
        int row = source_at(top + y, picture->height, mode);
        if (row < 0) {
            fill_pixels(to, width, fill);
            continue;
        }
        const uint8_t *from = picture->now + 4 * (size_t)row * (size_t)picture->width;
        if (mode == PAD_CONSTANT) {
            fill_pixels(to, first, fill);
            fill_pixels(to + 4 * (size_t)end, width - end, fill);
        } else {
            for (int x = 0; x < first; x++)
                memcpy(to + 4 * (size_t)x, from + 4 * (size_t)source_at(left + x, picture->width, mode), 4);
            for (int x = end; x < width; x++)
                memcpy(to + 4 * (size_t)x, from + 4 * (size_t)source_at(left + x, picture->width, mode), 4);
        }
        if (first < end)
            memcpy(to + 4 * (size_t)first, from + 4 * (size_t)(left + first), 4 * (size_t)(end - first));
    }
    pixels_exchange(picture, width, height);
    return PIXELS_OK;
}

/* Reverses the order of all pixels, row by row, or of the whole picture as one row. */
static void reverse(uint8_t *to, const uint8_t *from, size_t n)
{
    for (size_t k = 0; k < n; k++) memcpy(to + 4 * k, from + 4 * (n - 1 - k), 4);
}

int pixels_flip_left_right(pixels_picture *picture)
{
    size_t width = (size_t)picture->width;
    int status = pixels_make_room(picture, picture->width, picture->height);
    if (status != PIXELS_OK) return status;
    for (int y = 0; y < picture->height; y++)
        reverse(picture->spare + 4 * (size_t)y * width, picture->now + 4 * (size_t)y * width, width);
    pixels_exchange(picture, picture->width, picture->height);
    return PIXELS_OK;
}

int pixels_flip_top_bottom(pixels_picture *picture)
{
    size_t stride = 4 * (size_t)picture->width, last = (size_t)picture->height - 1;
    int status = pixels_make_room(picture, picture->width, picture->height);
    if (status != PIXELS_OK) return status;
    for (size_t y = 0; y <= last; y++) memcpy(picture->spare + y * stride, picture->now + (last - y) * stride, stride);
    pixels_exchange(picture, picture->width, picture->height);
    return PIXELS_OK;
}

int pixels_turn_quarters(pixels_picture *picture, int quarters)
{
    int status = pixels_make_room(picture, picture->width, picture->height);
    if (status != PIXELS_OK) return status;
    if (quarters == 2) {
        reverse(picture->spare, picture->now, (size_t)picture->width * (size_t)picture->height);
        pixels_exchange(picture, picture->width, picture->height);
        return PIXELS_OK;
    }
    if (quarters % 2 == 0) return PIXELS_OK;
    picture->path->turn(picture->now, picture->spare, picture->width, picture->height);
    pixels_exchange(picture, picture->height, picture->width);
    return quarters == 1 ? pixels_flip_top_bottom(picture) : pixels_flip_left_right(picture);
}

void pixels_fill_box(pixels_picture *picture, int left, int top, int width, int height, uint32_t colour)
{
    pixels_apply_pending(picture);
    for (int y = top; y < top + height; y++)
        fill_pixels(picture->now + 4 * ((size_t)y * (size_t)picture->width + (size_t)left), width, colour);
}
