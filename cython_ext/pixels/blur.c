/* Pillow's GaussianBlur: three box blurs across and three down. */
#include "pixels.h"

#include <math.h>

enum { PASSES = 3 };

/* Of the box whose three blurs come near a Gaussian's; in float, as Pillow has it. */
static float box_radius(float sigma)
{
    float variance = sigma * sigma / PASSES;
    float length = (float)sqrt(12.0 * (double)variance + 1.0);
    float whole = (float)floor(((double)length - 1.0) / 2.0);
    float part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance);
    part /= 6 * (variance - (whole + 1) * (whole + 1));
    return whole + part;
}

/* From `now` to `now`, through `spare`, down a picture of this size. */
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
    int said = pixels_make_room(picture, picture->width, picture->height);
    if (said != PIXELS_OK) return said;
    pixels_apply_pending(picture);
    if (box_across != 0) {
        turn(picture);
        blur_down(picture, picture->width, picture->height, box_across);
        turn(picture);
    }
    if (box_down != 0) blur_down(picture, picture->width, picture->height, box_down);
    return PIXELS_OK;
}

/* One direction of a convolution, down: `taps` rows at a time. */
static void convolve_down(pixels_picture *picture, const float *weights, int taps, float *sums)
{
    int width = picture->width, height = picture->height, half = taps / 2;
    size_t stride = 4 * (size_t)width;
    for (int y = 0; y < height; y++) {
        for (size_t k = 0; k < stride; k++) sums[k] = 0.5f;
        for (int tap = 0; tap < taps; tap++) {
            int64_t from = (int64_t)y + tap - half, period = height > 1 ? 2 * ((int64_t)height - 1) : 1;
            from = (from % period + period) % period;
            const uint8_t *row = picture->now + (size_t)(from < height ? from : period - from) * stride;
            for (size_t k = 0; k < stride; k++) sums[k] += weights[tap] * (float)row[k];
        }
        uint8_t *to = picture->spare + (size_t)y * stride;
        for (size_t k = 0; k < stride; k++) to[k] = (uint8_t)(int)(sums[k] > 0.0f ? sums[k] < 255.0f ? sums[k] : 255.0f : 0.0f);
    }
    pixels_exchange(picture, width, height);
}

int pixels_convolve(pixels_picture *picture, const float *across, int taps_across, const float *down, int taps_down)
{
    size_t longest = (size_t)(picture->width > picture->height ? picture->width : picture->height);
    int said = pixels_make_room(picture, picture->width, picture->height);
    if (said == PIXELS_OK) said = pixels_make_scratch(picture, 4 * longest * sizeof(float));
    if (said != PIXELS_OK) return said;
    pixels_apply_pending(picture);
    turn(picture);
    convolve_down(picture, across, taps_across, picture->scratch);
    turn(picture);
    convolve_down(picture, down, taps_down, picture->scratch);
    return PIXELS_OK;
}
