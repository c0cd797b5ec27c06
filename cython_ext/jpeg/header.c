/* Decides which JPEG files our own decoder takes: baseline, grey or YCbCr, and not too large.  It refuses all
 * others (progressive, CMYK, RGB: JPEG_NOT_OURS), and Pillow decodes them.  Reads the EXIF orientation, if it is stored
 * in the usual form; otherwise Pillow must be asked for it. */
#define _GNU_SOURCE /* memmem */
#include "header.h"

#include <string.h>

enum { SOF0 = 0xc0, SOF1 = 0xc1, DHT = 0xc4, SOI = 0xd8, SOS = 0xda, DQT = 0xdb, DRI = 0xdd, APP0 = 0xe0, APP1 = 0xe1,
       APP2 = 0xe2, APP13 = 0xed, APP14 = 0xee, APP15 = 0xef, COM = 0xfe };
enum { NO_ADOBE = -1, ADOBE_YCC = 1 };
enum { NO_ORIENTATION = -1 };
enum { LARGEST = 89478485 }; /* pixels; Pillow warns of larger pictures, and refuses those of twice the size */
enum { LONGEST = 65500 };    /* pixels across or down; libjpeg refuses more */

/* The payload of a marker; every read first checks whether the bytes exist. */
typedef struct {
    const uint8_t *at, *end;
} segment;

static int has(const segment *s, size_t bytes) { return (size_t)(s->end - s->at) >= bytes; }
static int begins(const segment *s, const char *with, size_t bytes) { return has(s, bytes) && !memcmp(s->at, with, bytes); }
static int word(const uint8_t *at) { return at[0] << 8 | at[1]; }

static int read_quantisers(segment s, jpeg_header *header, int *known)
{
    while (s.at < s.end) {
        int wide = *s.at >> 4, number = *s.at & 15;
        if (wide > 1 || number >= JPEG_TABLES || !has(&s, 1 + 64 * (size_t)(1 + wide))) return JPEG_NOT_OURS;
        s.at++;
        for (int k = 0; k < 64; k++, s.at += 1 + wide)
            header->quantiser[number][k] = (uint16_t)(wide ? word(s.at) : *s.at);
        *known |= 1 << number;
    }
    return JPEG_OK;
}

static int read_huffman(segment s, jpeg_tables *tables, int *known)
{
    while (s.at < s.end) {
        if (!has(&s, 17)) return JPEG_NOT_OURS;
        int is_ac = *s.at >> 4, number = *s.at & 15, total = 0;
        if (is_ac > 1 || number >= JPEG_TABLES) return JPEG_NOT_OURS;
        for (int k = 1; k <= 16; k++) total += s.at[k];
        if (!has(&s, 17 + (size_t)total)) return JPEG_NOT_OURS;
        huffman_table *table = is_ac ? &tables->ac[number] : &tables->dc[number];
        if (!huffman_build(table, is_ac, s.at + 1, s.at + 17)) return JPEG_NOT_OURS;
        *known |= 1 << (4 * is_ac + number);
        s.at += 17 + total;
    }
    return JPEG_OK;
}

