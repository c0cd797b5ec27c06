/* JPEG files that are nearly right, for the decoder under ASan and UBSan: `make fuzz-jpeg`.
 *
 *     jpeg_fuzz COUNT [SEED]
 *
 * Each file is made here, whole, of random tables, sampling and coefficients; then most are damaged: bytes, lengths of
 * markers, whole segments, the end.  Whatever the file, both ways of decoding (plain C and the processor's vectors) must
 * say the same and give the same pixels; what was not damaged must decode; a part must equal the same part of the whole;
 * and a decoder's memory has a bound and goes with it.  Every buffer is a heap block of its exact size. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jpeg.h"

#if defined(__SANITIZE_ADDRESS__)
size_t __sanitizer_get_current_allocated_bytes(void); /* its header is not installed everywhere */
#define ALLOCATED() __sanitizer_get_current_allocated_bytes()
#else
#define ALLOCATED() ((size_t)0)
#endif

enum { FOURTH = 7, OTHER = 9 }; /* what lies in a block before a picture is decoded into it */
enum { LARGEST = 64, ROOM = 1 << 20, MEMORY = (2 * 64 + 16) << 20 };

static uint64_t state;

static uint32_t any(void) /* xorshift64* (S. Vigna, 2016) */
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (uint32_t)(state * 2685821657736338717u >> 32);
}

static int below(int n) { return (int)(any() % (uint32_t)n); }
static int between(int low, int high) { return low + below(high - low + 1); }

/* ------------------------------------------------------------------------------------------------- a file as it grows */

static uint8_t file[ROOM];
static size_t bytes;
static uint64_t pending; /* bits that are no byte yet */
static int pending_bits;
static size_t segments[64]; /* where markers begin */
static int segment_count;

static void put(int byte) { file[bytes++] = (uint8_t)byte; }
static void put_word(int word) { put(word >> 8), put(word & 255); }

static void put_marker(int marker, int length)
{
    segments[segment_count++] = bytes;
    put(0xff), put(marker), put_word(length + 2);
}

static void put_bits(uint32_t value, int count)
{
    pending = pending << count | value;
    for (pending_bits += count; pending_bits >= 8; pending_bits -= 8) {
        int byte = pending >> (pending_bits - 8) & 255;
        put(byte);
        if (byte == 255) put(0);
    }
    pending &= (1u << pending_bits) - 1;
}

static void end_bits(void)
{
    if (pending_bits) put_bits((1u << (8 - pending_bits)) - 1, 8 - pending_bits);
}

typedef struct {
    uint32_t code[256];
    int length[256];
} codes;

/* A table of these symbols, of codes of random lengths. */
static void put_table(int class_and_number, const uint8_t *symbols, int count, codes *c)
{
    int lengths[17] = {0}, room = 65535, next = 0;
    uint8_t shuffled[256];
    memcpy(shuffled, symbols, (size_t)count);
    for (int k = count - 1; k > 0; k--) {
        int other = below(k + 1);
        uint8_t held = shuffled[k];
        shuffled[k] = shuffled[other], shuffled[other] = held;
    }
    for (int left = count; left > 0; left--) {
        int length = 1;
        while (room - (1 << (16 - length)) < left - 1) length++;
        length += below(4) ? 0 : below(6);
        if (length > 16) length = 16;
        lengths[length]++;
        room -= 1 << (16 - length);
    }
    put_marker(0xc4, 17 + count);
    put(class_and_number);
    uint32_t code = 0;
    for (int length = 1; length <= 16; length++, code <<= 1) {
        put(lengths[length]);
        for (int k = 0; k < lengths[length]; k++, code++, next++)
            c->code[shuffled[next]] = code, c->length[shuffled[next]] = length;
    }
    for (int k = 0; k < count; k++) put(shuffled[k]);
}

static void put_value(const codes *c, int run, int value)
{
    int size = 0;
    while (abs(value) >> size) size++;
    put_bits(c->code[run << 4 | size], c->length[run << 4 | size]);
    if (size) put_bits((uint32_t)(value < 0 ? value + (1 << size) - 1 : value), size);
}

