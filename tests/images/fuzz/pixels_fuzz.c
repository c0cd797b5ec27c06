/* Random operations on random pictures, under ASan and UBSan: `make fuzz-pixels`.
 *
 *     pixels_fuzz COUNT [SEED]
 *
 * Each of COUNT operations has random parameters, sane ones and absurd ones, on a picture of random size.  Every path
 * that this processor has must leave the same bytes, and the digest that is printed at the end is the same on every
 * processor.  Rows are written between canaries, with strides of either sign.  A picture's memory is a heap block, so
 * ASan sees what is read or written beyond its margin, and it must be freed. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pixels.h"

#if defined(__SANITIZE_ADDRESS__)
size_t __sanitizer_get_current_allocated_bytes(void); /* its header is not installed everywhere */
#define ALLOCATED() __sanitizer_get_current_allocated_bytes()
#else
#define ALLOCATED() ((size_t)0)
#endif

enum { LARGEST = 90, CANARY = 64, PATHS = 2, OPERATIONS = 26 };

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
static double fraction(double low, double high) { return low + (high - low) * (any() / 4294967296.0); }
static int length(void) { return below(4) ? between(1, 40) : below(2) ? between(1, 4) : between(1, LARGEST); }

static pixels_picture *pictures[PATHS];
static pixels_picture *others[PATHS];
static int path_count;
static uint64_t digest; /* of all pictures that were compared: the same on every processor */

static void fail(const char *what, int operation)
{
    fprintf(stderr, "%s: operation %d on %d x %d\n", what, operation, pictures[0]->width, pictures[0]->height);
    abort();
}

/* ------------------------------------------------------------------------------------------------------- pictures */

static void load(pixels_picture *const to[PATHS], int width, int height)
{
    int channels = below(3) ? 3 : 1, kind = below(4);
    size_t bytes = (size_t)width * (size_t)height * (size_t)channels;
    uint8_t *from = malloc(bytes), one = (uint8_t)any();
    for (size_t k = 0; k < bytes; k++) from[k] = (uint8_t)(kind == 0 ? one : kind == 1 ? (below(2) ? 0 : 255) : any());
    for (int k = 0; k < path_count; k++) {
        if (pixels_start(to[k], width, height, channels) != PIXELS_OK) fail("no memory", -1);
        pixels_load(to[k], from, (ptrdiff_t)width * channels, channels, channels == 3);
    }
    free(from);
}

static void compare(int operation)
{
    size_t n = (size_t)pictures[0]->width * (size_t)pictures[0]->height;
    for (size_t at = 0; at < n; at++)
        for (int c = 0; c < 3; c++) digest = (digest ^ pictures[0]->now[4 * at + (size_t)c]) * 1099511628211u;
    for (int k = 1; k < path_count; k++) {
        if (pictures[k]->width != pictures[0]->width || pictures[k]->height != pictures[0]->height)
            fail("other sizes", operation);
        for (size_t at = 0; at < n; at++)
            if (memcmp(pictures[k]->now + 4 * at, pictures[0]->now + 4 * at, 3)) fail("other bytes", operation);
    }
}

/* ------------------------------------------------------------------------------------------------------------ rows */

/* A box of a row becomes 0. */
static void erase(pixels_place box, int width, int height, int of_each, int item)
{
    size_t channels = (size_t)pictures[0]->channels, bytes = channels * (size_t)item;
    uint8_t *values = calloc(bytes, (size_t)(of_each && width && height ? width * height : 1));
    pixels_values from = {values, 0, 0, 0};
    if (of_each) from = (pixels_values){values, (ptrdiff_t)height * width * item, (ptrdiff_t)width * item, item};
    pixels_erase(box, (int)channels, width, height, from, item);
    free(values);
}

/* Written between canaries, and the same by each path. */
static void write(void)
{
    static const int items[] = {1, 2, 4};
    int item = items[below(3)], has_table = item > 1 || below(2), layout = below(4);
    ptrdiff_t width = pictures[0]->width, height = pictures[0]->height, channels = pictures[0]->channels;
    size_t bytes = (size_t)(width * height * channels * item), table_bytes = (size_t)(256 * channels * item);
    uint8_t *table = malloc(table_bytes), *first = NULL;
    int is_erased = layout == 0 && below(2), of_each = below(2), w = between(0, (int)width), h = between(0, (int)height);
    int left = between(0, (int)width - w), top = between(0, (int)height - h);
    for (size_t k = 0; k < table_bytes; k++) table[k] = (uint8_t)any();
    int is_scaled = has_table && item == 4 && below(2);
    pixels_scale scales[3];
    for (int c = 0; c < 3; c++)
        scales[c] = (pixels_scale){below(2) ? 1.0f : 1.0f / 255, below(2) ? 255.0f : 1.0f, below(9) / 9.0f, 0.25f};
    for (int k = 0; k < path_count; k++) {
        uint8_t *block = malloc(bytes + 2 * CANARY), *row = block + CANARY;
        memset(block, 0xa5, bytes + 2 * CANARY);
        pixels_place place = {row, height * width * item, width * item, item};
        if (layout == 1) place = (pixels_place){row, item, width * channels * item, channels * item};
        if (layout == 2) place.to += (width - 1) * item, place.column = -item;
        if (layout == 3) place.to += (height - 1) * width * item, place.row = -width * item;
        pixels_write(pictures[k], place, has_table ? table : NULL, item, is_scaled ? scales : NULL);
        place.to += top * place.row + left * place.column;
        if (is_erased) erase(place, w, h, of_each, item);
        for (int at = 0; at < CANARY; at++)
            if (block[at] != 0xa5 || row[bytes + (size_t)at] != 0xa5) fail("a canary died", -2);
        if (!first)
            first = block;
        else {
            if (memcmp(first, block, bytes + 2 * CANARY)) fail("other rows", -2);
            free(block);
        }
    }
    free(first);
    free(table);
}

