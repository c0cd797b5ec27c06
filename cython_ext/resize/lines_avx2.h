/* lines.h with AVX2: sums of two lines in one multiplication, 32 samples at a time, where weights of 22 bits take two;
 * squares of 16 by 16 bytes, two at a time; 32 pixels at a time. */
#pragma once
#include "lines.h"

ALWAYS_INLINE __m256i broadcast(const int16_t pair[2])
{
    int32_t both;
    memcpy(&both, pair, sizeof both);
    return _mm256_set1_epi32(both);
}

/* Samples k to k + 31 of two lines as pairs of words: 0-3 | 16-19, 4-7 | 20-23, 8-11 | 24-27, 12-15 | 28-31. */
ALWAYS_INLINE void pair_up(const uint8_t *first, const uint8_t *second, int k, __m256i pairs[4])
{
    const __m256i zero = _mm256_setzero_si256();
    __m256i a = _mm256_loadu_si256((const __m256i *)(first + k)), b = _mm256_loadu_si256((const __m256i *)(second + k));
    __m256i low = _mm256_unpacklo_epi8(a, b), high = _mm256_unpackhi_epi8(a, b);
    pairs[0] = _mm256_unpacklo_epi8(low, zero);
    pairs[1] = _mm256_unpackhi_epi8(low, zero);
    pairs[2] = _mm256_unpacklo_epi8(high, zero);
    pairs[3] = _mm256_unpackhi_epi8(high, zero);
}

/* If `taps` is small, it is a constant, so that the compiler unrolls the loop. */
ALWAYS_INLINE void blend_exact(const uint8_t *const *lines, const resize_weight *weights, int taps, uint8_t *to, int n)
{
    for (int k = 0; k < n; k += 32) {
        __m256i high[4], low[4], pairs[4];
        for (int part = 0; part < 4; part++) {
            high[part] = _mm256_setzero_si256();
            low[part] = _mm256_set1_epi32(1 << (BLEND_BITS - 1));
        }
        for (int tap = 0; tap < taps; tap += 2) {
            const resize_weight *w = &weights[tap / 2];
            pair_up(lines[tap], lines[tap + 1], k, pairs);
            for (int part = 0; part < 4; part++) {
                high[part] = _mm256_add_epi32(high[part], _mm256_madd_epi16(pairs[part], broadcast(w->high)));
                low[part] = _mm256_add_epi32(low[part], _mm256_madd_epi16(pairs[part], broadcast(w->low)));
            }
        }
        for (int part = 0; part < 4; part++)
            low[part] = _mm256_srai_epi32(_mm256_add_epi32(_mm256_slli_epi32(high[part], BLEND_LOW), low[part]), BLEND_BITS);
        __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(low[0], low[1]), _mm256_packs_epi32(low[2], low[3]));
        _mm256_storeu_si256((__m256i *)(to + k), bytes);
    }
}

static inline void blend_avx2(const uint8_t *const *lines, const resize_weight *weights, int taps, uint8_t *to, int n)
{
    switch (taps) {
    case 2: blend_exact(lines, weights, 2, to, n); break;
    case 4: blend_exact(lines, weights, 4, to, n); break;
    case 6: blend_exact(lines, weights, 6, to, n); break;
    case 8: blend_exact(lines, weights, 8, to, n); break;
    default: blend_exact(lines, weights, taps, to, n);
    }
}

static inline void turn_avx2(const uint8_t *lines, size_t pitch, uint8_t *to, size_t stride, int n)
{
    for (int k = 0; k < n; k += 32) {
        __m256i a[TURN], b[TURN];
        for (int line = 0; line < TURN; line++)
            a[line] = _mm256_loadu_si256((const __m256i *)(lines + (size_t)line * pitch + (size_t)k));
        /* Each round puts the lines of the upper half between those of the lower; after four, rows are columns. */
        for (int round = 0; round < 2; round++) {
            for (int line = 0; line < TURN / 2; line++) {
                b[2 * line] = _mm256_unpacklo_epi8(a[line], a[line + TURN / 2]);
                b[2 * line + 1] = _mm256_unpackhi_epi8(a[line], a[line + TURN / 2]);
            }
            for (int line = 0; line < TURN / 2; line++) {
                a[2 * line] = _mm256_unpacklo_epi8(b[line], b[line + TURN / 2]);
                a[2 * line + 1] = _mm256_unpackhi_epi8(b[line], b[line + TURN / 2]);
            }
        }
        for (int row = 0; row < TURN; row++) {
            uint8_t *at = to + (size_t)(k + row) * stride;
            _mm_storeu_si128((__m128i *)at, _mm256_castsi256_si128(a[row]));
            _mm_storeu_si128((__m128i *)(at + TURN * stride), _mm256_extracti128_si256(a[row], 1));
        }
    }
}

ALWAYS_INLINE void put_eight(uint8_t *to, __m256i pixels)
{
    const __m256i fourth = _mm256_set1_epi32((int)0xff000000u);
    __m256i old = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)to), fourth);
    _mm256_storeu_si256((__m256i *)to, _mm256_or_si256(old, pixels));
}

static inline void interleave_avx2(const uint8_t *const rgb[3], uint8_t *to, int n)
{
    const __m256i zero = _mm256_setzero_si256();
    int k = 0;
    for (; k + 32 <= n; k += 32) {
        __m256i bytes[3];
        for (int c = 0; c < 3; c++) bytes[c] = _mm256_loadu_si256((const __m256i *)(rgb[c] + k));
        /* The low halves of the two lanes hold pixels 0 to 7 and 16 to 23, the high halves those behind each. */
        for (int half = 0; half < 2; half++) {
            __m256i rg = half ? _mm256_unpackhi_epi8(bytes[0], bytes[1]) : _mm256_unpacklo_epi8(bytes[0], bytes[1]);
            __m256i b = half ? _mm256_unpackhi_epi8(bytes[2], zero) : _mm256_unpacklo_epi8(bytes[2], zero);
            __m256i low = _mm256_unpacklo_epi16(rg, b), high = _mm256_unpackhi_epi16(rg, b);
            put_eight(to + 4 * (k + 8 * half), _mm256_permute2x128_si256(low, high, 0x20));
            put_eight(to + 4 * (k + 8 * half + 16), _mm256_permute2x128_si256(low, high, 0x31));
        }
    }
    interleave_from(k, rgb, to, n);
}

static inline void split_avx2(const uint8_t *from, uint8_t *const rgb[3], int n)
{
    const __m256i by_channel = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15,
                                                0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (int k = 0; k < n; k += 32) {
        __m256i fours[4]; /* in each half four bytes of each channel; a fourth of the vectors' pixels is in each */
        for (int part = 0; part < 4; part++)
            fours[part] = _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)(from + 4 * k + 32 * part)), by_channel);
        __m256i a = _mm256_unpacklo_epi32(fours[0], fours[1]), b = _mm256_unpacklo_epi32(fours[2], fours[3]);
        __m256i c = _mm256_unpackhi_epi32(fours[0], fours[1]), d = _mm256_unpackhi_epi32(fours[2], fours[3]);
        __m256i channels[3] = {_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b), _mm256_unpacklo_epi64(c, d)};
        for (int channel = 0; channel < 3; channel++)
            _mm256_storeu_si256((__m256i *)(rgb[channel] + k), _mm256_permutevar8x32_epi32(channels[channel], in_order));
    }
}
