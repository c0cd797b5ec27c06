/* look_up.h and planes.h with AVX2: 32 pixels at a time, their channels apart.
 *
 * A shuffle looks up one of 16 entries by a byte's low four bits, and gives 0 where the byte is negative.  Bytes under
 * 128 go down by 16 from one shuffle to the next, and stay negative once they are.  So shuffle k gives 0 unless the
 * byte was 16 * k or more.  Its entries are the exclusive or of the table's 16 from 16 * k on and the 16 before
 * those.  The exclusive or of all shuffles is then the entry itself.  Bytes from 128 on go the same way with their high
 * bit off. */
#pragma once
#define HAS_LOOK_UP
#define HAS_PLANES
#include "vectors_avx2.h"
#include "look_up.h"
#include "planes.h"

typedef struct {
    __m128i differences[16];
} shuffles;

static inline void prepare(shuffles *s, const uint8_t table[256])
{
    for (int k = 0; k < 16; k++) {
        __m128i these = _mm_loadu_si128((const __m128i *)(table + 16 * k));
        __m128i before = k % 8 ? _mm_loadu_si128((const __m128i *)(table + 16 * (k - 1))) : _mm_setzero_si128();
        s->differences[k] = _mm_xor_si128(these, before);
    }
}

static inline __m256i looked_up(const shuffles *s, __m256i bytes)
{
    const __m256i sixteen = _mm256_set1_epi8(16);
    __m256i low = bytes, high = _mm256_xor_si256(bytes, _mm256_set1_epi8(-128));
    __m256i entry = _mm256_setzero_si256(), entry_high = _mm256_setzero_si256();
    for (int k = 0; k < 8; k++) {
        __m256i first = _mm256_broadcastsi128_si256(s->differences[k]);
        __m256i second = _mm256_broadcastsi128_si256(s->differences[8 + k]);
        entry = _mm256_xor_si256(entry, _mm256_shuffle_epi8(first, low));
        entry_high = _mm256_xor_si256(entry_high, _mm256_shuffle_epi8(second, high));
        low = _mm256_subs_epi8(low, sixteen);
        high = _mm256_subs_epi8(high, sixteen);
    }
    return _mm256_xor_si256(entry, entry_high);
}

/* The channels of 32 pixels, each in order. */
static inline void apart(const uint8_t *at, __m256i channels[4])
{
    const __m256i by_channel = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i p[4];
    for (int k = 0; k < 4; k++) {
        p[k] = _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)(at + 32 * k)), by_channel);
        p[k] = _mm256_permutevar8x32_epi32(p[k], in_order); /* 8 bytes of each channel */
    }
    __m256i a = _mm256_unpacklo_epi64(p[0], p[1]), b = _mm256_unpackhi_epi64(p[0], p[1]);
    __m256i c = _mm256_unpacklo_epi64(p[2], p[3]), d = _mm256_unpackhi_epi64(p[2], p[3]);
    channels[0] = _mm256_permute2x128_si256(a, c, 0x20), channels[2] = _mm256_permute2x128_si256(a, c, 0x31);
    channels[1] = _mm256_permute2x128_si256(b, d, 0x20), channels[3] = _mm256_permute2x128_si256(b, d, 0x31);
}

static inline void together(uint8_t *at, const __m256i channels[3])
{
    __m256i zero = _mm256_setzero_si256();
    __m256i rg[2] = {_mm256_unpacklo_epi8(channels[0], channels[1]), _mm256_unpackhi_epi8(channels[0], channels[1])};
    __m256i b[2] = {_mm256_unpacklo_epi8(channels[2], zero), _mm256_unpackhi_epi8(channels[2], zero)};
    __m256i p[4]; /* pixels 0-3 and 16-19, 4-7 and 20-23, and so on */
    for (int k = 0; k < 2; k++) {
        p[2 * k] = _mm256_unpacklo_epi16(rg[k], b[k]);
        p[2 * k + 1] = _mm256_unpackhi_epi16(rg[k], b[k]);
    }
    for (int k = 0; k < 2; k++) {
        __m256i first = _mm256_permute2x128_si256(p[2 * k], p[2 * k + 1], 0x20);
        __m256i second = _mm256_permute2x128_si256(p[2 * k], p[2 * k + 1], 0x31);
        _mm256_storeu_si256((__m256i *)(at + 32 * k), first);
        _mm256_storeu_si256((__m256i *)(at + 64 + 32 * k), second);
    }
}

static void look_up(uint8_t *at, size_t n, const uint8_t tables[3][256])
{
    shuffles s[3];
    for (int c = 0; c < 3; c++) prepare(&s[c], tables[c]);
    for (size_t k = 0; k < n; k += 32) {
        __m256i channels[4];
        apart(at + 4 * k, channels);
        for (int c = 0; c < 3; c++) channels[c] = looked_up(&s[c], channels[c]);
        together(at + 4 * k, channels);
    }
}

static void split_bytes(const uint8_t *from, int n, const uint8_t tables[3][256], uint8_t *const to[3], int channels)
{
    shuffles s[3];
    int k = 0;
    for (int c = 0; tables && c < channels; c++) prepare(&s[c], tables[c]);
    for (; k + 32 <= n; k += 32) {
        __m256i parts[4];
        apart(from + 4 * k, parts);
        for (int c = 0; c < channels; c++)
            _mm256_storeu_si256((__m256i *)(to[c] + k), tables ? looked_up(&s[c], parts[c]) : parts[c]);
    }
    for (int c = 0; c < channels; c++)
        for (int j = k; j < n; j++) to[c][j] = tables ? tables[c][from[4 * j + c]] : from[4 * j + c];
}