/* ------------------------------------------------------------------------------------------------------ operations */

static double absurd(void)
{
    static const double values[] = {0, -0.0, 1, -1, 1e300, -1e300, 1e10, 32768, 65536, 2147483648.0, 1e-300, 0.5};
    return below(40) ? values[below(sizeof values / sizeof *values)] : below(2) ? NAN : INFINITY;
}

static double any_number(double low, double high) { return below(12) ? fraction(low, high) : absurd(); }

static float any_factor(void) { return (float)(below(3) ? fraction(-1, 3) : any_number(-100, 100)); }

typedef struct {
    float factor, second;
    int numbers[6], more[8];
    double matrix[8];
    uint8_t tables[3][256];
    uint32_t colour;
    float weights[2][9];
} parameters;

static parameters draw(int operation)
{
    parameters p = {0};
    p.factor = any_factor(); /* one after the other: within one expression, the compiler would choose the order */
    p.second = any_factor();
    p.colour = any();
    int width = pictures[0]->width, height = pictures[0]->height;
    for (int k = 0; k < 6; k++) p.numbers[k] = length();
    for (int k = 0; k < 8; k++) p.more[k] = below(1 << 16);
    for (int k = 0; k < 8; k++) p.matrix[k] = any_number(-2, 2);
    if (below(2)) p.matrix[2] = any_number(-width, width), p.matrix[5] = any_number(-height, height);
    if (below(3) == 0) p.matrix[1] = p.matrix[3] = 0;
    if (below(4) == 0) p.matrix[0] = p.matrix[4] = 1, p.matrix[2] = between(-9, 9), p.matrix[5] = between(-9, 9);
    if (below(2)) p.matrix[6] = fraction(-.01, .01), p.matrix[7] = fraction(-.01, .01);
    for (int c = 0; c < 3; c++)
        for (int v = 0; v < 256; v++) p.tables[c][v] = (uint8_t)(operation == 0 ? any() : 0);
    for (int side = 0; side < 2; side++)
        for (int k = 0; k < 9; k++) p.weights[side][k] = (float)fraction(0, .3);
    if (operation == 12) p.factor = (float)fraction(0, below(9) ? 9 : 5000), p.second = (float)fraction(0, 4);
    return p;
}

/* A resize of a canvas of up to twice the picture, to a part of the result. */
static int resize(pixels_picture *picture, const int *n, const int *more, uint32_t colour)
{
    int across = more[0] % 2 ? more[0] % (picture->width + 1) : 0, down = more[1] % 2 ? more[1] % (picture->height + 1) : 0;
    int shrinks = more[6] % 8 ? 1 : 9, wide = 1 + n[0] / shrinks, high = 1 + n[1] / shrinks;
    resize_request q = {
        .canvas_width = picture->width + across, .canvas_height = picture->height + down,
        .left = more[2] % (across + 1), .top = more[3] % (down + 1),
        .fill = {(uint8_t)colour, (uint8_t)(colour >> 8), (uint8_t)(colour >> 16)},
        .all_width = wide, .all_height = high,
        .filter = (resize_filter)(more[4] % RESIZE_FILTERS), .may_go_down_first = more[5] % 2,
        .is_mirrored = more[5] / 2 % 2, .is_flipped = more[5] / 4 % 2,
    };
    int is_whole = more[5] / 8 % 2;
    q.out_left = is_whole ? 0 : n[2] % wide, q.out_top = is_whole ? 0 : n[3] % high;
    q.out_width = is_whole ? wide : 1 + n[4] % (wide - q.out_left);
    q.out_height = is_whole ? high : 1 + n[5] % (high - q.out_top);
    return pixels_resize(picture, q);
}

