/* Decodes the Huffman codes of a block to its coefficients, or skips them, and refuses a broken block.  Bounds how many
 * bytes are read beyond the end of the data (ENTROPY_MCU).
 *
 * Source: ITU-T T.81, F.2.2; the reader's branch-free refill is Fabian Giesen's "variant 4" ("Reading bits in far too
 * many ways", 2018).
 *
 * NOTE [ Chain ]
 * The speed of this code is limited by the chain from one symbol's length to the next symbol's place: look up, shift,
 * look up.
 *   - One look-up gives one number: the length of the code plus that of its extra bits.  A coefficient's value is
 *     computed beside the chain.
 *   - One look-up often finds two symbols.  For the second one the table has not only the length, but also the value of
 *     the coefficient.  If the first one is the block's last coefficient, the bits of the second one belong to the next
 *     block, and the reader goes back before them.
 *   - The next look-up begins right after the shift, before the refill, and before the test whether the block
 *     continues.  If the block has ended, the look-up has cost nothing.
 *     Such a look-up needs 10 bits, and they are always there.  After a refill, the 64 bits are the next 64 of the
 *     file, and at most two symbols are taken before the next refill.  With its extra bits, a DC symbol takes at most
 *     16 + 11 bits, and an AC symbol 16 + 10.  So at least 11 (64 less 27 and 26) bits are left.
 *     The table has no entry for a code of more than 10 bits.  For such a code read_block() does a second look-up,
 *     which needs 16 bits.  If two symbols were taken since the last refill, read_block() refills the reader before
 *     this second look-up.  If only one was taken, no refill is needed, because at least 37 (64 less 27) bits are left.
 *     Looking up this early saved a tenth of the time of a picture.
 *
 * Bounds: nothing checks before a read whether there is more.  A reader reads from a copy of the scan, and
 * ENTROPY_MCU bytes follow this copy: no MCU reads farther than that.  The caller checks after each MCU whether the
 * end was passed. */
#pragma once
#include "../resize/path.h"
#include <stdint.h>
#include <string.h>

#include "huffman.h"

/* The most bytes that the refills of one MCU read: 10 blocks of a DC symbol (16 + 11 bits) and 63 AC symbols (16 + 10);
 * up to 7 bits of a mark before these; up to 63 bits that were already read; and the 8 bytes of a refill. */
enum { ENTROPY_MCU = (10 * (27 + 63 * 26) + 7 + 63 + 7) / 8 + 8 };

typedef struct {
    uint64_t bits;          /* the next ones, from the top */
    uint32_t valid;         /* how many of them count, in its lower 6 bits */
    const uint8_t *at;      /* the next refill reads here */
} bit_reader;