static int read_frame(segment s, jpeg_header *header)
{
    if (header->components || !has(&s, 6) || s.at[0] != 8) return JPEG_NOT_OURS;
    header->height = word(s.at + 1);
    header->width = word(s.at + 3);
    int components = s.at[5], blocks = 0;
    if (!header->width || !header->height || (int64_t)header->width * header->height > LARGEST) return JPEG_NOT_OURS;
    if (header->width > LONGEST || header->height > LONGEST) return JPEG_NOT_OURS;
    if ((components != 1 && components != 3) || s.end - s.at != 6 + 3 * components) return JPEG_NOT_OURS;
    header->components = components;
    header->h = header->v = 1;
    for (int k = 0; k < components; k++) {
        const uint8_t *at = s.at + 6 + 3 * k;
        jpeg_component *c = &header->component[k];
        *c = (jpeg_component){.id = at[0], .h = at[1] >> 4, .v = at[1] & 15, .quantiser = at[2]};
        if (c->h < 1 || c->h > 4 || c->v < 1 || c->v > 4 || c->quantiser >= JPEG_TABLES) return JPEG_NOT_OURS;
        if (components == 1) c->h = c->v = 1; /* a single component's MCU is one block, whatever its factors (A.2.2) */
        if (c->h > header->h) header->h = c->h;
        if (c->v > header->v) header->v = c->v;
        blocks += c->h * c->v;
    }
    if (blocks > JPEG_MCU_BLOCKS) return JPEG_NOT_OURS;
    for (int k = 0; k < components; k++) {
        const jpeg_component *c = &header->component[k];
        if (header->h % c->h || header->v % c->v) return JPEG_NOT_OURS;
        if (k == 0 && (c->h != header->h || c->v != header->v)) return JPEG_NOT_OURS;
        if (k == 2 && (c->h != c[-1].h || c->v != c[-1].v)) return JPEG_NOT_OURS;
    }
    return JPEG_OK;
}

static int read_scan(segment s, jpeg_header *header, int quantisers, int huffmans)
{
    int count = header->components;
    if (!count || s.end - s.at != 4 + 2 * count || s.at[0] != count) return JPEG_NOT_OURS;
    for (int k = 0; k < count; k++) {
        jpeg_component *c = &header->component[k];
        c->dc = s.at[2 + 2 * k] >> 4;
        c->ac = s.at[2 + 2 * k] & 15;
        if (s.at[1 + 2 * k] != c->id || c->dc >= JPEG_TABLES || c->ac >= JPEG_TABLES) return JPEG_NOT_OURS;
        if (!(huffmans >> c->dc & 1) || !(huffmans >> (4 + c->ac) & 1) || !(quantisers >> c->quantiser & 1))
            return JPEG_NOT_OURS;
    }
    const uint8_t *spectrum = s.at + 1 + 2 * count; /* baseline: all 64 coefficients, all their bits */
    return spectrum[0] == 0 && spectrum[1] == 63 && spectrum[2] == 0 ? JPEG_OK : JPEG_NOT_OURS;
}

/* Whether three components are luma and chroma.  A JFIF or Adobe marker decides; without one, the names of the
 * components do.  Adobe's other values and the names R, G, B mean something else. */
static int is_ycc(const jpeg_header *header, int is_jfif, int adobe)
{
    const jpeg_component *c = header->component;
    if (is_jfif) return 1;
    if (adobe != NO_ADOBE) return adobe == ADOBE_YCC;
    return !(c[0].id == 'R' && c[1].id == 'G' && c[2].id == 'B');
}

static uint32_t number(const uint8_t *at, int bytes, int is_little)
{
    uint32_t value = 0;
    for (int k = 0; k < bytes; k++) value |= (uint32_t)at[k] << 8 * (is_little ? k : bytes - 1 - k);
    return value;
}

/* EXIF's orientation, from the first directory of the TIFF file in the marker; NO_ORIENTATION if it has none.
 *
 * JPEG_ASK_PILLOW if it is anything but one SHORT from 1 to 8, or if anything before it is doubtful, because Pillow reads
 * other types too, and stops at an entry whose value lies outside the marker. */
static int read_orientation(segment s)
{
    enum { ORIENTATION = 0x0112, SHORT = 3, TYPES = 14 };
    static const uint8_t sizes[TYPES] = {0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4}; /* bytes of a value of each type */
    if (!has(&s, 14)) return JPEG_ASK_PILLOW;
    s.at += 6;
    int is_little = s.at[0] == 'I';
    size_t bytes = (size_t)(s.end - s.at), at = number(s.at + 4, 4, is_little);
    if (memcmp(s.at, is_little ? "II*\0" : "MM\0*", 4) || at > bytes || bytes - at < 2) return JPEG_ASK_PILLOW;
    int entries = (int)number(s.at + at, 2, is_little);
    for (at += 2; entries > 0; entries--, at += 12) {
        if (bytes - at < 12) return JPEG_ASK_PILLOW;
        const uint8_t *entry = s.at + at;
        uint32_t type = number(entry + 2, 2, is_little), count = number(entry + 4, 4, is_little);
        if (number(entry, 2, is_little) == ORIENTATION) {
            uint32_t value = number(entry + 8, 2, is_little);
            return type == SHORT && count == 1 && value >= 1 && value <= 8 ? (int)value : JPEG_ASK_PILLOW;
        }
        size_t size = type < TYPES ? (size_t)count * sizes[type] : bytes + 1, where = number(entry + 8, 4, is_little);
        if (size > 4 && (size > bytes || where > bytes - size)) return JPEG_ASK_PILLOW;
    }
    return NO_ORIENTATION;
}