static void put_block(const codes *dc, const codes *ac, int *predicted, int reach)
{
    int value = between(-reach, reach), position = 1, end = below(3) ? between(1, 64) : below(2) ? 64 : 1;
    put_value(dc, 0, value - *predicted);
    *predicted = value;
    while (position < end) {
        int run = below(2) ? 0 : below(20), largest = below(3) ? 3 : reach;
        if (run > end - 1 - position) run = end - 1 - position;
        for (; run > 15; run -= 16, position += 16) put_bits(ac->code[0xf0], ac->length[0xf0]);
        value = between(1, largest);
        put_value(ac, run, below(2) ? value : -value);
        position += run + 1;
    }
    if (position < 64) put_bits(ac->code[0], ac->length[0]);
}

static void put_orientation(void)
{
    static const uint8_t tiff[] = {'E', 'x', 'i', 'f', 0, 0, 'I', 'I', '*', 0, 8, 0, 0, 0, 1, 0, 0x12, 1, 3, 0, 1, 0, 0, 0};
    put_marker(0xe1, sizeof tiff + 8);
    for (size_t k = 0; k < sizeof tiff; k++) put(tiff[k]);
    put(between(0, 9)), put(0), put_word(0), put_word(0), put_word(0);
}

static void make(int *width, int *height)
{
    static const uint8_t factors[][2] = {{0x11, 0x11}, {0x21, 0x11}, {0x22, 0x11}, {0x12, 0x11}, {0x41, 0x11},
                                         {0x42, 0x11}, {0x22, 0x12}, {0x21, 0x21}, {0x14, 0x11},
                                         {0x31, 0x11}, {0x13, 0x11}};
    static codes tables[2][2];
    static uint8_t sizes[12], pairs[162];
    const uint8_t *factor = factors[below(sizeof factors / sizeof *factors)];
    int components = below(5) ? 3 : 1, interval = below(2) ? 0 : between(1, 9), reach = below(4) ? 60 : 1000;
    int predicted[3] = {0}, count = 0;
    bytes = 0, segment_count = 0, pending = 0, pending_bits = 0;
    for (int k = 0; k < 12; k++) sizes[k] = (uint8_t)k;
    for (int k = 0; k < 160; k++) pairs[k] = (uint8_t)((k / 10) << 4 | (k % 10 + 1));
    pairs[160] = 0, pairs[161] = 0xf0;

    put(0xff), put(0xd8);
    if (!below(4)) put_orientation();
    for (int number = 0; number < 2; number++) {
        put_table(number, sizes, 12, &tables[number][0]);
        put_table(16 | number, pairs, 162, &tables[number][1]);
        put_marker(0xdb, 65);
        put(number);
        for (int k = 0; k < 64; k++) put(between(1, reach > 60 ? 255 : 16));
    }
    if (interval) put_marker(0xdd, 2), put_word(interval);
    *width = between(1, LARGEST), *height = between(1, LARGEST);
    put_marker(0xc0, 6 + 3 * components);
    put(8), put_word(*height), put_word(*width), put(components);
    for (int k = 0; k < components; k++) put(k + 1), put(factor[k > 0]), put(k > 0);
    put_marker(0xda, 4 + 2 * components);
    put(components);
    for (int k = 0; k < components; k++) put(k + 1), put(k > 0 ? 0x11 : 0);
    put(0), put(63), put(0);

    int h = components == 1 ? 1 : factor[0] >> 4, v = components == 1 ? 1 : factor[0] & 15;
    int mcus = ((*width + 8 * h - 1) / (8 * h)) * ((*height + 8 * v - 1) / (8 * v));
    for (int mcu = 0; mcu < mcus; mcu++) {
        if (interval && mcu && mcu % interval == 0) {
            end_bits();
            put(0xff), put(0xd0 + count++ % 8);
            memset(predicted, 0, sizeof predicted);
        }
        for (int k = 0; k < components; k++) {
            int blocks = components == 1 ? 1 : (factor[k > 0] >> 4) * (factor[k > 0] & 15);
            for (int b = 0; b < blocks; b++)
                put_block(&tables[k > 0][0], &tables[k > 0][1], &predicted[k], reach);
        }
    }
    end_bits();
    put(0xff), put(0xd9);
}

