/* One box blur of Pillow's, down the picture: the sum of the rows around each row, in unsigned 32-bit fixed point with
 * 24 bits behind the point.  Rows beyond the picture are its first or last.
 *
 * STRIP bytes go down together, so that their sums stay in registers. */
#pragma once
#include "vectors.h"

enum { STRIP = 32 };

static inline int row_at(int64_t y, int height) { return (int)(y < 0 ? 0 : y < height ? y : height - 1); }

static inline void box_strip(const uint8_t *from, uint8_t *to, size_t stride, int height, int radius, uint32_t inside,
                             uint32_t edge)
{
    enum { PARTS = STRIP / 8 };
    words sums[PARTS];
    int rows = radius < height - 1 ? radius : height - 1;
    for (int part = 0; part < PARTS; part++) {
        sums[part] = load_bytes(from + 8 * part) * ((uint32_t)radius + 1);
        for (int y = 0; y < rows; y++) sums[part] += load_bytes(from + (size_t)y * stride + 8 * part);
        sums[part] += load_bytes(from + (size_t)(height - 1) * stride + 8 * part) * (uint32_t)(radius - rows);
    }
    for (int y = 0; y < height; y++) {
        const uint8_t *leaves = from + (size_t)row_at((int64_t)y - radius - 1, height) * stride;
        const uint8_t *enters = from + (size_t)row_at((int64_t)y + radius, height) * stride;
        const uint8_t *beyond = from + (size_t)row_at((int64_t)y + radius + 1, height) * stride;
        words blurred[PARTS];
        for (int part = 0; part < PARTS; part++) {
            words leaving = load_bytes(leaves + 8 * part);
            sums[part] += load_bytes(enters + 8 * part) - leaving;
            words both = leaving + load_bytes(beyond + 8 * part);
            blurred[part] = (sums[part] * inside + both * edge + (1u << 23)) >> 24;
        }
        for (int part = 0; part < PARTS; part += 2)
            store_bytes(to + (size_t)y * stride + 8 * part, blurred[part], blurred[part + 1]);
    }
}

/* The last strip may overlap the one before it.  A picture that is narrower than a strip goes down byte by byte. */
static void box_down(const uint8_t *from, uint8_t *to, int width, int height, int radius, uint32_t inside,
                     uint32_t edge)
{
    size_t stride = 4 * (size_t)width;
    if (stride < STRIP) {
        for (size_t k = 0; k < stride; k++) {
            int rows = radius < height - 1 ? radius : height - 1;
            uint32_t sum = from[k] * ((uint32_t)radius + 1);
            for (int y = 0; y < rows; y++) sum += from[(size_t)y * stride + k];
            sum += from[(size_t)(height - 1) * stride + k] * (uint32_t)(radius - rows);
            for (int y = 0; y < height; y++) {
                uint32_t leaving = from[(size_t)row_at((int64_t)y - radius - 1, height) * stride + k];
                sum += from[(size_t)row_at((int64_t)y + radius, height) * stride + k] - leaving;
                uint32_t both = leaving + from[(size_t)row_at((int64_t)y + radius + 1, height) * stride + k];
                to[(size_t)y * stride + k] = (uint8_t)((sum * inside + both * edge + (1u << 23)) >> 24);
            }
        }
        return;
    }
    for (size_t k = 0; k + STRIP <= stride; k += STRIP)
        box_strip(from + k, to + k, stride, height, radius, inside, edge);
    if (stride % STRIP)
        box_strip(from + stride - STRIP, to + stride - STRIP, stride, height, radius, inside, edge);
}
