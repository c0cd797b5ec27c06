/* The memory of a picture: two buffers that only grow, with room for what vectors read and write beyond the last pixel
 * (MARGIN). */
#include "pixels.h"

#include <stdlib.h>
#include <string.h>

/* Kernels may read and write BLOCK pixels beyond the last one. */
enum { ALIGNMENT = 64, MARGIN = 4 * BLOCK + ALIGNMENT };

pixels_picture *pixels_new(const pixels_path *path)
{
    pixels_picture *picture = calloc(1, sizeof *picture);
    if (picture) picture->path = path, picture->channels = 3;
    return picture;
}

void pixels_free(pixels_picture *picture)
{
    if (!picture) return;
    free(picture->blocks[0]);
    free(picture->blocks[1]);
    free(picture->scratch);
    resize_free(picture->resizer);
    free(picture);
}

static uint8_t *aligned(uint8_t *block)
{
    return (uint8_t *)(((uintptr_t)block + MARGIN) & ~(uintptr_t)(ALIGNMENT - 1));
}

/* Grows both buffers, and moves the picture's own pixels, `kept` of them. */
static int grow(pixels_picture *picture, size_t pixels, size_t kept)
{
    if (pixels <= picture->room) return PIXELS_OK;
    size_t bytes = 4 * pixels + 2 * MARGIN;
    uint8_t *blocks[2] = {malloc(bytes), malloc(bytes)};
    if (!blocks[0] || !blocks[1]) {
        free(blocks[0]), free(blocks[1]);
        return PIXELS_NO_MEMORY;
    }
    if (kept) memcpy(aligned(blocks[0]), picture->now, 4 * kept);
    for (int k = 0; k < 2; k++) free(picture->blocks[k]), picture->blocks[k] = blocks[k];
    picture->now = aligned(blocks[0]), picture->spare = aligned(blocks[1]);
    picture->room = pixels;
    return PIXELS_OK;
}

int pixels_make_room(pixels_picture *picture, int width, int height)
{
    return grow(picture, (size_t)width * (size_t)height, (size_t)picture->width * (size_t)picture->height);
}

int pixels_make_scratch(pixels_picture *picture, size_t bytes)
{
    if (bytes <= picture->scratch_room) return PIXELS_OK;
    void *scratch = malloc(bytes);
    if (!scratch) return PIXELS_NO_MEMORY;
    free(picture->scratch);
    picture->scratch = scratch, picture->scratch_room = bytes;
    return PIXELS_OK;
}

void pixels_exchange(pixels_picture *picture, int width, int height)
{
    uint8_t *now = picture->spare;
    picture->spare = picture->now, picture->now = now;
    picture->width = width, picture->height = height;
}

int pixels_start(pixels_picture *picture, int width, int height, int channels)
{
    int status = grow(picture, (size_t)width * (size_t)height, 0);
    if (status != PIXELS_OK) return status;
    picture->width = width, picture->height = height;
    picture->channels = channels, picture->is_pending = 0;
    return PIXELS_OK;
}

void pixels_load(pixels_picture *picture, const uint8_t *from, ptrdiff_t row, ptrdiff_t column, ptrdiff_t channel)
{
    uint8_t *to = picture->now;
    size_t width = (size_t)picture->width;
    for (int y = 0; y < picture->height; y++, from += row, to += 4 * width) {
        if (column == 4 && channel == 1 && y + 1 < picture->height && row >= 0) {
            memcpy(to, from, 4 * width); /* not the last row: its last pixel may have no fourth byte */
            continue;
        }
        const uint8_t *at = from;
        for (size_t x = 0; x < width; x++, at += column)
            to[4 * x] = at[0], to[4 * x + 1] = at[channel], to[4 * x + 2] = at[2 * channel], to[4 * x + 3] = 0;
    }
}

int pixels_copy(pixels_picture *picture, const pixels_picture *other)
{
    int status = pixels_start(picture, other->width, other->height, other->channels);
    if (status != PIXELS_OK) return status;
    memcpy(picture->now, other->now, 4 * (size_t)other->width * (size_t)other->height);
    picture->is_pending = other->is_pending;
    memcpy(picture->tables, other->tables, sizeof picture->tables);
    return PIXELS_OK;
}
