/* The result of reading the markers before the scan of a JPEG file: sizes, sampling, tables, orientation, or
 * JPEG_NOT_OURS.  header.c decides which files are taken.
 *
 * Source: ITU-T T.81, annex B (markers), F.1.2 (Huffman tables); T.871 (JFIF); Adobe's note 5116 (APP14). */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "huffman.h"

enum { JPEG_COMPONENTS = 3, JPEG_MCU_BLOCKS = 10, JPEG_TABLES = 4 };

/* The result of a call.  If it is JPEG_NOT_OURS, Pillow decodes the picture.  We take a file only if no
 * marker, no table and no bit of it is doubtful, so Pillow alone decides about broken files. */
enum { JPEG_OK = 0, JPEG_NOT_OURS = 1, JPEG_NO_MEMORY = 2 };

/* An orientation that only Pillow can read: of another type, in two EXIF markers, damaged, or in XMP. */
enum { JPEG_ASK_PILLOW = 0 };

typedef struct {
    uint8_t id, h, v;               /* sampling factors: blocks of it in an MCU, across and down */
    uint8_t quantiser, dc, ac;      /* numbers of its tables */
} jpeg_component;

typedef struct {
    int width, height;
    int components;                 /* 1: grey; 3: Y, Cb, Cr */
    int h, v;                       /* the largest sampling factors: an MCU is 8 h by 8 v pixels */
    int restart;                    /* MCUs between two restart markers; 0: there are none */
    int orientation;                /* EXIF: 1 (as stored) to 8, or JPEG_ASK_PILLOW */
    jpeg_component component[JPEG_COMPONENTS];
    uint16_t quantiser[JPEG_TABLES][64]; /* in the order of the file: zigzag */
    const uint8_t *scan, *end;      /* the entropy-coded data, and where the file ends */
} jpeg_header;

/* Huffman tables are kept for the next picture, which may have the same ones: building all four takes 5 us. */
typedef struct {
    huffman_table dc[JPEG_TABLES], ac[JPEG_TABLES];
} jpeg_tables;

/* Reads all markers up to the scan; JPEG_OK if this decoder takes the picture. */
int jpeg_read_header(jpeg_header *header, jpeg_tables *tables, const uint8_t *data, size_t bytes);
