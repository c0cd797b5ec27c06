/* Blocks out of bits.
 * Source: ITU-T T.81, F.2.2; the reader's branch-free refill is Fabian Giesen's "variant 4" ("Reading bits in far too
 * many ways", 2018).
 *
 * NOTE [ Chain ]
 * What limits this code is the chain from one symbol's length to where the next begins: look up, shift, look up.
 *   - A look-up gives the length of code and extra bits together, and a coefficient's value is made beside the chain.
 *   - The next look-up begins as soon as the shift is done: before it is known whether the block goes on, for it costs
 *     nothing where it does not, and before the refill.  That leaves 64 right bits, of which a DC symbol and one of AC,
 *     or two of AC, take 53 at most, and a look-up needs 10.  Longer codes are looked up later, with 37 bits or more.
 *     This took a tenth off the time of a picture.
 *
 * Bounds: a reader is never asked whether there is more.  It reads from a copy of the scan with ENTROPY_MCU bytes
 * behind it, as far as the largest MCU can lead it, and whoever calls asks after each MCU whether the end was passed. */
#pragma once
#include <stdint.h>
#include <string.h>

#include "huffman.h"

/* How far from where a reader is, at most, the refills of an MCU read: 10 blocks of a DC symbol (16 + 11 bits) and 63 AC
 * symbols (16 + 10), of a mark up to 7 bits before these, up to 63 bits that are there already, and the 8 bytes of a
 * refill. */
enum { ENTROPY_MCU = (10 * (27 + 63 * 26) + 7 + 63 + 7) / 8 + 8 };

typedef struct {
    uint64_t bits;          /* the next ones, from the top */
    uint32_t valid;         /* how many of them count */
    const uint8_t *at;      /* what the next refill reads */
} bit_reader;

#define ALWAYS_INLINE static inline __attribute__((always_inline))

ALWAYS_INLINE uint64_t big_endian(const uint8_t *at)
{
    uint64_t word;
    memcpy(&word, at, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* Afterwards all 64 bits are right, though only 56 to 63 are counted: the same bits come again. */
ALWAYS_INLINE void refill(bit_reader *r)
{
    r->bits |= big_endian(r->at) >> r->valid;
    r->at += (63 - r->valid) >> 3;
    r->valid |= 56;
}

ALWAYS_INLINE void drop(bit_reader *r, uint32_t entry)
{
    r->bits <<= entry & 63;
    r->valid -= entry & 63;
}

/* The bits that were dropped so far, counted from `start`. */
ALWAYS_INLINE int64_t bits_read(const bit_reader *r, const uint8_t *start)
{
    return (int64_t)(r->at - start) * 8 - r->valid;
}

/* The next symbol, where its code is short; else 0. */
ALWAYS_INLINE uint32_t peek(const bit_reader *r, const huffman_table *table)
{
    return table->peek[r->bits >> (64 - HUFFMAN_PEEK)];
}

/* What `peek` gave, or the symbol for which it had too few bits. */
ALWAYS_INLINE uint32_t in_full(uint32_t entry, const bit_reader *r, const huffman_table *table)
{
    return __builtin_expect(!entry, 0) ? huffman_long(table, r->bits) : entry;
}

ALWAYS_INLINE uint32_t symbol(const bit_reader *r, const huffman_table *table)
{
    return in_full(peek(r, table), r, table);
}

/* The value of the extra bits after a code (T.81, table F.1): the bits, if the first of them is 1; otherwise what they
 * lack to all ones, negated.  Not one extra bit: 0. */
ALWAYS_INLINE int32_t extend(uint64_t bits, uint32_t entry)
{
    int64_t rest = (int64_t)(bits << (entry >> 16 & 63));
    int64_t negative = ~(rest >> 63);
    int64_t size = (int64_t)((uint64_t)(rest ^ negative) >> 1 >> (63 - (entry >> 24)));
    return (int32_t)((size ^ negative) - negative);
}

/* Where a position after an advance leads in a block: beyond 63, to a place that nobody reads. */
enum { BLOCK_DUMP = 64, BLOCK_SPACE = 80, BLOCK_POSITIONS = 64 + 255 };

/* Whether a block that ended behind this position was whole. */
ALWAYS_INLINE int is_whole(int position)
{
    return position == 64 || (unsigned)(position - HUFFMAN_END) < 64;
}

ALWAYS_INLINE int read_dc(bit_reader *r, const huffman_table *dc, uint32_t *predicted)
{
    uint32_t entry = symbol(r, dc);
    *predicted += (uint32_t)extend(r->bits, entry);
    drop(r, entry);
    return (entry >> 8 & 255) == 1;
}

/* Takes a symbol and its coefficient, and gives what `peek` says of the next one.  The order of the lines matters: see
 * NOTE [ Chain ]. */
ALWAYS_INLINE uint32_t take(bit_reader *r, uint32_t entry, const huffman_table *ac, int is_refilling,
                            const uint8_t *order, int16_t *coefficients, int *position)
{
    uint64_t bits = r->bits;
    drop(r, entry);
    uint32_t next = peek(r, ac);
    if (is_refilling) refill(r);
    *position += entry >> 8 & 255;
    coefficients[order[*position - 1]] = (int16_t)extend(bits, entry);
    return next;
}

/* Decodes a block into coefficients that are 0 before.  `order` says where each goes: BLOCK_POSITIONS entries.  Returns
 * -1 where it is broken, 0 where it is DC alone, else 1. */
ALWAYS_INLINE int read_block(bit_reader *reader, const huffman_table *dc, const huffman_table *ac, uint32_t *predicted,
                             const uint8_t *order, int16_t *coefficients)
{
    bit_reader r = *reader;
    refill(&r);
    int is_good = read_dc(&r, dc, predicted), position = 1;
    coefficients[0] = (int16_t)*predicted;
    uint32_t next = symbol(&r, ac);
    if ((next >> 8 & 255) == HUFFMAN_END) {
        drop(&r, next);
        *reader = r;
        return is_good ? 0 : -1;
    }
    for (;;) {
        next = take(&r, next, ac, 1, order, coefficients, &position);
        if (position > 63) break;
        next = take(&r, in_full(next, &r, ac), ac, 0, order, coefficients, &position);
        if (position > 63) break;
        next = in_full(next, &r, ac);
    }
    *reader = r;
    return is_good && is_whole(position) ? 1 : -1;
}

ALWAYS_INLINE uint32_t peek_leap(const bit_reader *r, const huffman_table *ac)
{
    return ac->leap[r->bits >> (64 - HUFFMAN_LEAP)];
}

/* Reads past a block and keeps its DC alone; 0 where it is broken. */
ALWAYS_INLINE int skip_block(bit_reader *reader, const huffman_table *dc, const huffman_table *ac, uint32_t *predicted)
{
    bit_reader r = *reader;
    int position = 1, has_ended = 0;
    refill(&r);
    int is_good = read_dc(&r, dc, predicted);
    for (uint32_t next = peek_leap(&r, ac); !has_ended;) {
        uint32_t entry = next;
        int after = position + (int)(entry >> 8 & 255);
        /* Where several symbols might lead beyond the block's end, which needs no code of its own, one at a time. */
        if (__builtin_expect(entry == 0 || after > 63, 0)) {
            entry = symbol(&r, ac);
            after = position + (int)(entry >> 8 & 255);
        }
        drop(&r, entry);
        next = peek_leap(&r, ac);
        refill(&r);
        position = entry & HUFFMAN_LEAP_ENDS ? HUFFMAN_END : after;
        has_ended = position > 63;
    }
    *reader = r;
    return is_good && is_whole(position);
}
