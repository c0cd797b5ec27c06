/* The wanted part of a scan, the place of its samples, the marks of rows (jpeg_mark), and the size of the pieces in
 * which a scan is read (SCAN_CHUNK, 8 KiB). */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "entropy.h"
#include "header.h"

/* The wanted part of one component.  Its samples lie column by column: sample (x, y) of the component is at
 * samples[(x - 8 * left) * stride + y - 8 * top]. */
typedef struct {
    int width, height;              /* of the whole component, in samples */
    int across, down;               /* pixels of the picture for each sample */
    int left, top, right, bottom;   /* the wanted blocks; right and bottom are exclusive */
    ptrdiff_t stride;
    uint8_t *samples;
    _Alignas(32) int16_t quantiser[64]; /* in the path's order */
} jpeg_plane;

/* The beginning of a row of MCUs, where a later reading can start.  Files with restart markers have no marks. */
typedef struct {
    uint32_t at;                    /* bytes from the scan's beginning */
    uint16_t bit;                   /* the bit in that byte, from its top: 0 to 7 */
    int16_t predicted[JPEG_COMPONENTS];
} jpeg_mark;
_Static_assert(sizeof(jpeg_mark) == 12, "marks are kept in files");

/* The scan is read in pieces, so that a piece is in the nearest cache when its bits are read. */
#ifndef SCAN_CHUNK /* tests take smaller ones */
#define SCAN_CHUNK 8192
#endif
enum { SCAN_SPARE = 64, SCAN_MORE = -1 };
_Static_assert(SCAN_CHUNK >= ENTROPY_MCU, "an MCU that begins in one piece ends in the next");
/* Bytes before the place of a reader that it may take back: up to 63 bits that it holds, and HUFFMAN_PEEK. */
enum { SCAN_BEHIND = 16 };
/* These, the rest of one piece, the next piece, and the bytes that an MCU can read beyond its end. */
enum { SCAN_BYTES = SCAN_BEHIND + ENTROPY_MCU + (SCAN_CHUNK + SCAN_SPARE) + (ENTROPY_MCU + 8) };

/* The input of a bit reader: a restart interval, or everything after a mark. */
typedef struct {
    uint8_t *clean;                 /* one piece of it, without stuffing: SCAN_BYTES */
    size_t clean_bytes;
    const uint8_t *near;            /* beyond this, a reader may not reach the end of the next MCU */
    const uint8_t *source, *end;    /* where the file continues, and where reading must stop */
    int marker;                     /* the marker that ended the interval; 0: the end; SCAN_MORE: none yet */
    int64_t base;                   /* bytes of the interval, without stuffing, before those in `clean` */
    uint32_t predicted[JPEG_COMPONENTS];
} jpeg_stream;

typedef struct {
    const jpeg_header *header;
    const jpeg_tables *tables;
    const uint8_t *order;           /* the places of the coefficients: BLOCK_POSITIONS entries */
    jpeg_plane planes[JPEG_COMPONENTS];
    int left, top, right, bottom;   /* the wanted MCUs */
    const jpeg_mark *marks;         /* the beginning of each row, from an earlier reading; NULL: unknown */
    jpeg_mark *new_marks;           /* this reading writes them here; NULL: nowhere.  Only one of the two may be set. */

    jpeg_stream stream;
    int next_restart;               /* 0 to 7; -1: the first interval has not begun */
    int64_t mcus_left;              /* in this interval */
    const uint8_t *anchor;          /* the last mark's place in the file, and in the interval without stuffing */
    int64_t anchored;
} jpeg_scan;
