/* Reads the bits of a restart interval, or of everything after a mark, in pieces, and notices if bits beyond the end
 * were read.
 *
 * decode_scan.h includes this after its path's `unstuff`. */
#pragma once
#include "scan.h"

/* Reads the next piece of the stream, after the first `kept` bytes of `clean`. */
static void read_piece(jpeg_stream *t, size_t kept)
{
    t->clean_bytes = kept + unstuff(&t->source, t->end, t->clean + kept, SCAN_CHUNK, &t->marker);
    /* If more data follow, no refill may read beyond this piece.  Otherwise the reader would hold wrong bits when the
     * next piece comes.  At the end of the data, a reader has read up to 8 bytes more than it has used. */
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

/* The reader is beyond `near`: moves its unread bytes to the front, with those that it may take back, and reads the next
 * piece after them.  0: the stream has ended. */
static __attribute__((noinline)) int read_on(jpeg_stream *t, bit_reader *r)
{
    if (t->marker != SCAN_MORE) return 0;
    size_t at = (size_t)(r->at - t->clean), behind = at < SCAN_BEHIND ? at : SCAN_BEHIND, begin = at - behind;
    size_t left = t->clean_bytes - begin;
    t->base += (int64_t)begin;
    memmove(t->clean, t->clean + begin, left);
    r->at = t->clean + behind;
    read_piece(t, left);
    return 1;
}

/* Whether the next MCU may be read. */
ALWAYS_INLINE int has_more(jpeg_stream *t, bit_reader *reader)
{
    if (__builtin_expect(reader->at <= t->near, 1)) return 1;
    bit_reader r = *reader; /* a copy, so that the caller's stays in registers */
    int is_good = read_on(t, &r);
    *reader = r;
    return is_good;
}

/* Skips the rest of the stream, which nobody wants. */
static void end_stream(jpeg_stream *t)
{
    while (t->marker == SCAN_MORE) read_piece(t, 0);
}

/* Whether all bits that were read belonged to the stream. */
static int is_within(const jpeg_stream *t, const bit_reader *r)
{
    return bits_read(r, t->clean) <= (int64_t)t->clean_bytes * 8;
}
