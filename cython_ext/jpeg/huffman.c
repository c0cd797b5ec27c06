/* Builds Huffman tables (huffman.h).  Refuses counts that no code has, and symbols that no baseline picture of 8 bits
 * has; a table of the same counts and symbols is not built twice. */
#include "huffman.h"

#include <string.h>

_Static_assert((int)HUFFMAN_LEAP <= (int)HUFFMAN_PEEK, "leaps are made of the entries for HUFFMAN_PEEK bits");

/* The entry of one symbol.  AC: the upper four bits are the run of zeros, the lower four the number of extra bits, and
 * without extra bits 15 is a run of 16 zeros, and the others end the block.  DC: the number of extra bits. */
static uint32_t entry(int is_ac, int symbol, int length)
{
    int extra = is_ac ? symbol & 15 : symbol;
    int run = is_ac ? symbol >> 4 : 0;
    uint32_t advance = is_ac && extra == 0 && run != 15 ? HUFFMAN_END : (uint32_t)run + 1;
    return (uint32_t)(length + extra) | (uint32_t)length << 6 | (uint32_t)extra << 11 | advance << 15;
}

/* The leaps of n bits: see huffman.h.  A leap is its first symbol and the leap of the bits after this symbol, which is in
 * `leaps` already.  The leaps of n bits are there from 1 << n on.
 * No symbol is added if the entry would advance by more than half a block.  Near the end of a block the reader takes one
 * symbol at a time, and short entries make that rare. */
static void add_leaps(const huffman_table *table, int n, uint32_t *leaps)
{
    enum { FAR = 40 };
    uint32_t *to = leaps + (1 << n), *end = to + (1 << n);
    while (to < end) {
        uint32_t e = table->peek[(to - leaps - (1 << n)) << (HUFFMAN_PEEK - n)], first = huffman_alone(e);
        int advance = huffman_advance(e), rest = n - huffman_bits(e);
        if (!e || huffman_code(e) > n || advance == HUFFMAN_BROKEN) {
            *to++ = 0;
        } else if (rest <= 0 || advance == HUFFMAN_END) {
            if (advance == HUFFMAN_END) first = (uint32_t)huffman_bits(e) | HUFFMAN_LEAP_ENDS;
            for (int fill = 1 << (n - huffman_code(e)); fill; fill--) *to++ = first;
        } else {
            const uint32_t *more = leaps + (1 << rest);
            for (int k = 0; k < 1 << rest; k++)
                to[k] = first + (advance + huffman_advance(more[k]) < FAR ? more[k] : 0);
            to += 1 << rest;
        }
    }
}

/* What the symbol of this index adds to an entry whose second symbol it is.  It cannot be one if it adds no bits. */
static uint32_t as_second(uint32_t e, int index)
{
    int bits = huffman_bits(e), extra = huffman_extra(e), advance = huffman_advance(e);
    int spare = HUFFMAN_PEEK - bits;
    if (!e || spare < 0 || extra == 0 || extra > 4 || advance > 15) return 0;
    int most = (1 << extra) - 1, value = index >> spare & most;
    value -= most & ((value >> (extra - 1)) - 1);
    return (uint32_t)bits | (uint32_t)advance << 23 | (uint32_t)value << 27;
}

/* Adds a second symbol to each entry that has room for one.  All entries that begin with the same symbol and the same
 * extra bits stand side by side, and so do the second symbols that they get: those that fit into the `n` bits after it
 * are in `seconds` from 1 << n on. */
static void add_seconds(huffman_table *table, uint32_t *seconds)
{
    enum { ENTRIES = 1 << HUFFMAN_PEEK, FEWEST = 2 /* bits of a code and its extra bits */ };
    for (int index = 0; index < ENTRIES;) {
        uint32_t second = as_second(table->peek[index], index);
        int alike = second ? ENTRIES >> huffman_bits(second) : 1;
        for (int end = index + alike; index < end; index++) seconds[ENTRIES + index] = second;
    }
    for (int n = HUFFMAN_PEEK - 1; n >= FEWEST; n--)
        for (int index = 0; index < 1 << n; index++) {
            uint32_t second = seconds[(2 << n) + 2 * index];
            seconds[(1 << n) + index] = huffman_bits(second) <= n ? second : 0;
        }
    for (int index = 0; index < ENTRIES;) {
        uint32_t e = table->peek[index];
        int bits = huffman_bits(e), n = HUFFMAN_PEEK - bits;
        if (!e || n < FEWEST || huffman_advance(e) >= HUFFMAN_END) {
            index++;
            continue;
        }
        const uint32_t *second = seconds + (1 << n);
        for (int end = index + (1 << n); index < end; index++) table->peek[index] += *second++;
    }
}

int huffman_build(huffman_table *table, int is_ac, const uint8_t *counts, const uint8_t *symbols)
{
    int total = 0;
    for (int length = 0; length < 16; length++) total += counts[length];
    if (total > 256) return 0;
    if (table->is_built && table->is_ac == is_ac && !memcmp(table->counts + 1, counts, 16) &&
        !memcmp(table->symbols, symbols, (size_t)total))
        return 1;

    table->is_built = 0;
    table->is_ac = (uint8_t)is_ac;
    memcpy(table->counts + 1, counts, 16);
    memset(table->symbols, 0, sizeof table->symbols);
    memcpy(table->symbols, symbols, (size_t)total);
    memset(table->peek, 0, sizeof table->peek);
    uint32_t code = 0;
    int next = 0;
    for (int length = 1; length <= 16; length++) {
        table->first[length] = next - (int)code;
        for (int k = 0; k < table->counts[length]; k++, next++, code++) {
            if ((code + 1) >> length) return 0; /* more codes than this length allows, or one of all ones */
            int symbol = table->symbols[next];
            if ((is_ac ? symbol & 15 : symbol) > (is_ac ? 10 : 11)) return 0;
            if (length > HUFFMAN_PEEK) continue;
            int spare = HUFFMAN_PEEK - length;
            uint32_t e = entry(is_ac, symbol, length), *to = table->peek + ((size_t)code << spare);
            for (int fill = 0; fill < 1 << spare; fill++) to[fill] = e;
        }
        table->last[length] = table->counts[length] ? (int32_t)code - 1 : -1;
        code <<= 1;
    }
    if (is_ac) {
        uint32_t scratch[2 << HUFFMAN_PEEK];
        scratch[1] = 0; /* no leap is in no bits */
        for (int n = 1; n <= HUFFMAN_LEAP; n++) add_leaps(table, n, scratch);
        memcpy(table->leap, scratch + (1 << HUFFMAN_LEAP), sizeof table->leap);
        add_seconds(table, scratch);
    }
    table->is_built = 1;
    return 1;
}

uint32_t huffman_long(const huffman_table *table, uint64_t bits)
{
    for (int length = HUFFMAN_PEEK + 1; length <= 16; length++) {
        int32_t code = (int32_t)(bits >> (64 - length));
        if (code <= table->last[length]) return entry(table->is_ac, table->symbols[table->first[length] + code], length);
    }
    return 16 | 16 << 6 | HUFFMAN_BROKEN << 15;
}
