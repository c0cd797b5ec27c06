/* A checksum of the bytes of a picture in a file, so that bytes that a disk lost are noticed.  It does not resist an
 * attacker.  Four chains of 64-bit products run side by side, so it costs little more than reading the bytes: an eighth
 * of zlib's crc32. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { DIGEST_LANES = 4, DIGEST_STRIPE = 16 * DIGEST_LANES };

__extension__ typedef unsigned __int128 digest_product;

/* Both halves of the product, so that each bit of either factor changes about all bits. */
static inline uint64_t digest_mixed(uint64_t one, uint64_t other)
{
    digest_product both = (digest_product)one * other;
    return (uint64_t)both ^ (uint64_t)(both >> 64);
}

static uint64_t digest(const uint8_t *data, size_t bytes)
{
    static const uint64_t odd[DIGEST_LANES] = {0x9e3779b97f4a7c15, 0xd6e8feb86659fd93, 0xbf58476d1ce4e5b9,
                                               0x94d049bb133111eb};
    uint64_t sums[DIGEST_LANES];
    for (int k = 0; k < DIGEST_LANES; k++) sums[k] = bytes ^ odd[k];
    for (size_t at = 0; at < bytes; at += DIGEST_STRIPE) {
        uint64_t words[2 * DIGEST_LANES];
        if (bytes - at >= sizeof words) {
            memcpy(words, data + at, sizeof words);
        } else {
            memset(words, 0, sizeof words);
            memcpy(words, data + at, bytes - at);
        }
        for (int k = 0; k < DIGEST_LANES; k++)
            sums[k] = digest_mixed(words[2 * k] ^ odd[k], words[2 * k + 1] ^ sums[k]);
    }
    uint64_t all = bytes;
    for (int k = 0; k < DIGEST_LANES; k++) all = digest_mixed(all ^ odd[k], sums[k] ^ odd[(k + 1) % DIGEST_LANES]);
    return all;
}