/* Whether Pillow refuses the file for a marker that it reads, and that no decoder needs. */
static int is_cut_short(int marker, const segment *s)
{
    size_t bytes = (size_t)(s->end - s->at);
    switch (marker) {
    case APP0: return begins(s, "JFIF", 4) && bytes < 7;
    case APP2: return begins(s, "ICC_PROFILE", 12) && bytes < 14;
    case APP13: return begins(s, "Photoshop 3.0", 14) && bytes >= 20 && !memcmp(s->end - 6, "8BIM", 4);
    case APP14: return begins(s, "Adobe", 5) && bytes < 7;
    default: return 0;
    }
}

int jpeg_read_header(jpeg_header *header, jpeg_tables *tables, const uint8_t *data, size_t bytes)
{
    int is_jfif = 0, adobe = NO_ADOBE, quantisers = 0, huffmans = 0, has_exif = 0, in_xmp = 0;
    int orientation = NO_ORIENTATION;
    segment file = {data, data + bytes};
    *header = (jpeg_header){0};
    if (!has(&file, 2) || word(file.at) != (0xff00 | SOI)) return JPEG_NOT_OURS;
    file.at += 2;
    for (;;) {
        while (has(&file, 2) && file.at[0] == 0xff && file.at[1] == 0xff) file.at++; /* fill bytes */
        if (!has(&file, 4) || file.at[0] != 0xff) return JPEG_NOT_OURS;
        int marker = file.at[1], length = word(file.at + 2), status = JPEG_OK;
        file.at += 2;
        if (length < 2 || !has(&file, (size_t)length)) return JPEG_NOT_OURS;
        segment s = {file.at + 2, file.at + length};
        file.at += length;
        if (is_cut_short(marker, &s)) return JPEG_NOT_OURS;
        switch (marker) {
        case SOF0: case SOF1: status = read_frame(s, header); break;
        case DHT: status = read_huffman(s, tables, &huffmans); break;
        case DQT: status = read_quantisers(s, header, &quantisers); break;
        case DRI:
            if (s.end - s.at != 2) return JPEG_NOT_OURS;
            header->restart = word(s.at);
            break;
        case APP0: is_jfif |= has(&s, 14) && begins(&s, "JFIF", 5); break;
        case APP1:
            if (begins(&s, "Exif\0", 6)) { /* Pillow joins several of these */
                orientation = has_exif ? JPEG_ASK_PILLOW : read_orientation(s);
                has_exif = 1;
            } else {
                in_xmp |= memmem(s.at, (size_t)(s.end - s.at), "tiff:Orientation", 16) != NULL;
            }
            break;
        case APP14:
            if (has(&s, 12) && begins(&s, "Adobe", 5)) adobe = s.at[11];
            break;
        case SOS:
            status = read_scan(s, header, quantisers, huffmans);
            if (status == JPEG_OK && header->components == 3 && !is_ycc(header, is_jfif, adobe)) status = JPEG_NOT_OURS;
            header->orientation = orientation != NO_ORIENTATION ? orientation : in_xmp ? JPEG_ASK_PILLOW : 1;
            header->scan = file.at;
            header->end = file.end;
            return status;
        default:
            if (!(marker > APP1 && marker <= APP15) && marker != COM) return JPEG_NOT_OURS;
        }
        if (status != JPEG_OK) return status;
    }
}
