/* Huffman tables, in the shape that decodes fastest: one look-up for most codes.
 * Source: ITU-T T.81, annex C (how codes follow from the counts, and that none is all ones), F.2.2 (decoding). */
#pragma once
#include <stdint.h>

/* The entry that the next HUFFMAN_PEEK bits look up, for one symbol: a code and the extra bits after it.
 *   bits 0-7    how many bits code and extra bits take together
 *   bits 8-15   by how much the position in the block advances: one more than the run of zeros
 *   bits 16-23  how many bits the code takes
 *   bits 24-31  how many extra bits there are
 * 0: the code is longer than HUFFMAN_PEEK bits, and the caller asks huffman_long. */
enum { HUFFMAN_PEEK = 10 };

/* Advances that end a block.  A position in a block is 1 to 63 before an advance, so afterwards it is
 *   64           after the last coefficient
 *   65 to 79     a run led beyond the block: broken
 *   129 to 191   end of block
 *   193 to 255   no such code: broken */
enum { HUFFMAN_END = 128, HUFFMAN_BROKEN = 192 };

/* The entry that the next HUFFMAN_LEAP bits look up, for as many AC symbols as have their codes in these bits.  It
 * serves blocks of which only the end is wanted.
 *   bits 0-7    bits to drop (at most HUFFMAN_LEAP + 10)
 *   bits 8-15   how far the position advances, without the end of the block
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
