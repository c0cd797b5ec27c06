/* Huffman tables, in the shape that decodes fastest: one look-up of 10 bits for most codes (HUFFMAN_PEEK), and one for
 * several symbols of a block that is skipped (HUFFMAN_LEAP).
 *
 * Source: ITU-T T.81, annex C (how codes follow from the counts, and that none is all ones), F.2.2 (decoding). */
#pragma once
#include <stdint.h>

/* The entry that the next HUFFMAN_PEEK bits look up: a symbol, which is a code and the extra bits after it.  If these
 * bits hold a second AC symbol with all its extra bits, it is in the entry, too, with its coefficient.
 *   bits 0-5    how many bits all of it takes
 *   bits 6-10   how many bits the first code takes
 *   bits 11-14  how many extra bits the first code has
 *   bits 15-22  by how much the first symbol advances the position in the block: one more than the run of zeros
 *   bits 23-26  by how much the second one advances it; 0: there is no second one
 *   bits 27-31  the second one's coefficient
 * 0: the code is longer than HUFFMAN_PEEK bits, and the caller asks huffman_long. */
enum { HUFFMAN_PEEK = 10 };

static inline int huffman_bits(uint32_t entry) { return (int)(entry & 63); }
static inline int huffman_code(uint32_t entry) { return (int)(entry >> 6 & 31); }
static inline int huffman_extra(uint32_t entry) { return (int)(entry >> 11 & 15); }
static inline int huffman_advance(uint32_t entry) { return (int)(entry >> 15 & 255); }
static inline int huffman_second(uint32_t entry) { return (int)(entry >> 23 & 15); }
static inline int huffman_second_value(uint32_t entry) { return (int32_t)entry >> 27; }

/* An entry with its first symbol only. */
static inline uint32_t huffman_alone(uint32_t entry)
{
    return (uint32_t)(huffman_code(entry) + huffman_extra(entry)) | (entry & 255u << 15);
}

/* Advances that end a block.  A position in a block is 1 to 63 before an advance, so afterwards it is
 *   64           after the last coefficient
 *   65 to 79     a run led beyond the block: broken
 *   129 to 191   end of block
 *   193 to 255   no such code: broken */
enum { HUFFMAN_END = 128, HUFFMAN_BROKEN = 192 };

/* The entry that the next HUFFMAN_LEAP bits look up, for as many AC symbols as have their codes in these bits.  It
 * serves blocks of which only the end is wanted.
 *   bits 0-5    bits to drop (at most HUFFMAN_LEAP + 10)
 *   bits 15-22  how far the position advances, without the end of the block
 *   bit 30      the last of them is the end of the block; no entry for one symbol has this bit
 * 0: not even one code fits.
 * With 11 bits, blocks are skipped a little faster, but a table takes twice as long to build.  That costs more, because
 * most photographs have tables of their own. */
enum { HUFFMAN_LEAP = 10, HUFFMAN_LEAP_ENDS = 1 << 30 };

typedef struct {
    uint32_t peek[1 << HUFFMAN_PEEK];
    uint32_t leap[1 << HUFFMAN_LEAP];   /* AC only */
    int32_t last[17];                   /* the largest code of each length, -1: none */
    int32_t first[17];                  /* where in `symbols` a code of this length is, less the code */
    uint8_t counts[17], symbols[256];   /* as in the file; counts[0] is 0 */
    uint8_t is_built, is_ac;
} huffman_table;

/* Builds a table from the file's 16 counts and its symbols.  Returns 0 if no code has such counts, or if a symbol
 * cannot occur in a baseline picture of 8 bits.  If the table was built from the same counts and symbols, nothing is
 * done. */
int huffman_build(huffman_table *table, int is_ac, const uint8_t *counts, const uint8_t *symbols);

/* The entry for a code of more than HUFFMAN_PEEK bits.  The code begins at the top bit of `bits`. */
uint32_t huffman_long(const huffman_table *table, uint64_t bits);
