/* look_up.h and planes.h with NEON: one instruction looks up one of 64 entries, and leaves a byte beyond these
 * as it is. */
#pragma once
#define HAS_LOOK_UP
#define HAS_PLANES
#include <arm_neon.h>

#include "look_up.h"
#include "planes.h"

static inline uint8x16_t looked_up(const uint8_t table[256], uint8x16_t bytes)
{
    uint8x16_t entries = vqtbl4q_u8(vld1q_u8_x4(table), bytes);
    for (int part = 1; part < 4; part++) {
        uint8x16_t beyond = vsubq_u8(bytes, vdupq_n_u8((uint8_t)(64 * part)));
        entries = vqtbx4q_u8(entries, vld1q_u8_x4(table + 64 * part), beyond);
    }
    return entries;
}

static void look_up(uint8_t *at, size_t n, const uint8_t tables[3][256])
{
    for (size_t k = 0; k < n; k += 16) {
        uint8x16x4_t pixels = vld4q_u8(at + 4 * k);
        for (int c = 0; c < 3; c++) pixels.val[c] = looked_up(tables[c], pixels.val[c]);
        vst4q_u8(at + 4 * k, pixels);
    }
}

static void split_bytes(const uint8_t *from, int n, const uint8_t tables[3][256], uint8_t *const to[3], int channels)
{
    int k = 0;
    for (; k + 16 <= n; k += 16) {
        uint8x16x4_t pixels = vld4q_u8(from + 4 * k);
        for (int c = 0; c < channels; c++)
            vst1q_u8(to[c] + k, tables ? looked_up(tables[c], pixels.val[c]) : pixels.val[c]);
    }
    for (int c = 0; c < channels; c++)
        for (int j = k; j < n; j++) to[c][j] = tables ? tables[c][from[4 * j + c]] : from[4 * j + c];
}