/* One damage. */
static void damage(void)
{
    size_t at = (size_t)below((int)bytes), where = segments[below(segment_count)], count;
    switch (below(10)) {
    case 0: bytes = at; break;                                          /* cut off */
    case 1: file[at] = (uint8_t)any(); break;
    case 2: file[at] ^= (uint8_t)(1 << below(8)); break;
    case 3: file[at] = 0xff; break;
    case 4: file[where + 1] = (uint8_t)between(0xc0, 0xff); break;      /* another marker */
    case 5: file[where + 2 + (size_t)below(2)] = (uint8_t)any(); break; /* another length */
    case 6: file[where + 4 + (size_t)below(20)] = (uint8_t)any(); break; /* of a segment's first bytes */
    case 7: /* something taken out */
        count = (size_t)below(below(2) ? 4 : 200);
        if (count > bytes - at) count = bytes - at;
        memmove(file + at, file + at + count, bytes - at - count);
        bytes -= count;
        break;
    case 8: /* something twice */
        count = (size_t)below(below(2) ? 4 : 200);
        if (count > bytes - at) count = bytes - at;
        memmove(file + at + count, file + at, bytes - at);
        bytes += count;
        break;
    default: /* in the scan */
        where = segments[segment_count - 1] + 10;
        if (where < bytes) file[where + (size_t)below((int)(bytes - where))] = (uint8_t)any();
    }
    if (bytes < 8) bytes = 8;
}

/* ----------------------------------------------------------------------------------------------------------- decoding */

static void fail(const char *what, long input)
{
    FILE *out = fopen("jpeg_fuzz.failed.jpg", "wb");
    fprintf(stderr, "input %ld: %s (it is in jpeg_fuzz.failed.jpg)\n", input, what);
    if (out) fwrite(file, 1, bytes, out), fclose(out);
    abort();
}

/* An image of random layout in a block of its exact size; pixel (x, y) of channel c in the same order for all. */
typedef struct {
    uint8_t *block;
    size_t size;
    jpeg_request request;
} image;

static image lay_out(jpeg_request q)
{
    int is_of_four = below(2); /* pixels of four bytes; the last one has no fourth */
    size_t pixels = (size_t)q.out_width * (size_t)q.out_height;
    image i = {.size = is_of_four ? 4 * pixels - 1 : 3 * pixels, .request = q};
    i.block = malloc(i.size);
    memset(i.block, FOURTH, i.size);
    ptrdiff_t w = q.out_width, h = q.out_height;
    jpeg_request *r = &i.request;
    r->to = i.block;
    switch (is_of_four ? 3 : below(3)) {
    case 0: r->channel = w * h, r->row = w, r->column = 1; break;
    case 1: r->channel = 1, r->row = 3 * w, r->column = 3; break;
    case 3: r->channel = 1, r->row = 4 * w, r->column = 4; break;
    default: r->channel = w * h, r->row = 1, r->column = h; /* on its side */
    }
    if (below(2)) r->to += (w - 1) * r->column, r->column = -r->column;
    if (below(2)) r->to += (h - 1) * r->row, r->row = -r->row;
    return i;
}

static uint8_t pixel(const image *i, int c, int y, int x)
{
    return i->request.to[c * i->request.channel + y * i->request.row + x * i->request.column];
}

static void compare(const image *a, const image *b, int top, int left, long input, const char *what)
{
    for (int c = 0; c < 3; c++)
        for (int y = 0; y < b->request.out_height; y++)
            for (int x = 0; x < b->request.out_width; x++)
                if (pixel(a, c, top + y, left + x) != pixel(b, c, y, x)) fail(what, input);
    if (b->request.column == 4 && b->request.channel == 1)
        for (size_t k = 3; k < b->size; k += 4)
            if (b->block[k] != FOURTH && b->block[k] != OTHER) fail("a fourth byte was changed", input);
}

