/* A sum over the bytes of a picture in a file: a disk that lost some of them must not go unnoticed.  It is no match for
 * an enemy.  Eight sums of products of 32 bits run side by side, as every vector unit has them, so a byte takes less time
 * than it takes to come from memory (zlib's crc32 takes ten times as long). */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { DIGEST_LANES = 8, DIGEST_STRIPE = 64, DIGEST_ROUND = 16 };

static inline uint64_t digest_mixed(uint64_t value)
{
    value = (value ^ value >> 32) * 0xd6e8feb86659fd93ULL;
    value = (value ^ value >> 29) * 0xd6e8feb86659fd93ULL;
    return value ^ value >> 32;
}

static uint64_t digest(const uint8_t *data, size_t bytes)
{
    uint64_t sums[DIGEST_LANES], keys[DIGEST_LANES];
    for (int k = 0; k < DIGEST_LANES; k++) {
        sums[k] = digest_mixed(bytes + (uint64_t)k);
        keys[k] = digest_mixed((uint64_t)k + 0x9e3779b97f4a7c15ULL);
    }
    for (size_t at = 0, stripes = 0; at < bytes; at += DIGEST_STRIPE, stripes++) {
        uint64_t words[DIGEST_LANES] = {0};
        memcpy(words, data + at, bytes - at < DIGEST_STRIPE ? bytes - at : DIGEST_STRIPE);
        for (int k = 0; k < DIGEST_LANES; k++) {
            uint64_t keyed = words[k] ^ keys[k];
            /* the word itself too: a half that is 0 with its key would hide the other half */
            sums[k] += (keyed & 0xffffffff) * (keyed >> 32) + (words[k] << 32 | words[k] >> 32);
        }
        if (stripes % DIGEST_ROUND == DIGEST_ROUND - 1) /* else two stripes that changed places would not be seen */
            for (int k = 0; k < DIGEST_LANES; k++) sums[k] = (sums[k] ^ sums[k] >> 47 ^ keys[k]) * 0x9e3779b1;
        for (int k = 0; k < DIGEST_LANES; k++) keys[k] += 0x9e3779b97f4a7c15ULL; /* of each place another one */
    }
    uint64_t all = bytes;
    for (int k = 0; k < DIGEST_LANES; k++) all = digest_mixed(all ^ sums[k]) + keys[k];
    return digest_mixed(all);
}
