/* turn.h with AVX2. */
#pragma once
#define HAS_TURN
#include "turn.h"

static inline void turn_block(const uint8_t *from, size_t pitch, uint8_t *to, size_t stride)
{
    __m256i a[8], b[8];
    for (int k = 0; k < 8; k++) a[k] = _mm256_loadu_si256((const __m256i *)(from + (size_t)k * pitch));
    for (int k = 0; k < 8; k += 2) {
        b[k] = _mm256_unpacklo_epi32(a[k], a[k + 1]);
        b[k + 1] = _mm256_unpackhi_epi32(a[k], a[k + 1]);
    }
    for (int k = 0; k < 8; k += 4)
        for (int half = 0; half < 2; half++) {
            a[k + 2 * half] = _mm256_unpacklo_epi64(b[k + half], b[k + 2 + half]);
            a[k + 2 * half + 1] = _mm256_unpackhi_epi64(b[k + half], b[k + 2 + half]);
        }
    for (int k = 0; k < 4; k++) {
        __m256i low = _mm256_permute2x128_si256(a[k], a[k + 4], 0x20), high = _mm256_permute2x128_si256(a[k], a[k + 4], 0x31);
        _mm256_storeu_si256((__m256i *)(to + (size_t)k * stride), low);
        _mm256_storeu_si256((__m256i *)(to + (size_t)(k + 4) * stride), high);
    }
}

static void turn(const uint8_t *from, uint8_t *to, int width, int height)
{
    size_t pitch = 4 * (size_t)width, stride = 4 * (size_t)height;
    for (int y = 0; y < height; y += 8)
        for (int x = 0; x < width; x += 8)
            if (x + 8 <= width && y + 8 <= height)
                turn_block(from + (size_t)y * pitch + 4 * (size_t)x, pitch, to + (size_t)x * stride + 4 * (size_t)y, stride);
            else
                turn_pixels(from, to, width, height, x, y, 8);
}