/* A part that is read from the mark of its first row is the same; from a wrong mark, nothing worse than other pixels. */
static void check_marks(jpeg_decoder *decoder, const image *part, long input)
{
    int rows = jpeg_rows(decoder);
    if (!rows) return;
    jpeg_mark *marks = malloc((size_t)rows * sizeof *marks);
    image again = *part;
    again.block = malloc(part->size);
    again.request.to = again.block + (part->request.to - part->block);
    again.request.new_marks = marks;
    memset(again.block, OTHER, part->size);
    if (jpeg_decode(decoder, &again.request)) fail("a file was not read to its end for its marks", input);
    compare(part, &again, 0, 0, input, "a part with marks is another");
    again.request.new_marks = NULL;
    again.request.marks = marks;
    memset(again.block, OTHER, part->size);
    if (jpeg_decode(decoder, &again.request)) fail("a part was not read from its mark", input);
    compare(part, &again, 0, 0, input, "a part from its mark is another");
    for (uint8_t *byte = (uint8_t *)marks; byte < (uint8_t *)(marks + rows); byte++)
        if (!below(3)) *byte = (uint8_t)below(256) >> below(8);
    jpeg_decode(decoder, &again.request);
    free(again.block), free(marks);
}

/* A part of the planes is the part of the file, whichever decoder opens them; of a shape that is wrong, nothing worse than
 * other pixels.  The planes are a block of their exact size, and so is each that a wrong shape asks for. */
static void check_planes(jpeg_decoder *maker, jpeg_decoder *reader, const image *part, long input)
{
    jpeg_shape shape = jpeg_shape_of(maker);
    size_t size = jpeg_planes_bytes(&shape);
    uint8_t *planes = malloc(size);
    image again = *part;
    again.block = malloc(part->size);
    again.request.to = again.block + (part->request.to - part->block);
    memset(again.block, OTHER, part->size);
    if (jpeg_write_planes(maker, planes)) fail("a whole file has no planes", input);
    if (!jpeg_open_planes(reader, &shape, planes)) fail("planes were not opened", input);
    if (jpeg_decode(reader, &again.request)) fail("planes were not decoded", input);
    compare(part, &again, 0, 0, input, "a part of the planes is another");
    for (uint8_t *byte = (uint8_t *)&shape; byte < (uint8_t *)(&shape + 1); byte++)
        if (!below(4)) *byte = (uint8_t)(*byte ^ 1 << below(8)) >> below(3);
    size = jpeg_planes_bytes(&shape);
    free(planes), free(again.block);
    if (!size || size > ROOM) return;
    planes = calloc(1, size);
    if (!jpeg_open_planes(reader, &shape, planes)) fail("a shape that has bytes was not opened", input);
    jpeg_request q = {.is_exact = below(2), .is_smooth = below(2), .may_go_down_first = below(2)};
    q.width = between(1, shape.width), q.height = between(1, shape.height);
    q.left = below(shape.width - q.width + 1), q.top = below(shape.height - q.height + 1);
    q.out_width = between(1, 70), q.out_height = between(1, 70);
    again = lay_out(q);
    if (jpeg_decode(reader, &again.request)) fail("planes of another shape were not decoded", input);
    free(planes), free(again.block);
}

/* Of what a part is resized to, a window alone. */
static void see_window(jpeg_request *q)
{
    q->all_width = q->out_width, q->all_height = q->out_height;
    q->out_width = between(1, q->all_width), q->out_height = between(1, q->all_height);
    q->out_left = below(q->all_width - q->out_width + 1), q->out_top = below(q->all_height - q->out_height + 1);
}

static void check_window(jpeg_decoder *decoder, jpeg_request all, const image *window, long input)
{
    all.is_exact = 1;
    image whole = lay_out(all);
    if (jpeg_decode(decoder, &whole.request) == JPEG_OK) /* a damaged file may be broken beside the window */
        compare(&whole, window, window->request.out_top, window->request.out_left, input,
                "a window shows something else");
    free(whole.block);
}