ALWAYS_INLINE uint64_t big_endian(const uint8_t *at)
{
    uint64_t word;
    memcpy(&word, at, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* Afterwards all 64 bits are right, but only 56 to 63 are counted, and the same bits come again. */
ALWAYS_INLINE void refill(bit_reader *r)
{
    r->bits |= big_endian(r->at) >> (r->valid & 63);
    r->at += ~r->valid >> 3 & 7;
    r->valid = (r->valid & 7) | 56;
}

ALWAYS_INLINE void drop(bit_reader *r, uint32_t entry)
{
    r->bits <<= entry & 63;
    r->valid -= entry; /* its upper bits do not count */
}

/* The number of bits dropped so far, counted from `start`. */
ALWAYS_INLINE int64_t bits_read(const bit_reader *r, const uint8_t *start)
{
    return (int64_t)(r->at - start) * 8 - (r->valid & 63);
}

/* The next symbol if its code is short; otherwise 0. */
ALWAYS_INLINE uint32_t peek(const bit_reader *r, const huffman_table *table)
{
    return table->peek[r->bits >> (64 - HUFFMAN_PEEK)];
}

/* The symbol that `peek` gave, or the one for which `peek` had too few bits. */
ALWAYS_INLINE uint32_t in_full(uint32_t entry, const bit_reader *r, const huffman_table *table)
{
    return __builtin_expect(!entry, 0) ? huffman_long(table, r->bits) : entry;
}

ALWAYS_INLINE uint32_t symbol(const bit_reader *r, const huffman_table *table)
{
    return in_full(peek(r, table), r, table);
}

/* The value of the extra bits after a code (T.81, table F.1): the bits themselves, if the first of them is 1; otherwise
 * the negated difference to all ones.  Without extra bits: 0. */
ALWAYS_INLINE int32_t extend(uint64_t bits, uint32_t entry)
{
    int64_t rest = (int64_t)(bits << huffman_code(entry));
    int64_t negative = ~(rest >> 63);
    int64_t size = (int64_t)((uint64_t)(rest ^ negative) >> 1 >> (63 - huffman_extra(entry)));
    return (int32_t)((size ^ negative) - negative);
}

/* The position in a block after an advance; beyond 63 it is a place that nobody reads. */
enum { BLOCK_DUMP = 64, BLOCK_SPACE = 80, BLOCK_POSITIONS = 64 + 256 };

/* Whether a block that ended at this position was complete. */
ALWAYS_INLINE int is_whole(int position)
{
    return position == 64 || (unsigned)(position - HUFFMAN_END) < 64;
}

ALWAYS_INLINE int read_dc(bit_reader *r, const huffman_table *dc, uint32_t *predicted)
{
    uint32_t entry = symbol(r, dc);
    *predicted += (uint32_t)extend(r->bits, entry);
    drop(r, entry);
    return huffman_advance(entry) == 1;
}

/* Takes a symbol and its coefficient, and returns what `peek` gives for the next one.  The order of the lines matters:
 * see NOTE [ Chain ]. */
ALWAYS_INLINE uint32_t take(bit_reader *r, uint32_t entry, const huffman_table *ac, int is_refilling,
                            const uint8_t *order, int16_t *coefficients, size_t *position)
{
    uint64_t bits = r->bits;
    drop(r, entry);
    uint32_t next = peek(r, ac);
    if (is_refilling) refill(r);
    size_t first = *position + (size_t)huffman_advance(entry);
    *position = first + (size_t)huffman_second(entry);
    /* Without a second symbol, this is a 0 in the first one's place, which is written after it. */
    coefficients[order[*position]] = (int16_t)huffman_second_value(entry);
    coefficients[order[first]] = (int16_t)extend(bits, entry);
    return next;
}

/* Takes back the last `bits` bits: at most HUFFMAN_PEEK. */
static __attribute__((noinline)) void take_back(bit_reader *r, int bits)
{
    uint32_t back = (r->valid & 63) + (uint32_t)bits, bytes = (back + 7) >> 3;
    *r = (bit_reader){.at = r->at - bytes};
    refill(r);
    drop(r, bytes * 8 - back);
}

/* Decodes a block into coefficients that are 0 before.  `order` has the place of each: BLOCK_POSITIONS entries.
 * Returns -1 if the block is broken, 0 if it has only DC, and otherwise 1. */
ALWAYS_INLINE int read_block(bit_reader *reader, const huffman_table *dc, const huffman_table *ac, uint32_t *predicted,
                             const uint8_t *order, int16_t *coefficients)
{
    bit_reader r = *reader;
    refill(&r);
    int is_good = read_dc(&r, dc, predicted);
    size_t position = 1;
    coefficients[0] = (int16_t)*predicted;
    uint32_t next = symbol(&r, ac);
    if (huffman_advance(next) == HUFFMAN_END) {
        drop(&r, next);
        *reader = r;
        return is_good ? 0 : -1;
    }
    uint32_t entry;
    for (;;) {
        entry = next;
        next = take(&r, entry, ac, 1, order, coefficients, &position);
        if (position > 63) break;
        entry = in_full(next, &r, ac);
        next = take(&r, entry, ac, 0, order, coefficients, &position);
        if (position > 63) break;
        next = in_full(next, &r, ac);
    }
    /* The first of two symbols was the block's last coefficient, so the second one is the next block's. */
    if (__builtin_expect(huffman_second(entry) && position - (size_t)huffman_second(entry) == 64, 0)) {
        bit_reader back = r; /* a copy, so that `r` stays in registers */
        take_back(&back, huffman_bits(entry) - huffman_code(entry) - huffman_extra(entry));
        r = back;
        position = 64;
    }
    *reader = r;
    return is_good && is_whole((int)position) ? 1 : -1;
}

ALWAYS_INLINE uint32_t peek_leap(const bit_reader *r, const huffman_table *ac)
{
    return ac->leap[r->bits >> (64 - HUFFMAN_LEAP)];
}

/* Reads past a block and keeps only its DC; returns 0 if the block is broken. */
ALWAYS_INLINE int skip_block(bit_reader *reader, const huffman_table *dc, const huffman_table *ac, uint32_t *predicted)
{
    bit_reader r = *reader;
    int position = 1, has_ended = 0;
    refill(&r);
    int is_good = read_dc(&r, dc, predicted);
    for (uint32_t next = peek_leap(&r, ac); !has_ended;) {
        uint32_t entry = next;
        int after = position + huffman_advance(entry);
        /* Near the block's end, where several symbols might pass it, take one at a time. */
        if (__builtin_expect(entry == 0 || after > 63, 0)) {
            entry = huffman_alone(symbol(&r, ac));
            after = position + huffman_advance(entry);
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