static int apply(int operation, pixels_picture *picture, pixels_picture *other, const parameters *p)
{
    static const int filters[] = {NEAREST, BILINEAR, BICUBIC};
    const int *n = p->numbers;
    int order[3] = {n[0] % 3, n[1] % 3, n[2] % 3}, width = picture->width, height = picture->height;
    switch (operation) {
    case 0: pixels_look_up(picture, (const uint8_t(*)[256])p->tables); return PIXELS_OK;
    case 1: pixels_look_up_all(picture, p->tables[0]); return PIXELS_OK;
    case 2: pixels_brightness(picture, p->factor); return PIXELS_OK;
    case 3: pixels_contrast(picture, p->factor); return PIXELS_OK;
    case 4: pixels_autocontrast(picture); return PIXELS_OK;
    case 5: pixels_equalize(picture); return PIXELS_OK;
    case 6: pixels_saturation(picture, p->factor); return PIXELS_OK;
    case 7: pixels_hue(picture, (int)(p->colour & 255)); return PIXELS_OK;
    case 8: pixels_grayscale(picture, n[0] % 2 ? 1 : 3); return PIXELS_OK;
    case 9: pixels_permute(picture, order); return PIXELS_OK;
    case 10: return pixels_sharpness(picture, p->factor);
    case 11: pixels_blend(picture, other, p->factor); return PIXELS_OK;
    case 12: return pixels_gaussian_blur(picture, p->factor, n[0] % 2 ? p->factor : p->second);
    case 13: return pixels_convolve(picture, p->weights[0], n[0] % 5 * 2 + 1, p->weights[1], n[1] % 5 * 2 + 1);
    case 14:
    case 15: return pixels_affine(picture, n[0], n[1], p->matrix, filters[n[2] % 3], p->colour);
    case 16:
    case 17: return pixels_affine(picture, width, height, p->matrix, filters[n[2] % 3], p->colour);
    case 18:
    case 19: return pixels_perspective(picture, n[0], n[1], p->matrix, filters[n[2] % 3], p->colour);
    case 20: return pixels_frame(picture, n[2] - n[3], n[4] - n[5], n[0], n[1], n[3] % 4, p->colour);
    case 21: return n[0] % 2 ? pixels_flip_left_right(picture) : pixels_flip_top_bottom(picture);
    case 22: return pixels_turn_quarters(picture, n[0] % 4);
    case 23:
    case 24: return resize(picture, n, p->more, p->colour);
    default: {
        int left = n[0] % width, top = n[1] % height;
        pixels_fill_box(picture, left, top, n[2] % (width - left + 1), n[3] % (height - top + 1), p->colour);
        return PIXELS_OK;
    }
    }
}

/* On the other pictures, because a path may have no way to do it; test_pixels_picture.py compares what it makes. */
static void window(void)
{
    static float weights[23 * 23];
    int across = 2 * below(12) + 1, down = 2 * below(12) + 1;
    for (int k = 0; k < across * down; k++) weights[k] = (float)fraction(-.3, .3);
    load(others, length(), length());
    for (int k = 0; k < path_count; k++)
        if (pixels_convolve_window(others[k], weights, across, down) == PIXELS_NO_MEMORY) fail("no memory", -1);
}

int main(int count, char **arguments)
{
    static const char *const names[] = {"plain", "avx2", "neon"};
    long calls = count > 1 ? atol(arguments[1]) : 100000, done = 0, counts[OPERATIONS] = {0};
    state = (count > 2 ? (uint64_t)atoll(arguments[2]) : 1) * 0x9e3779b97f4a7c15u | 1;
    size_t before = ALLOCATED();
    for (int k = 0; k < 3 && path_count < PATHS; k++) {
        const pixels_path *path = pixels_choose(names[k]);
        if (!path) continue;
        pictures[path_count] = pixels_new(path), others[path_count] = pixels_new(path);
        path_count++;
    }
    while (done < calls) {
        if (below(50) == 0) /* memory of its own for small ones, too: what lies behind it is then not theirs */
            for (int k = 0; k < path_count; k++) {
                const pixels_path *path = pictures[k]->path;
                pixels_free(pictures[k]);
                pictures[k] = pixels_new(path);
            }
        int width = length(), height = length();
        load(pictures, width, height);
        for (int operations = between(1, 5); operations > 0 && done < calls; operations--, done++) {
            int operation = below(OPERATIONS);
            parameters p = draw(operation);
            if (operation == 11) load(others, pictures[0]->width, pictures[0]->height);
            for (int k = 0; k < path_count; k++)
                if (apply(operation, pictures[k], others[k], &p) != PIXELS_OK) fail("no memory", operation);
            if (below(2))
                for (int k = 0; k < path_count; k++) pixels_apply_pending(pictures[k]);
            if (!pictures[0]->is_pending) compare(operation);
            counts[operation]++;
        }
        write();
        if (below(8) == 0) window();
    }
    for (int k = 0; k < path_count; k++) pixels_free(pictures[k]), pixels_free(others[k]);
    if (ALLOCATED() != before) fail("memory is left", -1);
    for (int k = 0; k < OPERATIONS; k++) printf("%s%ld", k ? " " : "", counts[k]);
    printf("\n%ld operations, %d paths, nothing found, digest %016llx\n", done, path_count, (unsigned long long)digest);
    return 0;
}