int main(int count, char **arguments)
{
    long inputs = count > 1 ? atol(arguments[1]) : 100000, decoded = 0, whole = 0;
    state = 88172645463325252u ^ (count > 2 ? (uint64_t)atol(arguments[2]) * 2654435761u : 0);
    size_t before = ALLOCATED();
    static const char *const names[] = {"plain", "avx2", "avx512", "neon"};
    enum { MOST = sizeof names / sizeof *names };
    int paths = 0;
    jpeg_decoder *decoders[MOST];
    for (int k = 0; k < MOST; k++) {
        const jpeg_path *path = jpeg_choose(names[k]);
        if (!path) continue;
        decoders[paths++] = jpeg_new(path);
    }
    for (long input = 0; input < inputs; input++) {
        int width, height, is_whole = below(4) == 0;
        make(&width, &height);
        for (int k = is_whole ? 0 : between(1, 3); k > 0; k--) damage();
        uint8_t *data = malloc(bytes);
        memcpy(data, file, bytes);
        int said[MOST];
        for (int k = 0; k < paths; k++) {
            said[k] = jpeg_open(decoders[k], data, bytes);
            if (said[k] != said[0]) fail("the paths read different headers", input);
        }
        if (is_whole && said[0] != JPEG_OK) fail("a whole file was not opened", input);
        const jpeg_header *header = jpeg_opened(decoders[0]);
        if (said[0] == JPEG_OK && (long)header->width * header->height <= 1 << 20) {
            jpeg_request q = {.is_exact = below(3) > 0, .is_smooth = below(4) > 0, .may_go_down_first = below(2)};
            q.filter = (resize_filter)below(RESIZE_FILTERS);
            q.is_kept = below(4) == 0;
            q.is_mirrored = below(3) == 0;
            q.width = between(1, header->width), q.height = between(1, header->height);
            q.left = below(header->width - q.width + 1), q.top = below(header->height - q.height + 1);
            q.out_width = below(3) ? between(1, 70) : q.width, q.out_height = below(3) ? between(1, 70) : q.height;
            jpeg_request all = q;
            if (!below(3)) see_window(&q);
            image images[MOST];
            for (int k = 0; k < paths; k++) {
                images[k] = lay_out(q);
                said[k] = jpeg_decode(decoders[k], &images[k].request);
                if (said[k] != said[0]) fail("the paths do not agree whether it is a picture", input);
                if (said[k] == JPEG_OK) compare(&images[k], &images[0], 0, 0, input, "the paths give different pixels");
            }
            if (is_whole && said[0] != JPEG_OK) fail("a whole file was not decoded", input);
            decoded += said[0] == JPEG_OK;
            if (said[0] == JPEG_OK && q.all_width) check_window(decoders[0], all, &images[0], input);
            if (is_whole) {
                all = (jpeg_request){.width = width, .height = height, .out_width = width, .out_height = height};
                all.is_smooth = q.is_smooth;
                image full = lay_out(all);
                q.all_width = q.all_height = q.is_mirrored = 0;
                q.out_width = q.width, q.out_height = q.height;
                image part = lay_out(q);
                if (jpeg_decode(decoders[0], &full.request) || jpeg_decode(decoders[0], &part.request))
                    fail("a whole file was not decoded again", input);
                compare(&full, &part, q.top, q.left, input, "a part is not what the whole has there");
                check_marks(decoders[below(paths)], &part, input);
                int maker = below(paths);
                jpeg_open(decoders[maker], data, bytes);
                check_planes(decoders[maker], decoders[below(paths)], &part, input);
                free(full.block), free(part.block);
                whole++;
            }
            for (int k = 0; k < paths; k++) free(images[k].block);
        }
        free(data);
    }
    for (int k = 0; k < paths; k++) jpeg_open(decoders[k], file, 0); /* frees what is too large to keep */
    size_t held = ALLOCATED() - before; /* planes of a whole file, room for a picture, and tables of weights */
    for (int k = 0; k < paths; k++) jpeg_free(decoders[k]);
    if (held > paths * (size_t)MEMORY || ALLOCATED() != before) fail("memory was kept", inputs);
    for (int k = 0; k < MOST; k++)
        if (jpeg_choose(names[k])) printf("%s ", names[k]);
    printf("alike in %ld inputs: %ld decoded, %ld of them whole; %zu KB held\n", inputs, decoded, whole, held >> 10);
    return decoded == 0;
}
