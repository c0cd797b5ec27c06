/* Image.transform: affine and perspective.  Chooses how the nearest pixel is found, as Pillow does (by steps, in fixed
 * point or in double), and leaves moves by whole pixels to frame.c. */
#include "pixels.h"

#include <limits.h>
#include <math.h>
#include <string.h>

static uint8_t *row_of(uint8_t *pixels, int y, int width) { return pixels + 4 * (size_t)y * (size_t)width; }

static void put(const pixels_picture *picture, uint8_t *to, int x, int y, uint32_t fill)
{
    if (x >= 0 && x < picture->width && y >= 0 && y < picture->height)
        memcpy(to, picture->now + 4 * ((size_t)y * (size_t)picture->width + (size_t)x), 4);
    else
        memcpy(to, &fill, 4);
}

/* The pixel that contains a coordinate; -1: none, also if an int cannot hold it. */
static int pixel_at(double v) { return v >= 0.0 && v < 2147483647.0 ? (int)v : -1; }

/* For the nearest pixel, Pillow adds up the steps from pixel to pixel, so their roundings add up as well. */
static void nearest_scale(const pixels_picture *picture, const double *m, int width, int height, uint32_t fill,
                          int *columns)
{
    double x = m[2] + m[0] * 0.5, y = m[5] + m[4] * 0.5;
    for (int k = 0; k < width; k++, x += m[0]) columns[k] = pixel_at(x);
    for (int k = 0; k < height; k++, y += m[4]) {
        uint8_t *to = row_of(picture->spare, k, width);
        int row = pixel_at(y);
        for (int j = 0; j < width; j++) put(picture, to + 4 * (size_t)j, columns[j], row, fill);
    }
}

static void nearest_double(const pixels_picture *picture, const double *m, int width, int height, uint32_t fill)
{
    double first_x = m[2] + m[1] * 0.5 + m[0] * 0.5, first_y = m[5] + m[4] * 0.5 + m[3] * 0.5;
    for (int k = 0; k < height; k++, first_x += m[1], first_y += m[4]) {
        uint8_t *to = row_of(picture->spare, k, width);
        double x = first_x, y = first_y;
        for (int j = 0; j < width; j++, to += 4, x += m[0], y += m[3]) put(picture, to, pixel_at(x), pixel_at(y), fill);
    }
}

/* Fixed point, with 16 bits before and after the point.  Sums wrap, as in Pillow. */
static uint32_t fixed(double v)
{
    double scaled = floor(v * 65536.0 + 0.5);
    return (uint32_t)(scaled >= -2147483648.0 && scaled <= 2147483647.0 ? (int)scaled : INT_MIN);
}

static void nearest_fixed(const pixels_picture *picture, const double *m, int width, int height, uint32_t fill)
{
    uint32_t right_x = fixed(m[0]), down_x = fixed(m[1]), right_y = fixed(m[3]), down_y = fixed(m[4]);
    uint32_t first_x = fixed(m[2] + m[0] * 0.5 + m[1] * 0.5), first_y = fixed(m[5] + m[3] * 0.5 + m[4] * 0.5);
    uint32_t across = (uint32_t)picture->width, down = (uint32_t)picture->height;
    const uint8_t *from = picture->now;
    for (int k = 0; k < height; k++, first_x += down_x, first_y += down_y) {
        uint8_t *to = row_of(picture->spare, k, width);
        uint32_t x = first_x, y = first_y;
        for (int j = 0; j < width; j++, to += 4, x += right_x, y += right_y) {
            uint32_t column = (uint32_t)((int32_t)x >> 16), row = (uint32_t)((int32_t)y >> 16);
            const void *pixel = &fill;
            if (column < across && row < down) pixel = from + 4 * ((size_t)row * across + column);
            memcpy(to, pixel, 4);
        }
    }
}

static int fits_fixed(const double *m, int x, int y)
{
    return fabs(x * m[0] + y * m[1] + m[2]) < 32768.0 && fabs(x * m[3] + y * m[4] + m[5]) < 32768.0;
}

static void nearest_affine(const pixels_picture *picture, const double *m, int width, int height, uint32_t fill)
{
    if (m[1] == 0 && m[3] == 0)
        nearest_scale(picture, m, width, height, fill, picture->scratch);
    else if (fits_fixed(m, 0, 0) && fits_fixed(m, width, height) && fits_fixed(m, 0, height) && fits_fixed(m, width, 0))
        nearest_fixed(picture, m, width, height, fill);
    else
        nearest_double(picture, m, width, height, fill);
}

/* A move by whole pixels blends nothing. */
static int is_move(const double *m)
{
    return m[0] == 1 && m[1] == 0 && m[3] == 0 && m[4] == 1 && fabs(m[2]) < 65536 && fabs(m[5]) < 65536 &&
           m[2] == floor(m[2]) && m[5] == floor(m[5]);
}

typedef void transform_row(const pixels_source *, const double *, int, int, uint8_t *, int);

static void transform(pixels_picture *picture, int width, int height, const double *matrix, int interpolation,
                      uint32_t fill, transform_row *row)
{
    pixels_source source = {picture->now, picture->width, picture->height, fill};
    for (int y = 0; y < height; y++) row(&source, matrix, y, interpolation, row_of(picture->spare, y, width), width);
}

int pixels_affine(pixels_picture *picture, int width, int height, const double matrix[6], int interpolation,
                  uint32_t fill)
{
    if (is_move(matrix))
        return pixels_frame(picture, (int)matrix[2], (int)matrix[5], width, height, PAD_CONSTANT, fill);
    int status = pixels_make_room(picture, width, height);
    if (status == PIXELS_OK) status = pixels_make_scratch(picture, (size_t)width * sizeof(int));
    if (status != PIXELS_OK) return status;
    pixels_apply_pending(picture);
    if (interpolation == NEAREST)
        nearest_affine(picture, matrix, width, height, fill);
    else
        transform(picture, width, height, matrix, interpolation, fill, picture->path->affine_row);
    pixels_exchange(picture, width, height);
    return PIXELS_OK;
}

int pixels_perspective(pixels_picture *picture, int width, int height, const double matrix[8], int interpolation,
                       uint32_t fill)
{
    int status = pixels_make_room(picture, width, height);
    if (status != PIXELS_OK) return status;
    pixels_apply_pending(picture);
    transform(picture, width, height, matrix, interpolation, fill, picture->path->perspective_row);
    pixels_exchange(picture, width, height);
    return PIXELS_OK;
}
