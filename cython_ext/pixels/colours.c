/* Operations on colours that are no look-ups (those are in tables.c): saturation, hue, grayscale, order of channels,
 * Sharpness, blend. */
#include "pixels.h"

#include <string.h>

static size_t size(const pixels_picture *picture) { return (size_t)picture->width * (size_t)picture->height; }

void pixels_saturation(pixels_picture *picture, float factor)
{
    if (picture->channels == 1) return; /* a grey picture has no colours */
    pixels_apply_pending(picture);
    picture->path->saturate(picture->now, size(picture), factor);
}

void pixels_hue(pixels_picture *picture, int shift)
{
    if (picture->channels == 1) return;
    pixels_apply_pending(picture);
    picture->path->hue(picture->now, size(picture), shift);
}

void pixels_grayscale(pixels_picture *picture, int channels)
{
    if (picture->channels != 1) {
        pixels_apply_pending(picture);
        picture->path->grayscale(picture->now, size(picture));
    }
    picture->channels = channels;
}

void pixels_permute(pixels_picture *picture, const int order[3])
{
    uint8_t *at = picture->now;
    pixels_apply_pending(picture);
    for (size_t k = 0; k < size(picture); k++, at += 4) {
        uint8_t from[3] = {at[0], at[1], at[2]};
        for (int c = 0; c < 3; c++) at[c] = from[order[c]];
    }
}

int pixels_sharpness(pixels_picture *picture, float factor)
{
    int width = picture->width, height = picture->height;
    size_t stride = 4 * (size_t)width;
    if (width < 3 || height < 3) return PIXELS_OK; /* every pixel is at the edge, and stays */
    int status = pixels_make_room(picture, width, height);
    if (status == PIXELS_OK) status = pixels_make_scratch(picture, sizeof(uint16_t) * (stride + 4 * BLOCK));
    if (status != PIXELS_OK) return status;
    pixels_apply_pending(picture);
    memcpy(picture->spare, picture->now, stride);
    for (int y = 1; y < height - 1; y++)
        picture->path->sharpen_row(picture->now + (size_t)y * stride, picture->spare + (size_t)y * stride, width,
                                   factor, picture->scratch);
    memcpy(picture->spare + (size_t)(height - 1) * stride, picture->now + (size_t)(height - 1) * stride, stride);
    pixels_exchange(picture, width, height);
    return PIXELS_OK;
}

void pixels_blend(pixels_picture *picture, pixels_picture *other, float alpha)
{
    pixels_apply_pending(picture);
    pixels_apply_pending(other);
    picture->path->blend(picture->now, other->now, size(picture), alpha);
}
