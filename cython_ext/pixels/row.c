/* Writes pixels to a sample's row, and chooses how bytes become numbers: by calculation if the numbers lie side by
 * side, or by look-up.  Also overwrites boxes of a row. */
#include "pixels.h"

#include <string.h>

static void put(uint8_t *to, const void *tables, int item, size_t at)
{
    if (item == 4)
        memcpy(to, (const uint8_t *)tables + 4 * at, 4);
    else if (item == 2)
        memcpy(to, (const uint8_t *)tables + 2 * at, 2);
    else
        *to = ((const uint8_t *)tables)[at];
}

/* For items that are not side by side, or that have two bytes. */
static void write_row(const uint8_t *from, int n, const void *tables, int item, uint8_t *const to[3], int channels,
                      ptrdiff_t column)
{
    for (int x = 0; x < n; x++)
        for (int c = 0; c < channels; c++)
            put(to[c] + x * column, tables, item, (size_t)(256 * c + from[4 * (size_t)x + (size_t)c]));
}

/* From a row of pixels to numbers, by way of a row of bytes for each channel. */
static void calculate_row(const pixels_picture *picture, const uint8_t *from, const uint8_t bytes[3][256],
                          uint8_t *const planes[3], uint8_t *const to[3], const pixels_numbers plans[3])
{
    picture->path->split_bytes(from, picture->width, picture->is_pending ? bytes : NULL, planes, picture->channels);
    for (int c = 0; c < picture->channels; c++)
        pixels_calculate(&plans[c], planes[c], picture->width, (float *)(void *)to[c]);
}

int pixels_write(pixels_picture *picture, pixels_place place, const void *tables, int item,
                 const pixels_scale *scales)
{
    /* Pending look-ups are combined with the tables, so that there is one look-up and not two. */
    uint8_t bytes[3][256];
    uint32_t composed[3 * 256];
    for (int c = 0; c < picture->channels; c++)
        for (int v = 0; v < 256; v++) {
            size_t value = (size_t)(picture->is_pending ? picture->tables[c][v] : v);
            bytes[c][v] = (uint8_t)value;
            uint8_t *to = (uint8_t *)composed + (size_t)item * (size_t)(256 * c + v);
            if (tables) put(to, tables, item, 256 * (size_t)c + value);
        }
    if (tables && item == 1) memcpy(bytes, composed, sizeof bytes);
    uintptr_t odd = ((uintptr_t)place.to | (uintptr_t)place.row | (uintptr_t)place.channel) % 4;
    int is_in_words = item == 4 && place.column == 4 && !odd;
    uint8_t *planes[3] = {NULL, NULL, NULL};
    pixels_numbers plans[3];
    if (scales && is_in_words) {
        size_t row = (size_t)picture->width + BLOCK;
        int status = pixels_make_scratch(picture, 3 * row);
        if (status != PIXELS_OK) return status;
        for (int c = 0; c < 3; c++) planes[c] = (uint8_t *)picture->scratch + (size_t)c * row;
        for (int c = 0; c < picture->channels; c++) pixels_plan_numbers(&plans[c], picture->path, &scales[c]);
    }
    for (int y = 0; y < picture->height; y++) {
        const uint8_t *from = picture->now + 4 * (size_t)y * (size_t)picture->width;
        uint8_t *to[3] = {NULL, NULL, NULL};
        for (int c = 0; c < picture->channels; c++) to[c] = place.to + y * place.row + c * place.channel;
        if (item == 1 && place.column == 1)
            picture->path->split_bytes(from, picture->width, (const uint8_t(*)[256])bytes, to, picture->channels);
        else if (scales && is_in_words)
            calculate_row(picture, from, (const uint8_t(*)[256])bytes, planes, to, plans);
        else if (is_in_words)
            picture->path->split_words(from, picture->width, composed, (uint32_t *const *)(void *)to,
                                       picture->channels);
        else
            write_row(from, picture->width, item == 1 ? (const void *)bytes : composed, item, to, picture->channels,
                      place.column);
    }
    return PIXELS_OK;
}

void pixels_erase(pixels_place place, int channels, int width, int height, pixels_values from, int item)
{
    for (int c = 0; c < channels; c++)
        for (int y = 0; y < height; y++) {
            uint8_t *to = place.to + c * place.channel + y * place.row;
            const uint8_t *values = from.values + c * from.channel + y * from.row;
            for (int x = 0; x < width; x++) memcpy(to + x * place.column, values + x * from.column, (size_t)item);
        }
}
