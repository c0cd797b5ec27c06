/* Operations that are look-ups: brightness, contrast, autocontrast, equalize.  Their tables are combined, and applied
 * to the pixels later; pixels.pyx makes those of posterize, solarize and invert. */
#include "pixels.h"

#include <string.h>

static size_t size(const pixels_picture *picture) { return (size_t)picture->width * (size_t)picture->height; }

void pixels_look_up(pixels_picture *picture, const uint8_t tables[3][256])
{
    if (!picture->is_pending) {
        memcpy(picture->tables, tables, sizeof picture->tables);
        picture->is_pending = 1;
        return;
    }
    for (int c = 0; c < 3; c++)
        for (int v = 0; v < 256; v++) picture->tables[c][v] = tables[c][picture->tables[c][v]];
}

void pixels_look_up_all(pixels_picture *picture, const uint8_t table[256])
{
    uint8_t tables[3][256];
    for (int c = 0; c < 3; c++) memcpy(tables[c], table, 256);
    pixels_look_up(picture, (const uint8_t(*)[256])tables);
}

void pixels_apply_pending(pixels_picture *picture)
{
    if (picture->is_pending)
        picture->path->look_up(picture->now, size(picture), (const uint8_t(*)[256])picture->tables);
    picture->is_pending = 0;
}

/* Image.blend of one value and all bytes. */
static void blend_table(uint8_t table[256], int from, float factor)
{
    for (int v = 0; v < 256; v++) {
        float mixed = (float)from + factor * (float)(v - from);
        table[v] = (uint8_t)(mixed > 0.0f ? mixed < 255.0f ? (int)mixed : 255 : 0);
    }
}

void pixels_brightness(pixels_picture *picture, float factor)
{
    uint8_t table[256];
    blend_table(table, 0, factor);
    pixels_look_up_all(picture, table);
}

void pixels_contrast(pixels_picture *picture, float factor)
{
    uint8_t table[256];
    pixels_apply_pending(picture);
    double mean = (double)picture->path->sum_of_luma(picture->now, size(picture)) / (double)size(picture);
    blend_table(table, (int)(mean + 0.5), factor);
    pixels_look_up_all(picture, table);
}

typedef uint32_t histogram[3][256];

/* Counts each value of each channel, as the picture will be after its pending look-ups. */
static void count(const pixels_picture *picture, histogram counts)
{
    static const int PARTS = 4; /* separate counts, because equal pixels in a row would wait for the same counter */
    histogram parts[4];
    const uint8_t *at = picture->now;
    size_t n = size(picture), k = 0;
    memset(parts, 0, sizeof parts);
    for (; k + 4 <= n; k += 4)
        for (int part = 0; part < PARTS; part++, at += 4)
            parts[part][0][at[0]]++, parts[part][1][at[1]]++, parts[part][2][at[2]]++;
    for (; k < n; k++, at += 4) parts[0][0][at[0]]++, parts[0][1][at[1]]++, parts[0][2][at[2]]++;
    memset(counts, 0, sizeof(histogram));
    for (int c = 0; c < 3; c++)
        for (int v = 0; v < 256; v++)
            counts[c][picture->is_pending ? picture->tables[c][v] : v] +=
                parts[0][c][v] + parts[1][c][v] + parts[2][c][v] + parts[3][c][v];
}

/* ImageOps.autocontrast: the darkest value becomes 0 and the brightest 255. */
static void stretch_table(uint8_t table[256], const uint32_t counts[256])
{
    int low = 0, high = 255;
    while (low < 255 && !counts[low]) low++;
    while (high > 0 && !counts[high]) high--;
    double scale = high > low ? 255.0 / (high - low) : 1.0, offset = high > low ? -low * scale : 0.0;
    for (int v = 0; v < 256; v++) {
        int stretched = (int)(v * scale + offset);
        table[v] = (uint8_t)(stretched < 0 ? 0 : stretched > 255 ? 255 : stretched);
    }
}

/* ImageOps.equalize: about as many pixels between one value and the next everywhere. */
static void equal_table(uint8_t table[256], const uint32_t counts[256])
{
    uint64_t sum = 0, last = 0, kinds = 0;
    for (int v = 0; v < 256; v++)
        if (counts[v]) sum += counts[v], last = counts[v], kinds++;
    uint64_t step = kinds > 1 ? (sum - last) / 255 : 0, reached = step / 2;
    for (int v = 0; v < 256; v++) {
        uint64_t level = step ? reached / step : (uint64_t)v;
        table[v] = (uint8_t)(level > 255 ? 255 : level);
        reached += counts[v];
    }
}

static void from_counts(pixels_picture *picture, void (*make)(uint8_t table[256], const uint32_t counts[256]))
{
    histogram counts;
    uint8_t tables[3][256];
    count(picture, counts);
    for (int c = 0; c < 3; c++) make(tables[c], counts[c]);
    pixels_look_up(picture, (const uint8_t(*)[256])tables);
}

void pixels_autocontrast(pixels_picture *picture) { from_counts(picture, stretch_table); }
void pixels_equalize(pixels_picture *picture) { from_counts(picture, equal_table); }
