/* Huffman tables: see huffman.h. */
#include "huffman.h"

#include <string.h>

/* The entry of one symbol.  AC: the upper four bits are the run of zeros, the lower four the number of extra bits, and
 * without extra bits 15 is a run of 16 zeros, and the others end the block.  DC: the number of extra bits. */
static uint32_t entry(int is_ac, int symbol, int length)
{
    int extra = is_ac ? symbol & 15 : symbol;
    int run = is_ac ? symbol >> 4 : 0;
    uint32_t advance = is_ac && extra == 0 && run != 15 ? HUFFMAN_END : (uint32_t)run + 1;
    return (uint32_t)(length + extra) | advance << 8 | (uint32_t)length << 16 | (uint32_t)extra << 24;
}

/* As many symbols as have their codes in these bits; the extra bits of the last one may lie beyond.  No symbol is
 * added once the entry has advanced by more than half a block.  Near the end of a block the reader takes one symbol at a
 * time, and short entries make that rare. */
static uint32_t leap(const huffman_table *table, int index)
{
    enum { MASK = (1 << HUFFMAN_LEAP) - 1, FAR = 40 };
    int used = 0, advance = 0;
    while (used < HUFFMAN_LEAP && advance < FAR) {
        uint32_t e = table->peek[(index << used & MASK) >> (HUFFMAN_LEAP - HUFFMAN_PEEK)];
        int bits = e & 255, step = e >> 8 & 255, code = e >> 16 & 255;
        if (!e || used + code > HUFFMAN_LEAP || step == HUFFMAN_BROKEN) break;
        used += bits;
        if (step == HUFFMAN_END) return (uint32_t)used | (uint32_t)advance << 8 | HUFFMAN_LEAP_ENDS;
        advance += step;
    }
    return (uint32_t)used | (uint32_t)advance << 8;
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
    if (is_ac)
        for (int index = 0; index < 1 << HUFFMAN_LEAP; index++) table->leap[index] = leap(table, index);
    table->is_built = 1;
    return 1;
}

uint32_t huffman_long(const huffman_table *table, uint64_t bits)
{
    for (int length = HUFFMAN_PEEK + 1; length <= 16; length++) {
        int32_t code = (int32_t)(bits >> (64 - length));
        if (code <= table->last[length]) return entry(table->is_ac, table->symbols[table->first[length] + code], length);
    }
    return 16 | HUFFMAN_BROKEN << 8 | 16 << 16;
}
