/* Huffman tables, in the shape that decodes fastest: one look-up for most codes.
 * Source: ITU-T T.81, annex C (how codes follow from the counts, and that none is all ones), F.2.2 (decoding). */
#pragma once
#include <stdint.h>

/* What a look-up by the next HUFFMAN_PEEK bits says of one symbol: a code and the extra bits behind it.
 *   bits 0-7    how many bits code and extra bits take together
 *   bits 8-15   by how much the position in the block advances: one more than the run of zeros
 *   bits 16-23  how many bits the code takes
 *   bits 24-31  how many extra bits there are
 * 0: the code is longer than HUFFMAN_PEEK bits, and the caller asks huffman_long. */
enum { HUFFMAN_PEEK = 10 };

/* Advances that end a block.  A position in a block is 1 to 63 before an advance, so afterwards it is
 *   64           the last coefficient was given
 *   65 to 79     a run led beyond the block: broken
 *   129 to 191   end of block
 *   193 to 255   no such code: broken */
enum { HUFFMAN_END = 128, HUFFMAN_BROKEN = 192 };

/* What a look-up by the next HUFFMAN_LEAP bits says of as many whole AC symbols as their codes fit in these bits, for
 * blocks of which nothing is wanted but their end.
 *   bits 0-7    bits to drop (at most HUFFMAN_LEAP + 10)
 *   bits 8-15   how far the position advances, without the end of the block
 *   bit 30      the last of them is the end of the block; no entry for one symbol has this bit
 * 0: not one symbol's code fits.
 * With 11 bits blocks are passed over a little quicker, and a table takes twice as long to build, which is more: most
 * photographs have tables of their own. */
enum { HUFFMAN_LEAP = 10, HUFFMAN_LEAP_ENDS = 1 << 30 };

typedef struct {
    uint32_t peek[1 << HUFFMAN_PEEK];
    uint32_t leap[1 << HUFFMAN_LEAP];   /* AC only */
    int32_t last[17];                   /* the largest code of each length, -1: none */
    int32_t first[17];                  /* where in `symbols` a code of this length is, less the code */
    uint8_t counts[17], symbols[256];   /* as in the file; counts[0] is 0 */
    uint8_t is_built, is_ac;
} huffman_table;

/* Builds a table from the file's counts (16 of them) and symbols; 0 where no code can have them, or a symbol is not
 * one of a baseline picture of 8 bits.  A table that was built from the same is left as it is. */
int huffman_build(huffman_table *table, int is_ac, const uint8_t *counts, const uint8_t *symbols);

/* The entry for a code longer than HUFFMAN_PEEK bits, which stands at the top of `bits`. */
uint32_t huffman_long(const huffman_table *table, uint64_t bits);
