/* The bits of a restart interval, or of what is behind a mark, piece by piece.  decode_scan.h includes this behind its
 * path's `unstuff`. */
#pragma once
#include "scan.h"

/* The next piece of the stream behind the first `kept` bytes of `clean`. */
static void read_piece(jpeg_stream *t, size_t kept)
{
    t->clean_bytes = kept + unstuff(&t->source, t->end, t->clean + kept, SCAN_CHUNK, &t->marker);
    /* Where more comes, no refill may read beyond what is here: its bits would be there already when the right ones
     * come.  At the end a reader is up to 8 bytes ahead of what it has read. */
    t->near = t->clean + t->clean_bytes;
    t->near += t->marker == SCAN_MORE ? -ENTROPY_MCU : 8;
}

/* Begins to read at `source`. */
static void begin_stream(jpeg_stream *t, bit_reader *r)
{
    t->base = 0;
    read_piece(t, 0);
    *r = (bit_reader){.at = t->clean};
}

/* The reader is beyond `near`: what it has not read goes to the front, and the next piece behind it.  0: the stream has
 * ended. */
static __attribute__((noinline)) int read_on(jpeg_stream *t, bit_reader *r)
{
    if (t->marker != SCAN_MORE) return 0;
    size_t left = t->clean_bytes - (size_t)(r->at - t->clean);
    t->base += r->at - t->clean;
    memmove(t->clean, r->at, left);
    r->at = t->clean;
    read_piece(t, left);
    return 1;
}

/* Whether the next MCU may be read. */
ALWAYS_INLINE int has_more(jpeg_stream *t, bit_reader *reader)
{
    if (__builtin_expect(reader->at <= t->near, 1)) return 1;
    bit_reader r = *reader; /* so that the caller's is in registers */
    int is_good = read_on(t, &r);
    *reader = r;
    return is_good;
}

/* Whatever is left of it: nobody wants it. */
static void end_stream(jpeg_stream *t)
{
    while (t->marker == SCAN_MORE) read_piece(t, 0);
}

/* Whether all bits that were read were the stream's own. */
static int is_within(const jpeg_stream *t, const bit_reader *r)
{
    return bits_read(r, t->clean) <= (int64_t)t->clean_bytes * 8;
}
